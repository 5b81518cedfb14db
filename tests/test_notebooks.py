"""Every notebook runs from top to bottom, and shows what it was kept with."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import nbformat
import pytest

from notebooks.run import HERE, NOTEBOOKS, run

if TYPE_CHECKING:
    from pathlib import Path

VARIES = "varies"  # the tag of a cell whose output depends on the machine


def shown(cell: Any) -> list[str]:
    """What a cell shows: its text, its pictures, and the names of its other forms."""
    parts = []
    for output in cell.outputs:
        if output.output_type == "stream":
            parts.append(output.text)
            continue
        data = output.data
        parts.append(data["text/plain"])
        parts += [data[form] for form in ("image/svg+xml", "text/html") if form in data]
    return parts


def code_cells(notebook: Any) -> list[Any]:
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_outputs_are_current(path: Path) -> None:
    kept = nbformat.read(path, as_version=4)
    nbformat.validate(kept)
    for old, new in zip(code_cells(kept), code_cells(run(path)), strict=True):
        if VARIES in old.metadata.get("tags", ()):
            assert bool(shown(old)) == bool(shown(new))
        else:
            assert shown(old) == shown(new), f"{old.source}\nRun: make notebooks"


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_cells_are_short_and_links_exist(path: Path) -> None:
    cells = nbformat.read(path, as_version=4).cells
    assert cells[0].source.startswith("# ")
    assert all(len(cell.source.splitlines()) <= 24 for cell in cells)
    text = "\n".join(cell.source for cell in cells if cell.cell_type == "markdown")
    for link in re.findall(r"\]\(([^)#]+)\)", text):
        assert (HERE / link).exists(), link


def test_there_are_three() -> None:
    assert {path.stem for path in NOTEBOOKS} == {"first-steps", "find-the-leak", "pack-and-train"}
