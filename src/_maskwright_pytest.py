"""The pytest plugin: the fixture `mask_audit`, and the option `--mask-audit-report`.

It stands beside the package, not in it: pytest imports it at every start, and importing anything of
maskwright would load NumPy. What is needed is imported when a model is audited.
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
OUTPUT: Final = "mask_audits"  # what a worker of pytest-xdist hands over

Kept = list[Any]  # name, ok, a few words, the report as HTML or JSON: plain, to be sent around
KEPT: Final = pytest.StashKey[list[Kept]]()


class MaskAudit(Protocol):
    """What the fixture `mask_audit` is."""

    def __call__(
        self, model: Any, inputs: Any = None, *, check: bool = True, **options: Any
    ) -> AuditReport:
        """Audit a model; fail the test if it does not obey, unless `check` is False."""


@pytest.fixture
def mask_audit(request: pytest.FixtureRequest) -> MaskAudit:
    """Audit a model, and fail the test if it does not obey.

    Takes what `maskwright.audit` takes, and gives its report: mask_audit(model, inputs, expects=...).
    With check=False it only gives the report.
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
    """The option that names the file."""
    group = parser.getgroup("maskwright", "audits of attention masks")
    group.addoption(
        OPTION,
        metavar="PATH",
        help="write all reports of mask_audit to PATH, a page (.html) or data (.json)",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Make room for reports, if they are to be written."""
    path = _path(config)
    if path is None:
        return
    if path.suffix not in FORMS:
        raise pytest.UsageError(
            f"{OPTION}: {path.name} ends neither in .html nor in .json. Give it one of these endings."
        )
    config.stash[KEPT] = []


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    """Take what a worker of pytest-xdist kept; one that crashed has nothing to give."""
    kept = node.config.stash.get(KEPT, None)
    if kept is not None:
        kept += getattr(node, "workeroutput", {}).get(OUTPUT, [])


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Write the reports; a worker hands them over instead."""
    config = session.config
    kept, path = config.stash.get(KEPT, None), _path(config)
    if kept is None or path is None or config.getoption("collectonly"):
        return
    if hasattr(config, "workeroutput"):
        config.workeroutput[OUTPUT] = kept
        return
    from maskwright.core._atomic_write import write_atomic

    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, _as_page(kept) if path.suffix == ".html" else _as_json(kept))


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Say where the reports are."""
    kept = config.stash.get(KEPT, None)
    if kept is not None and not config.getoption("collectonly"):
        wrong = sum(not ok for _, ok, *_ in kept)
        told = f"{len(kept)} mask audits, {wrong} of models that do not obey"
        terminalreporter.write_line(f"{told}: {config.getoption(OPTION)}")


def _path(config: pytest.Config) -> Path | None:
    given = config.getoption(OPTION)
    return None if given is None else config.invocation_params.dir / given


def _keep(config: pytest.Config, name: str, report: AuditReport) -> None:
    kept, path = config.stash.get(KEPT, None), _path(config)
    if kept is None or path is None:
        return
    name = _free(name, (other for other, *_ in kept))
    if path.suffix == ".html":
        from maskwright.auditing.report_html import section_of

        kept.append(list(section_of(name, report)))
    else:
        kept.append([name, report.ok, report.expects, report.to_json()])


def _free(name: str, taken: Iterable[str]) -> str:
    """The name, with a number if another audit has it."""
    known = set(taken)
    names = (name if n == 1 else f"{name} ({n})" for n in range(1, len(known) + 2))
    return next(one for one in names if one not in known)


def _ordered(kept: list[Kept]) -> list[Kept]:
    """By name, whichever worker came first; none twice."""
    found: dict[str, Kept] = {}
    for name, *rest in sorted(kept, key=lambda one: str(one[0])):
        own = _free(name, found)
        found[own] = [own, *rest]
    return list(found.values())


def _as_page(kept: list[Kept]) -> str:
    from maskwright.auditing.report_html import Section, page_of

    return page_of([Section(*one) for one in _ordered(kept)])


def _as_json(kept: list[Kept]) -> str:
    audits = {name: json.loads(data) for name, *_, data in _ordered(kept)}
    ok = all(one["ok"] for one in audits.values())
    return json.dumps({"ok": ok, "audits": audits}, indent=2, ensure_ascii=False) + "\n"
