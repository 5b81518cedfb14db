"""Generates the parts of docs/ and README that come from the code: `python -m docs.generate`.

Two comments mark where a generated part begins and ends. A test compares the pages with the code and
the results of the benchmarks, from which all measured figures come.
"""

from __future__ import annotations

import re
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks import chart, figures, gpu, measure, report
from benchmarks.figures import MissingResultError
from benchmarks.staleness import NoHistoryError, stale_results
from conformance import report as conformance
from docs import commands, lint_codes, packages, probes, tables
from maskwright._atomic_write import write_atomic

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
PARTS: dict[str, dict[str, Callable[[], str]]] = {
    "masks.md": {"atoms": tables.atoms, "recipes": tables.recipes},
    "targets.md": {"overview": tables.target_overview, "targets": tables.target_sections},
    "../README.md": {"headline": tables.headline, "performance": tables.performance},
    "../README.zh-CN.md": {"headline": tables.headline_zh, "performance": tables.performance_zh},
    "reference/functions.md": {"functions": tables.api},
    "lint-codes.md": {"codes": lint_codes.sections},
    "probes.md": {"probes": probes.sections, "causes": probes.causes},
    "audit.md": {"cost": tables.audit_cost},
    "attention.md": {"without-kernel": tables.without_kernel},
    "apps.md": {"training": tables.training, "language": tables.language_results},
    "lessons/08-training-and-generation.md": {"language": tables.language_en},
    "lessons/zh/08-training-and-generation.md": {"language": tables.language_zh},
    "parallel.md": {
        part: partial(tables.layouts, part) for part in ("balance", "traffic", "large")
    },
    "gpu.md": {"compiled": gpu.compiled, "roofline": gpu.roofline},
    "lessons/12-changing-scores.md": {"extrapolation": tables.extrapolation_en},
    "lessons/zh/12-changing-scores.md": {"extrapolation": tables.extrapolation_zh},
    "design.md": {"packages": packages.table},
    "reference/command-line.md": {"verbs": commands.sections},
}


WHOLE: dict[str, Callable[[], str]] = {
    "conformance.md": lambda: conformance.page(conformance.load()),
    "images/packages.svg": packages.picture,
    "images/performance.svg": lambda: chart.chart(figures.load("attention")),
    "performance.md": lambda: report.page(**{name: figures.load(name) for name in report.RESULTS}),
}


def pages() -> dict[Path, str]:
    """The current contents of all files with generated parts.

    Raises:
        MissingResultError: Result files are missing; it names each, and all pages that show it.
    """
    figures.loaded.clear()
    made: dict[Path, str] = {}
    missing: dict[str, list[str]] = {}
    for name in (*WHOLE, *PARTS):
        page = (HERE / name).resolve()
        try:
            made[page] = WHOLE[name]() if name in WHOLE else _with_parts(page, PARTS[name])
        except MissingResultError as error:
            missing.setdefault(str(error), []).append(str(page.relative_to(HERE.parent)))
    if missing:
        raise MissingResultError(
            "\n".join(f"{', '.join(names)}: {what}" for what, names in missing.items())
        )
    return made


def _with_parts(page: Path, parts: dict[str, Callable[[], str]]) -> str:
    text = page.read_text()
    for part, make in parts.items():
        text = filled(text, part, make())
    return text


def unused_results() -> list[str]:
    """The names of results that no page of the last call of `pages` shows."""
    return sorted({path.stem for path in measure.results()} - figures.loaded)


def filled(text: str, name: str, content: str, by: str = "docs") -> str:
    """The text with the part between its markers replaced; `by` is the make target."""
    begin, end = f"<!-- {name}: made by `make {by}` -->", f"<!-- end of {name} -->"
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    assert pattern.search(text), f"the markers of {name} are missing"
    return pattern.sub(lambda _: f"{begin}\n{content}\n{end}", text)


def main() -> int:
    """Write all pages, with a warning for results that are older than the code they measure."""
    try:
        made = pages()
    except MissingResultError as error:
        print(error)
        return 1
    for page, content in made.items():
        write_atomic(page, content)
    try:
        problems = stale_results()
    except NoHistoryError as error:
        problems = [str(error)]
    for problem in problems:
        print(f"warning: {problem}", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
