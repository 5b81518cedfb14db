"""The tables of the audit are complete: symptoms, diagnosers, causes, probes and messages."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import torch

import maskwright as mw
from maskwright.auditing import diagnose
from maskwright.auditing.diagnose import CAUSES_WITHOUT_MASKS, mistakes
from maskwright.auditing.probes import PROBES, ProbeContext, ProbeResult
from maskwright.auditing.report import UNSPECIFIC
from maskwright.linting.codes import CODES
from maskwright.messages import messages

SOURCES = sorted(Path(diagnose.__file__).parent.rglob("*.py"))


def constants(path: Path) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text()))
    return {
        node.value
        for node in nodes
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def test_every_cause_is_code_of_audit() -> None:
    causes = {*CAUSES_WITHOUT_MASKS.values(), *UNSPECIFIC, *diagnose.TOO_WEAK, *diagnose.TOO_STRONG}
    causes |= {code for code, _ in mistakes(mw.window(back=2) & mw.padding(lengths=[3]))}
    causes |= {code for code, _ in mistakes(mw.causal() & mw.documents(ids=[0, 0, 1]))}
    assert causes <= {name for name, code in CODES.items() if code.audit}


def test_every_message_of_audit_has_text_and_is_used() -> None:
    used = {text for path in SOURCES for text in constants(path) if text.startswith("audit.")}
    used = {code for code in used if re.fullmatch(r"[a-z_.]+", code) and not code.endswith(".")}
    texts = {code for code in messages("en") if code.startswith("audit.")}
    assert used <= texts
    composed = (
        "audit.html.",
        "audit.variant.",
        "audit.verdict.",
        "audit.status.",
    )  # f"audit.html.{name}"
    assert {code for code in texts - used if not code.startswith(composed)} == set()
    names = {text for path in SOURCES for text in constants(path)}
    short = {code.removeprefix(prefix) for prefix in composed for code in texts - used}
    assert {name.removeprefix("key.") for name in short if not name.startswith("audit.")} <= names


def test_every_probe_has_same_signature() -> None:
    for name, probe in PROBES.items():
        assert probe.__annotations__ == {"context": "ProbeContext", "return": "ProbeResult"}, name
        assert probe.__doc__


def test_probe_is_one_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    def toy(context: ProbeContext) -> ProbeResult:
        return ProbeResult("toy", worst=float(context.meter.baseline.shape[1]))

    monkeypatch.setitem(PROBES.entries, "toy", f"{__name__.rpartition('.')[2]}:toy")
    monkeypatch.setattr(type(PROBES), "__getitem__", lambda *_: toy)
    report = mw.audit(lambda x: x.cumsum(1), torch.randn(1, 5, 2), expects="causal", probes="toy")
    assert [(result.probe, result.worst) for result in report.answers] == [("toy", 5.0)]


def test_report_in_chinese_has_same_findings() -> None:
    report = mw.audit(lambda x: x.flip(1), torch.randn(2, 5, 3), expects="causal")
    english, chinese = report.as_dict(), report.as_dict("zh")
    assert len(chinese["findings"]) == len(english["findings"]) > 0
    for one, other in zip(english["findings"], chinese["findings"], strict=True):
        assert (one["cause"], one["layer"], one["size"]) == (
            other["cause"],
            other["layer"],
            other["size"],
        )
        for field in ("message", "fix", "means"):
            assert one[field].isascii()
            assert re.search(r"[\u4e00-\u9fff]", other[field])
    assert re.search(r"[\u4e00-\u9fff]", report.text("zh").splitlines()[0])
    with pytest.raises(mw.ArgumentError, match="'de'"):
        report.text("de")
