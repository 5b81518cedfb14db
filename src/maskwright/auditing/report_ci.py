"""Reports for continuous integration: JUnit XML, SARIF, and the comparison with a baseline.

All functions take reports as plain data, as `AuditReport.as_dict` returns them and `report.json`
stores them, so that reports of other processes and of earlier runs can be converted too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from xml.etree import ElementTree

from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

Data = Mapping[str, Any]  # a report, or a part of it
SARIF_VERSION: Final = "2.1.0"
SARIF_SCHEMA: Final = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)
FINGERPRINT: Final = "maskwright/v1"
INCONCLUSIVE: Final = ("not_tested", "not_run")
XML_FORBIDDEN: Final = dict.fromkeys([*range(9), 11, 12, *range(14, 32), 0xFFFE, 0xFFFF], "�")


def identity(finding: Data) -> tuple[str, str, str]:
    """What makes two findings of different runs the same: probe, cause and layer.

    Positions and sizes differ between versions of the same model.
    """
    return str(finding["probe"]), str(finding["cause"]), str(finding.get("layer") or "")


# ── JUnit ─────────────────────────────────────────────────────────────────────────────────────


def junit(reports: Mapping[str, Data]) -> str:
    """JUnit XML: one suite per report, with one test case per probe.

    A failed probe is a failure, a probe without a result an error, and one that does not apply is
    skipped.

    >>> report = {"probes": [{"probe": "leak", "status": "passed", "tried": ""}], "findings": [],
    ...           "seconds": 0.5, "ok": True}
    >>> print(junit({"gpt": report}).splitlines()[-1])
    </testsuites>
    """
    root = ElementTree.Element("testsuites", name="maskwright audit")
    totals = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    for name, report in reports.items():
        suite = ElementTree.SubElement(root, "testsuite", name=_xml(name))
        counts = dict.fromkeys(totals, 0)
        for probe in _probes(report):
            counts["tests"] += 1
            case = ElementTree.SubElement(
                suite, "testcase", classname=_xml(name), name=_xml(probe["probe"])
            )
            kind = _add_result(case, probe, report["findings"])
            if kind is not None:
                counts[kind] += 1
        for key, count in counts.items():
            suite.set(key, str(count))
            totals[key] += count
        suite.set("time", f"{report.get('seconds', 0.0):.3f}")
    for key, count in totals.items():
        root.set(key, str(count))
    ElementTree.indent(root)
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ElementTree.tostring(root, "unicode")


def _probes(report: Data) -> list[Data]:
    """The probes, and what failed before them: a model that raises has no probe."""
    known = [probe["probe"] for probe in report["probes"]]
    others = dict.fromkeys(f["probe"] for f in report["findings"] if f["probe"] not in known)
    return [*report["probes"], *({"probe": name, "status": "failed"} for name in others)]


def _add_result(case: ElementTree.Element, probe: Data, findings: Iterable[Data]) -> str | None:
    """Adds the element of a result; returns the attribute that counts it."""
    status = probe["status"]
    own = [finding for finding in findings if finding["probe"] == probe["probe"]]
    if own:
        for finding in own:
            message = f"{finding['cause']}: {finding['message']}"
            element = ElementTree.SubElement(
                case, "failure", type=_xml(finding["cause"]), message=_xml(message)
            )
            element.text = _xml(_details(finding))
        return "failures"
    if status in INCONCLUSIVE:
        message = f"{probe['probe']}: {status.replace('_', ' ')}. {_why(probe)}".strip()
        ElementTree.SubElement(case, "error", type=status, message=_xml(message))
        return "errors"
    if status == "not_applicable":
        ElementTree.SubElement(case, "skipped", message=_xml("; ".join(probe.get("notes") or ())))
        return "skipped"
    return None


def _details(finding: Data) -> str:
    lines = [finding["message"], finding.get("means") or "", finding["fix"]]
    lines += [f"layer: {finding['layer']}"] if finding.get("layer") else []
    lines += [f"mask used: {finding['used']}"] if finding.get("used") else []
    lines += [finding["reproduce"]] if finding.get("reproduce") else []
    return "\n".join(line for line in lines if line)


def _why(probe: Data) -> str:
    """Why a probe has no result."""
    cases = [case for case in probe.get("cases") or () if case["status"] in INCONCLUSIVE]
    return "; ".join(f"{case['case']}: {case['why'] or case['status']}" for case in cases)


def _xml(text: Any) -> str:
    """Text without the characters that XML 1.0 cannot hold."""
    return str(text).translate(XML_FORBIDDEN)


# ── SARIF ─────────────────────────────────────────────────────────────────────────────────────


def sarif(
    reports: Mapping[str, Data], *, artifact: str | None = None, baseline: Data | None = None
) -> str:
    """SARIF 2.1.0: one result per finding, with the layer as its logical location.

    Args:
        reports: The reports by name.
        artifact: The file that defines the model, relative to the repository. Code scanning shows
            results there.
        baseline: An earlier report; results get the state "new" or "unchanged".

    >>> json.loads(sarif({}))["version"]
    '2.1.0'
    """
    from maskwright import __version__

    rules: dict[str, dict[str, Any]] = {}
    results: list[dict[str, Any]] = []
    known = None if baseline is None else {identity(f) for f in baseline["findings"]}
    for name, report in reports.items():
        for finding in report["findings"]:
            index = _rule(rules, finding["cause"], finding.get("means"), finding.get("fix"))
            state = "new" if known is None or identity(finding) not in known else "unchanged"
            results.append(
                {
                    "ruleId": finding["cause"],
                    "ruleIndex": index,
                    "kind": "fail",
                    "level": "error",
                    "message": {"text": f"{finding['message']} {finding['fix']}".strip()},
                    "locations": [_location(name, finding, artifact)],
                    "partialFingerprints": {FINGERPRINT: _fingerprint(name, finding)},
                    "properties": {key: finding.get(key) for key in ("probe", "size", "used")},
                    **({} if known is None else {"baselineState": state}),
                }
            )
        for probe in report["probes"]:
            if probe["status"] in INCONCLUSIVE:
                index = _rule(rules, probe["status"], None, None)
                text = f"{probe['probe']}: {probe['status'].replace('_', ' ')}. {_why(probe)}"
                results.append(
                    {
                        "ruleId": probe["status"],
                        "ruleIndex": index,
                        "kind": "open",  # there is no result
                        "level": "none",
                        "message": {"text": text.strip()},
                        "locations": [_location(name, {}, artifact)],
                    }
                )
    driver = {"name": "maskwright", "version": __version__, "rules": list(rules.values())}
    run = {"tool": {"driver": driver}, "columnKind": "utf16CodeUnits", "results": results}
    log = {"$schema": SARIF_SCHEMA, "version": SARIF_VERSION, "runs": [run]}
    return json.dumps(log, indent=2, ensure_ascii=False)


def _rule(rules: dict[str, dict[str, Any]], code: str, means: Any, fix: Any) -> int:
    """The index of a rule, which is added if it is new."""
    if code not in rules:
        texts = {
            "not_tested": "A leak of one visible position would not have been found.",
            "not_run": "A comparison could not run.",
        }
        rules[code] = {
            "id": code,
            "shortDescription": {"text": str(means or texts.get(code, code))},
            **({"help": {"text": str(fix)}} if fix else {}),
        }
    return list(rules).index(code)


def _location(name: str, finding: Data, artifact: str | None) -> dict[str, Any]:
    layer = finding.get("layer")
    path = f"{name}.{layer}" if layer else name
    found: dict[str, Any] = {
        "logicalLocations": [{"fullyQualifiedName": path, "name": layer or name, "kind": "module"}]
    }
    if artifact is not None:
        found["physicalLocation"] = {
            "artifactLocation": {"uri": artifact, "uriBaseId": "%SRCROOT%"},
            "region": {"startLine": 1},
        }
    return found


def _fingerprint(name: str, finding: Data) -> str:
    return hashlib.sha256("\0".join((name, *identity(finding))).encode()).hexdigest()[:32]


# ── baseline ──────────────────────────────────────────────────────────────────────────────────


def read_baseline(path: Path) -> dict[str, Any]:
    """Reads the JSON report of an earlier audit.

    Raises:
        ArgumentError: If the file cannot be read, or is not a report.
    """
    fix = "Pass a file that `maskwright audit -o report.json` wrote."
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ArgumentError(f"baseline: {path} cannot be read: {error.strerror}. {fix}") from error
    except ValueError as error:
        raise ArgumentError(f"baseline: {path} is not JSON: {error}. {fix}") from error
    if not isinstance(found, dict) or not _is_report(found):
        raise ArgumentError(f"baseline: {path} is not a report of an audit. {fix}")
    return found


def _is_report(data: Data) -> bool:
    parts = (data.get("findings"), data.get("probes"))
    lists = all(isinstance(part, list) and all(isinstance(x, dict) for x in part) for part in parts)
    return lists and all({"probe", "cause"} <= {*f} for f in data["findings"])


def new_findings(report: Data, baseline: Data) -> list[Data]:
    """The findings of a report that its baseline does not have.

    >>> old = {"findings": [{"probe": "leak", "cause": "future-visible", "layer": "h.0"}]}
    >>> new = {"findings": [*old["findings"], {"probe": "batch", "cause": "raises"}]}
    >>> [finding["probe"] for finding in new_findings(new, old)]
    ['batch']
    """
    known = {identity(finding) for finding in baseline["findings"]}
    return [finding for finding in report["findings"] if identity(finding) not in known]


def newly_inconclusive(report: Data, baseline: Data) -> list[str]:
    """The probes without a result that had one in the baseline, or were not in it."""
    known = {p["probe"] for p in baseline["probes"] if p.get("status") in INCONCLUSIVE}
    found = [probe["probe"] for probe in report["probes"] if probe["status"] in INCONCLUSIVE]
    return [name for name in found if name not in known]


def exit_code(report: Data, baseline: Data) -> int:
    """The exit code of an audit with a baseline: 1 for new findings, 3 for probes without a result."""
    if new_findings(report, baseline):
        return 1
    return 3 if newly_inconclusive(report, baseline) else 0
