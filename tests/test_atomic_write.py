from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from maskwright._atomic_write import complete_folder, replace_folder, write_atomic

if TYPE_CHECKING:
    from pathlib import Path


def test_half_written_file_replaces_nothing(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_atomic(path, "good")
    with pytest.raises(UnicodeEncodeError):
        write_atomic(path, "half\ud800")
    assert path.read_text() == "good"
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]
    write_atomic(path, "better")
    assert path.read_text() == "better"


def test_bytes_are_written_unchanged(tmp_path: Path) -> None:
    write_atomic(tmp_path / "x", b"\x00\n")
    assert (tmp_path / "x").read_bytes() == b"\x00\n"


def test_folder_is_replaced_when_it_is_complete(tmp_path: Path) -> None:
    folder = tmp_path / "last"
    for text in ("first", "second"):
        with replace_folder(folder) as fresh:
            (fresh / "x").write_text(text)
        assert (folder / "x").read_text() == text
    with pytest.raises(UnicodeEncodeError), replace_folder(folder) as fresh:
        (fresh / "x").write_text("half\ud800")
    assert (folder / "x").read_text() == "second"
    assert [path.name for path in tmp_path.iterdir()] == ["last"]


def test_previous_folder_is_found_when_replacement_was_interrupted(tmp_path: Path) -> None:
    folder = tmp_path / "last"
    assert complete_folder(folder) is None
    (tmp_path / "last.old").mkdir()
    assert complete_folder(folder) == tmp_path / "last.old"
    with replace_folder(folder):
        pass
    assert complete_folder(folder) == folder
    assert [path.name for path in tmp_path.iterdir()] == ["last"]
