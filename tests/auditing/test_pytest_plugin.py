"""The pytest plugin, as a project uses it."""

from __future__ import annotations

import importlib.metadata
import inspect
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest

pytest.importorskip("torch")

import _maskwright_pytest
import maskwright as mw
import maskwright.auditing  # what pytester sees imported first, it would forget, and torch too
from maskwright.auditing import report_html
from maskwright.auditing.probes import ProbeResult
from maskwright.auditing.report import AuditFinding, AuditReport
from maskwright.messages import Reason
from tests._helpers.sampling import subset_of_cases

if TYPE_CHECKING:
    from collections.abc import Callable

pytest_plugins = ["pytester"]

# However it is installed: once, and by its own name.
PLUGIN = ("-p", "no:maskwright", "-p", _maskwright_pytest.__name__, "-p", "no:cacheprovider")

TESTS = """
def test_healthy(mask_audit):
    assert mask_audit("healthy", "ids", expects="causal").ok

def test_sick(mask_audit):
    mask_audit("sick", "ids", expects="causal")

def test_only_looked_at(mask_audit):
    assert not mask_audit("sick", check=False).ok

def test_two(mask_audit):
    mask_audit("healthy")
    mask_audit("healthy")
"""


def stand_in(model: Any, inputs: Any = None, **options: Any) -> AuditReport:
    """An audit that costs nothing; which model is sick is in its name."""
    fault = AuditFinding("leak", "position 0 depends on position 1", "future-visible", "Hide it.")
    found = (fault,) if model == "sick" else ()
    told = str(options.get("expects", "auto"))
    probe = ProbeResult("leak")
    probe.add_case(Reason("audit.leak.tried", {"count": 1, "share": 1.0}))
    return AuditReport(found, (probe,), told, passes=1, seconds=0.0, subject=model)


@pytest.fixture
def run(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """pytest on those tests, in this process."""
    monkeypatch.setattr(mw, "audit", stand_in)
    pytester.makepyfile(test_models=TESTS)
    return lambda *words: pytester.runpytest_inprocess(*PLUGIN, "-p", "no:xdist", *words)


def test_model_that_does_not_respect_mask_fails_test(run: Callable[..., Any]) -> None:
    result = run()
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["*AuditError: sick does not respect causal*", "*Hide it.*"])
    assert "mask audits" not in result.stdout.str()


def test_options_are_those_of_audit(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def audit(*args: Any, **options: Any) -> AuditReport:
        seen.append((args, options))
        return stand_in("healthy")

    monkeypatch.setattr(mw, "audit", audit)
    pytester.makepyfile("def test(mask_audit): mask_audit('m', (1, 2), expects='x', seed=3)")
    pytester.runpytest_inprocess(*PLUGIN).assert_outcomes(passed=1)
    assert seen == [(("m", (1, 2)), {"expects": "x", "seed": 3})]


def test_all_reports_are_written_as_page(run: Callable[..., Any]) -> None:
    result = run("--mask-audit-report", "deep/audits.html")
    page = Path("deep/audits.html").read_text()
    names = re.findall(r"<h2>(.*?)</h2>", page)
    assert names == [
        "test_models.py::test_healthy",
        "test_models.py::test_only_looked_at",
        "test_models.py::test_sick",
        "test_models.py::test_two",
        "test_models.py::test_two (2)",
    ]
    assert "5 audits, 2 of models that do not respect their mask." in page
    told = "5 mask audits, 2 of models that do not respect their mask: deep/audits.html"
    result.stdout.fnmatch_lines([told])


def test_all_reports_are_written_as_json(run: Callable[..., Any]) -> None:
    run("--mask-audit-report=audits.json")
    found = json.loads(Path("audits.json").read_text())
    assert not found["ok"]
    assert len(found["audits"]) == 5
    sick = found["audits"]["test_models.py::test_sick"]
    assert sick["expects"] == "causal"
    assert sick["findings"][0]["cause"] == "future-visible"


def test_without_audits_page_reports_it(run: Callable[..., Any]) -> None:
    run("--mask-audit-report=audits.html", "-k", "nothing")
    assert "No model was audited." in Path("audits.html").read_text()


def test_collecting_writes_nothing(run: Callable[..., Any]) -> None:
    run("--mask-audit-report=audits.html", "--collect-only")
    assert not Path("audits.html").exists()


def test_another_ending_is_rejected(run: Callable[..., Any]) -> None:
    result = run("--mask-audit-report=audits.txt")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*audits.txt*.html, .json, .xml, .sarif*"])


def test_reports_for_continuous_integration(run: Callable[..., Any]) -> None:
    run("--mask-audit-report=audits.xml")
    root = ElementTree.fromstring(Path("audits.xml").read_text())
    assert next(suite.get("name") for suite in root) == "test_models.py::test_healthy"
    assert root.get("failures") == "2"
    run("--mask-audit-report=audits.sarif")
    [found] = json.loads(Path("audits.sarif").read_text())["runs"]
    assert [result["ruleId"] for result in found["results"]] == ["future-visible"] * 2
    run("--mask-audit-report=audits.sarif.json")
    assert Path("audits.sarif.json").read_text() == Path("audits.sarif").read_text()


def test_baseline_fails_on_new_findings_only(
    run: Callable[..., Any], pytester: pytest.Pytester
) -> None:
    run("--mask-audit-report=known.json").assert_outcomes(passed=3, failed=1)
    run("--mask-audit-baseline=known.json").assert_outcomes(passed=4)
    known = json.loads(Path("known.json").read_text())
    known["audits"]["test_models.py::test_sick"]["findings"][0]["layer"] = "another"
    Path("known.json").write_text(json.dumps(known))
    result = run("--mask-audit-baseline=known.json")
    result.assert_outcomes(passed=3, failed=1)
    result.stdout.fnmatch_lines(["*Not in the baseline:*", "*leak: future-visible: *"])


@pytest.mark.parametrize("content", ["no json", "{}", '{"audits": 3}'])
def test_baseline_that_is_no_report_is_rejected(run: Callable[..., Any], content: str) -> None:
    Path("known.json").write_text(content)
    result = run("--mask-audit-baseline=known.json")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--mask-audit-baseline known.json*"])
    assert run("--mask-audit-baseline=absent.json").ret == pytest.ExitCode.USAGE_ERROR


def test_marker_sets_options_and_selects(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Any] = []

    def audit(*args: Any, **options: Any) -> AuditReport:
        seen.append(options)
        return stand_in(args[0])

    monkeypatch.setattr(mw, "audit", audit)
    pytester.makepyfile(
        """
        import pytest
        pytestmark = pytest.mark.mask_audit(expects="causal", seed=1)

        @pytest.mark.mask_audit(seed=2, check=False)
        def test_marked(mask_audit):
            mask_audit("sick", probes="leak")

        def test_other():
            pass
        """,
        test_unmarked="def test_fixture(mask_audit): mask_audit('healthy')\ndef test_other(): pass",
    )
    result = pytester.runpytest_inprocess(*PLUGIN, "-p", "no:xdist", "--strict-markers")
    result.assert_outcomes(passed=4)
    assert seen == [{"expects": "causal", "seed": 2, "probes": "leak"}, {}]
    selected = pytester.runpytest_inprocess(*PLUGIN, "-p", "no:xdist", "-m", "mask_audit")
    selected.assert_outcomes(passed=3, deselected=1)


def test_good_file_stays_where_writing_fails(
    run: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("audits.html").write_text("good")

    def broken(sections: Any) -> str:
        return "half\ud800"

    monkeypatch.setattr(report_html, "sections_page", broken)
    run("--mask-audit-report=audits.html")
    assert Path("audits.html").read_text() == "good"


def test_help_tells_of_both(run: Callable[..., Any]) -> None:
    run("--help").stdout.fnmatch_lines(["*--mask-audit-report=PATH*"])
    result = run("--fixtures")
    result.stdout.fnmatch_lines(["mask_audit*", "*fail the test if it does not respect its mask*"])


CONFTEST = f"""
from typing import Any
import maskwright as mw
from maskwright.auditing.probes import ProbeResult
from maskwright.auditing.report import AuditFinding, AuditReport
from maskwright.messages import Reason

{inspect.getsource(stand_in)}
mw.audit = stand_in
"""


@pytest.mark.parametrize(("form", "dist"), subset_of_cases([("html", "each"), ("json", "load")], 2))
def test_workers_send_their_reports(pytester: pytest.Pytester, form: str, dist: str) -> None:
    pytest.importorskip("xdist")
    pytester.makepyfile(test_models=TESTS, conftest=CONFTEST)
    written = f"--mask-audit-report=audits.{form}"
    result = pytester.runpytest_subprocess(*PLUGIN, "-n", "2", "--dist", dist, written)
    times = 2 if dist == "each" else 1
    result.assert_outcomes(passed=3 * times, failed=times)
    text = Path(f"audits.{form}").read_text()
    if form == "json":
        audits = json.loads(text)["audits"]
        assert [one["ok"] for one in audits.values()] == [True, False, False, True, True]
    else:
        assert "10 audits, 4 of models that do not respect their mask." in text
        names = re.findall(r"<h2>(.*?)</h2>", text)
        assert names[:2] == ["test_models.py::test_healthy"] * 2
    assert len(list(Path().glob("*audits*"))) == 1


def test_real_model_is_audited(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import torch

        def test_healthy(mask_audit):
            mask_audit(lambda x: x.cumsum(1), torch.randn(1, 4, 2), expects="causal")

        def test_sick(mask_audit):
            mask_audit(lambda x: x.flip(1), torch.randn(1, 4, 2), expects="causal")
        """
    )
    result = pytester.runpytest_inprocess(*PLUGIN, "-p", "no:xdist")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*AuditError: model does not respect causal()*"])


def test_pytest_finds_it_when_installed() -> None:
    tomllib = pytest.importorskip("tomllib")
    project = Path(mw.__file__).parents[2] / "pyproject.toml"
    if project.is_file():
        named = tomllib.loads(project.read_text())["project"]["entry-points"]["pytest11"]
        assert named == {"maskwright": _maskwright_pytest.__name__}
    for entry in importlib.metadata.entry_points(group="pytest11", name="maskwright"):
        assert entry.load() is _maskwright_pytest
