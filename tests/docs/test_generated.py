"""What the generators of docs/ read out of the code is what the code says."""

from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING

import pytest

import maskwright as mw
from benchmarks import figures, measure
from docs import commands, generate, lint_codes, packages, probes, tables
from maskwright.auditing.probes import PROBES
from maskwright.core.atoms import ATOMS
from maskwright.linting.codes import CODES

if TYPE_CHECKING:
    from pathlib import Path


def headings(text: str) -> list[str]:
    return re.findall(r"^### (.+)$", text, re.MULTILINE)


def test_every_probe_has_heading_in_order_of_asking() -> None:
    assert headings(probes.sections()) == list(PROBES)


def test_every_code_has_heading_and_example_that_has_it() -> None:
    text = lint_codes.sections()
    assert headings(text) == [code for code, entry in CODES.items() if entry.lint]
    for part in text.split("### ")[1:]:
        code = part.splitlines()[0]
        assert code in lint_codes.NOTES or f"\n{code}: " in part, code


def test_every_verb_is_reported() -> None:
    text = commands.sections()
    assert {"show", "lower", "lint", "audit", "train", "explore"} <= set(
        re.findall(r"^## (.+)$", text, re.MULTILINE)
    )
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    assert all(len(re.findall(r"(?<!\\)\|", row)) == 3 for row in rows)


def test_lines_of_picture_lead_to_every_import() -> None:
    lines = packages.steps()
    for package, others in packages.imports().items():
        reached, front = set(), {package}
        while front:
            front = {b for a, b in lines if a in front} - reached
            reached |= front
        assert others <= reached, package
        assert package not in reached


def test_page_without_markers_is_rejected() -> None:
    with pytest.raises(AssertionError, match="markers of atoms"):
        generate.filled("# Masks", "atoms", "| a table |")


def test_tables_of_functions_are_complete() -> None:
    public = {name for name in mw.__all__ if inspect.isfunction(getattr(mw, name))}
    listed = {name for names in tables.API.values() for name in names}
    assert public - set(ATOMS) - {"where"} == listed == set(tables.API_ZH)
    assert set(tables.TASKS_ZH) == set(tables.API)


def test_pages_are_current_and_show_all_results() -> None:
    stale = [path.name for path, text in generate.pages().items() if path.read_text() != text]
    assert stale == [], "run `make docs`"
    assert generate.unused_results() == []


SHOWN_ON = {  # beside docs/performance.md and pages that show only this result
    "attention": {"README.md", "README.zh-CN.md", "docs/images/performance.svg"},
    "language": {"docs/apps.md", "docs/lessons/zh/08-training-and-generation.md"},
    "training": {"docs/apps.md"},
    "variants": {"docs/attention.md"},
}


@pytest.mark.parametrize("name", sorted(path.stem for path in measure.results()))
def test_missing_result_is_an_error_that_names_all_pages(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in measure.results():
        if path.stem != name:
            (tmp_path / path.name).symlink_to(path)
    monkeypatch.setattr(figures, "RESULTS", tmp_path)
    with pytest.raises(figures.MissingResultError) as raised:
        generate.pages()
    pages, _, said = str(raised.value).partition(": ")
    assert all((generate.HERE.parent / page).is_file() for page in pages.split(", "))
    assert set(pages.split(", ")) >= SHOWN_ON.get(name, set())
    command = figures.COMMANDS.get(name, name)
    assert f"results/{name}.json" in said
    assert f"python -m benchmarks {command}`" in said


def test_pages_are_computed_from_whatever_was_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    seconds = {"avx2": 1.0, "blocks": 2.5, "sdpa": 1.0}
    cell = {"mask": "causal", "mode": figures.FORWARD, "threads": 1, "tokens": 8, "shares": seconds}
    monkeypatch.setattr(figures, "load", lambda _: {"cells": [{**cell, "seconds": seconds}]})
    assert "2.5 (causal)" in tables.without_kernel()
    del seconds["blocks"]
    assert "not measured" in tables.without_kernel()
