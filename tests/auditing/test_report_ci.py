"""JUnit XML, SARIF and baselines."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import jsonschema
import pytest
import torch

import maskwright as mw
from maskwright.auditing import report_ci

if TYPE_CHECKING:
    from pathlib import Path

# The parts of the schema of SARIF 2.1.0 that a log of maskwright has. Other properties are refused,
# so that a new one is compared with the specification first.
TEXT = {
    "type": "object",
    "required": ["text"],
    "properties": {"text": {"type": "string", "minLength": 1}},
}
SARIF = {
    "type": "object",
    "required": ["version", "runs"],
    "additionalProperties": False,
    "properties": {
        "$schema": {"type": "string", "format": "uri"},
        "version": {"enum": ["2.1.0"]},
        "runs": {"type": "array", "items": {"$ref": "#/definitions/run"}},
    },
    "definitions": {
        "run": {
            "type": "object",
            "required": ["tool"],
            "additionalProperties": False,
            "properties": {
                "tool": {
                    "type": "object",
                    "required": ["driver"],
                    "additionalProperties": False,
                    "properties": {
                        "driver": {
                            "type": "object",
                            "required": ["name"],
                            "additionalProperties": False,
                            "properties": {
                                "name": {"type": "string"},
                                "version": {"type": "string"},
                                "rules": {
                                    "type": "array",
                                    "uniqueItems": True,
                                    "items": {"$ref": "#/definitions/rule"},
                                },
                            },
                        }
                    },
                },
                "columnKind": {"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
                "results": {"type": "array", "items": {"$ref": "#/definitions/result"}},
            },
        },
        "rule": {
            "type": "object",
            "required": ["id"],
            "additionalProperties": False,
            "properties": {"id": {"type": "string"}, "shortDescription": TEXT, "help": TEXT},
        },
        "result": {
            "type": "object",
            "required": ["message"],
            "additionalProperties": False,
            "properties": {
                "ruleId": {"type": "string"},
                "ruleIndex": {"type": "integer", "minimum": -1},
                "kind": {"enum": ["notApplicable", "pass", "fail", "review", "open", "informational"]},
                "level": {"enum": ["none", "note", "warning", "error"]},
                "message": TEXT,
                "baselineState": {"enum": ["new", "unchanged", "updated", "absent"]},
                "partialFingerprints": {
                    "type": "object",
                    "additionalProperties": {"type": "string"},
                },
                "properties": {"type": "object"},
                "locations": {
                    "type": "array",
                    "items": {
                        "type": "object",
                        "additionalProperties": False,
                        "properties": {
                            "logicalLocations": {
                                "type": "array",
                                "uniqueItems": True,
                                "items": {
                                    "type": "object",
                                    "additionalProperties": False,
                                    "properties": {
                                        "name": {"type": "string"},
                                        "fullyQualifiedName": {"type": "string"},
                                        "kind": {"type": "string"},
                                    },
                                },
                            },
                            "physicalLocation": {
                                "type": "object",
                                "required": ["artifactLocation"],
                                "additionalProperties": False,
                                "properties": {
                                    "artifactLocation": {
                                        "type": "object",
                                        "additionalProperties": False,
                                        "properties": {
                                            "uri": {"type": "string", "format": "uri-reference"},
                                            "uriBaseId": {"type": "string"},
                                        },
                                    },
                                    "region": {
                                        "type": "object",
                                        "additionalProperties": False,
                                        "properties": {"startLine": {"type": "integer", "minimum": 1}},
                                    },
                                },
                            },
                        },
                    },
                },
            },
        },
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def healthy() -> mw.AuditReport:
    return mw.audit(lambda x: x.cumsum(1), torch.randn(2, 6, 3), expects="causal")


@pytest.fixture(scope="module")
def leaking() -> mw.AuditReport:
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    return mw.audit(
        layer, torch.randn(2, 6, 8), expects="causal", probes=("leak", "gradient", "batch")
    )


def inconclusive(report: mw.AuditReport) -> dict[str, Any]:
    """The report of the same audit in which a probe could not run."""
    data = report.as_dict()
    case = {"case": "reverse order", "status": "not_run", "why": "raises RuntimeError"}
    data["probes"].append({"probe": "paths", "status": "not_run", "tried": "", "cases": [case]})
    return data


def results_of(text: str) -> list[dict[str, Any]]:
    log = json.loads(text)
    jsonschema.Draft7Validator(SARIF).validate(log)
    [found] = log["runs"]
    rules = found["tool"]["driver"]["rules"]
    for result in found["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
        assert result["level"] == "none" or result["kind"] == "fail"
    return found["results"]


def test_sarif_has_one_result_per_finding(leaking: mw.AuditReport, healthy: mw.AuditReport) -> None:
    results = results_of(leaking.to_sarif())
    assert [result["ruleId"] for result in results] == [f.cause for f in leaking.findings]
    assert results_of(healthy.to_sarif()) == []
    first = leaking.findings[0]
    assert first.layer is not None
    [place] = results[0]["locations"][0]["logicalLocations"]
    assert place["name"] == first.layer
    assert first.message in results[0]["message"]["text"]


def test_sarif_of_several_reports_with_file_and_baseline(leaking: mw.AuditReport) -> None:
    data = inconclusive(leaking)
    known = {"findings": data["findings"][:1], "probes": []}
    results = results_of(report_ci.sarif({"a": data, "b": data}, artifact="m.py", baseline=known))
    states = [result.get("baselineState") for result in results]
    assert states[0] == "unchanged"
    assert "new" in states
    assert states.count(None) == 2  # not run
    prints = [tuple(r["partialFingerprints"].values()) for r in results if r["kind"] == "fail"]
    assert len(set(prints)) == len({*map(report_ci.identity, data["findings"])}) * 2
    assert {r["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] for r in results} == {
        "m.py"
    }


def test_junit_counts_what_it_contains(leaking: mw.AuditReport, healthy: mw.AuditReport) -> None:
    data = {"leaking": inconclusive(leaking), "healthy": healthy.as_dict()}
    root = ElementTree.fromstring(report_ci.junit(data))
    for owner in (root, *root):
        cases = owner.findall(".//testcase")
        assert int(owner.get("tests", -1)) == len(cases)
        for kind, element in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            having = [case for case in cases if case.find(element) is not None]
            assert int(owner.get(kind, -1)) == len(having), kind
    suites = {suite.get("name"): suite for suite in root}
    assert suites["healthy"].get("failures") == "0"
    assert suites["leaking"].get("errors") == "1"
    failed = {f.probe for f in leaking.findings}
    assert int(suites["leaking"].get("failures", 0)) == len(failed)
    assert "raises RuntimeError" in report_ci.junit(data)


def test_junit_of_a_model_that_raises_and_of_odd_characters() -> None:
    def model(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("bad \x00\x1b <&> byte")

    root = ElementTree.fromstring(
        mw.audit(model, torch.randn(1, 4, 2), expects="causal").to_junit()
    )
    assert root.get("failures") == "1"
    assert "<&>" in root.find(".//failure").get("message")


def test_baseline(tmp_path: Path, leaking: mw.AuditReport, healthy: mw.AuditReport) -> None:
    path = tmp_path / "report.json"
    path.write_text(leaking.to_json())
    known = report_ci.read_baseline(path)
    data = leaking.as_dict()
    assert report_ci.exit_code(data, known) == 0
    assert report_ci.exit_code(data, healthy.as_dict()) == 1
    assert report_ci.exit_code(inconclusive(leaking), known) == 3
    assert report_ci.exit_code(inconclusive(leaking), inconclusive(leaking)) == 0
    moved = [{**data["findings"][0], "output": 3, "size": 9.0}]
    assert report_ci.new_findings({"findings": moved}, known) == []
    other = [{**data["findings"][0], "layer": "another"}]
    assert report_ci.new_findings({"findings": other}, known) == other


@pytest.mark.parametrize(
    "content", ["", "[]", '{"findings": 1, "probes": []}', '{"findings": [{}], "probes": []}']
)
def test_file_that_is_no_report_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "odd.json"
    path.write_text(content)
    with pytest.raises(mw.ArgumentError, match=r"odd\.json"):
        report_ci.read_baseline(path)
    with pytest.raises(mw.ArgumentError, match="absent"):
        report_ci.read_baseline(tmp_path / "absent.json")
