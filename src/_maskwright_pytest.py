"""The pytest plugin: the fixture and marker `mask_audit`, and options for reports and a baseline.

It is outside the package: pytest imports it at every start, and importing maskwright would load
NumPy. The package is imported when a model is audited.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final, Protocol

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from maskwright.auditing.report import AuditReport

OPTION: Final = "--mask-audit-report"
BASELINE: Final = "--mask-audit-baseline"
MARKER: Final = "mask_audit"
FORMS: Final = (".html", ".json", ".xml", ".sarif")
OUTPUT: Final = "mask_audits"  # key in the workeroutput of pytest-xdist

# Name, ok, verdict, the report as HTML or JSON: plain data that can be sent between processes
Kept = list[Any]
KEPT: Final = pytest.StashKey[list[Kept]]()
KNOWN: Final = pytest.StashKey[dict[str, Any]]()  # the reports of the baseline, by name


class MaskAudit(Protocol):
    """The type of the fixture `mask_audit`."""

    def __call__(self, model: Any, inputs: Any = None, **options: Any) -> AuditReport:
        """Audit a model; fail the test if it does not respect its mask, unless `check` is False."""


@pytest.fixture
def mask_audit(request: pytest.FixtureRequest) -> MaskAudit:
    """Audit a model, and fail the test if it does not respect its mask.

    Takes the arguments of `maskwright.audit`, and returns its report: mask_audit(model, inputs,
    expects=...). With check=False it only returns the report. The marker
    `@pytest.mark.mask_audit(expects=...)` sets defaults of these arguments for a test, class or
    module. With a baseline, only findings that it does not have fail the test.
    """
    used: list[str] = []
    defaults: dict[str, Any] = {}
    for marker in reversed([*request.node.iter_markers(MARKER)]):  # the closest one decides
        defaults |= marker.kwargs

    def run(model: Any, inputs: Any = None, **options: Any) -> AuditReport:
        __tracebackhide__ = True
        import maskwright

        options = defaults | options
        check = options.pop("check", True)
        report = maskwright.audit(model, inputs, **options)
        used.append(_free(request.node.nodeid, used))
        _keep(request.config, request.node.nodeid, report)
        if check:
            _check(report, request.config.stash.get(KNOWN, {}).get(used[-1]))
        return report

    return run


def _check(report: AuditReport, baseline: dict[str, Any] | None) -> None:
    """Fails unless the audit passed, or its baseline has the same findings."""
    __tracebackhide__ = True
    if baseline is None:
        report.assert_ok()
        return
    from maskwright.auditing.report_ci import exit_code, new_findings, newly_inconclusive
    from maskwright.errors import AuditError

    data = report.as_dict()
    if exit_code(data, baseline):
        new = [f"{f['probe']}: {f['cause']}: {f['message']}" for f in new_findings(data, baseline)]
        new += [f"{name}: no result" for name in newly_inconclusive(data, baseline)]
        raise AuditError("\n".join(["Not in the baseline:", *new, "", str(report)]))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option for the report file."""
    group = parser.getgroup("maskwright", "audits of attention masks")
    group.addoption(
        OPTION,
        metavar="PATH",
        help="write all reports of mask_audit to PATH: a page (.html), data (.json), JUnit XML "
        "(.xml) or SARIF (.sarif)",
    )
    group.addoption(
        BASELINE,
        metavar="PATH",
        help="a .json file of --mask-audit-report: only findings that it does not have fail a test",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Registers the marker, and checks the options."""
    config.addinivalue_line(
        "markers",
        f"{MARKER}(**options): defaults of the fixture mask_audit, such as expects='causal'; every "
        "test with the fixture has the marker",
    )
    if config.getoption(BASELINE) is not None:
        config.stash[KNOWN] = _read_known(config.invocation_params.dir / config.getoption(BASELINE))
    path = _path(config)
    if path is None:
        return
    if path.suffix not in FORMS:
        raise pytest.UsageError(f"{OPTION} {path.name}: expected a name in {', '.join(FORMS)}.")
    config.stash[KEPT] = []


def _read_known(path: Path) -> dict[str, Any]:
    """The reports in a JSON file of the plugin, by name."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["audits"]
        return dict(found.items())
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise pytest.UsageError(
            f"{BASELINE} {path.name}: expected a JSON file that {OPTION} wrote, and got "
            f"{type(error).__name__}: {error}"
        ) from error


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks every test with the fixture, so that `-m mask_audit` selects the audits.

    A marker at the end is the farthest one, so that the options of others apply.
    """
    for item in items:
        if "mask_audit" in getattr(item, "fixturenames", ()):
            item.add_marker(MARKER)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Collects the reports of a worker of pytest-xdist; a crashed worker has none."""
    kept = node.config.stash.get(KEPT, None)
    if kept is not None:
        kept += getattr(node, "workeroutput", {}).get(OUTPUT, [])


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Writes the reports; a worker sends them to the controller instead."""
    config = session.config
    kept, path = config.stash.get(KEPT, None), _path(config)
    if kept is None or path is None or config.getoption("collectonly"):
        return
    if hasattr(config, "workeroutput"):
        config.workeroutput[OUTPUT] = kept
        return
    from maskwright._atomic_write import create_folder, write_atomic

    create_folder(path.parent)
    suffix = ".sarif" if path.name.endswith(".sarif.json") else path.suffix
    write_atomic(path, _written(kept, suffix))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Prints where the reports are."""
    kept = config.stash.get(KEPT, None)
    if kept is not None and not config.getoption("collectonly"):
        wrong = sum(not ok for _, ok, *_ in kept)
        summary = f"{len(kept)} mask audits, {wrong} of models that do not respect their mask"
        terminalreporter.write_line(f"{summary}: {config.getoption(OPTION)}")


def _path(config: pytest.Config) -> Path | None:
    given = config.getoption(OPTION)
    return None if given is None else config.invocation_params.dir / given


def _keep(config: pytest.Config, name: str, report: AuditReport) -> None:
    kept, path = config.stash.get(KEPT, None), _path(config)
    if kept is None or path is None:
        return
    name = _free(name, (other for other, *_ in kept))
    if path.suffix == ".html":
        from maskwright.auditing.report_html import report_section

        kept.append(list(report_section(name, report)))
    else:
        kept.append([name, report.ok, report.expects, report.to_json()])


def _free(name: str, taken: Iterable[str]) -> str:
    """The name, with a number if another audit has the same."""
    known = set(taken)
    names = (name if n == 1 else f"{name} ({n})" for n in range(1, len(known) + 2))
    return next(one for one in names if one not in known)


def _ordered(kept: list[Kept]) -> list[Kept]:
    """Sorted by name, with unique names."""
    found: dict[str, Kept] = {}
    for name, *rest in sorted(kept, key=lambda one: str(one[0])):
        own = _free(name, found)
        found[own] = [own, *rest]
    return list(found.values())


def _as_page(kept: list[Kept]) -> str:
    from maskwright.auditing.report_html import Section, sections_page

    return sections_page([Section(*one) for one in _ordered(kept)])


def _written(kept: list[Kept], suffix: str) -> str:
    """The content of the report file."""
    if suffix == ".html":
        return _as_page(kept)
    if suffix == ".json":
        return _as_json(kept)
    from maskwright.auditing.report_ci import junit, sarif

    reports = {name: json.loads(data) for name, *_, data in _ordered(kept)}
    return (junit(reports) if suffix == ".xml" else sarif(reports)) + "\n"


def _as_json(kept: list[Kept]) -> str:
    audits = {name: json.loads(data) for name, *_, data in _ordered(kept)}
    ok = all(one["ok"] for one in audits.values())
    return json.dumps({"ok": ok, "audits": audits}, indent=2, ensure_ascii=False) + "\n"
