"""The pytest plugin: the fixture `mask_audit`, and the option `--mask-audit-report`.

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
FORMS: Final = (".html", ".json")
OUTPUT: Final = "mask_audits"  # key in the workeroutput of pytest-xdist

# Name, ok, verdict, the report as HTML or JSON: plain data that can be sent between processes
Kept = list[Any]
KEPT: Final = pytest.StashKey[list[Kept]]()


class MaskAudit(Protocol):
    """The type of the fixture `mask_audit`."""

    def __call__(
        self, model: Any, inputs: Any = None, *, check: bool = True, **options: Any
    ) -> AuditReport:
        """Audit a model; fail the test if it does not respect its mask, unless `check` is False."""


@pytest.fixture
def mask_audit(request: pytest.FixtureRequest) -> MaskAudit:
    """Audit a model, and fail the test if it does not respect its mask.

    Takes the arguments of `maskwright.audit`, and returns its report: mask_audit(model, inputs,
    expects=...). With check=False it only returns the report.
    """

    def run(model: Any, inputs: Any = None, *, check: bool = True, **options: Any) -> AuditReport:
        __tracebackhide__ = True
        import maskwright

        report = maskwright.audit(model, inputs, **options)
        _keep(request.config, request.node.nodeid, report)
        if check:
            report.assert_ok()
        return report

    return run


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the option for the report file."""
    group = parser.getgroup("maskwright", "audits of attention masks")
    group.addoption(
        OPTION,
        metavar="PATH",
        help="write all reports of mask_audit to PATH, a page (.html) or data (.json)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Checks the option."""
    path = _path(config)
    if path is None:
        return
    if path.suffix not in FORMS:
        raise pytest.UsageError(
            f"{OPTION}: {path.name} ends neither in .html nor in .json. Pass a file with one of these."
        )
    config.stash[KEPT] = []


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
    from maskwright._atomic_write import write_atomic

    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, _as_page(kept) if path.suffix == ".html" else _as_json(kept))


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


def _as_json(kept: list[Kept]) -> str:
    audits = {name: json.loads(data) for name, *_, data in _ordered(kept)}
    ok = all(one["ok"] for one in audits.values())
    return json.dumps({"ok": ok, "audits": audits}, indent=2, ensure_ascii=False) + "\n"
