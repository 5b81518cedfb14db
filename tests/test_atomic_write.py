from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from maskwright._atomic_write import write_atomic

if TYPE_CHECKING:
    from pathlib import Path


def test_a_half_written_file_replaces_nothing(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_atomic(path, "good")
    with pytest.raises(UnicodeEncodeError):
        write_atomic(path, "half\ud800")
    assert path.read_text() == "good"
    assert [file.name for file in tmp_path.iterdir()] == ["report.html"]
    write_atomic(path, "better")
    assert path.read_text() == "better"


def test_bytes_are_written_as_they_are(tmp_path: Path) -> None:
    write_atomic(tmp_path / "x", b"\x00\n")
    assert (tmp_path / "x").read_bytes() == b"\x00\n"
