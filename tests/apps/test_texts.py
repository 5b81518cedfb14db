from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import maskwright as mw
from maskwright.apps.texts import read_pairs

if TYPE_CHECKING:
    from pathlib import Path


def test_pairs_are_read_and_blank_lines_left_out(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("\n".join(f"one {n}\teins {n}\n" for n in range(20)))
    assert read_pairs(path)[1] == ("one 1", "eins 1")
    assert len(read_pairs(path)) == 20


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("a b\n", "line 1: 'a b' is no pair. Put a tab between"),
        ("a\tb\n\tc\n", "line 2"),
        ("a\tb\n", "1 pairs, and 20 are the least"),
    ],
)
def test_bad_pairs_are_one_sentence(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text(content)
    with pytest.raises(mw.ArgumentError, match=says):
        read_pairs(path)
