"""The guide tells all, and its page is whole or not there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import maskwright as mw
from maskwright.tour.guide import guide

if TYPE_CHECKING:
    from pathlib import Path


def test_a_chapter_and_its_page(tmp_path: Path) -> None:
    lines: list[str] = []
    guide(lines.append, 3, "zh", tmp_path / "page.html")
    assert lines[1].startswith("── 3. 问一问：这一格为什么看不到 ──")
    assert lines[-1] == f"同样的内容也写成了网页：{tmp_path / 'page.html'}"
    page = (tmp_path / "page.html").read_text()
    assert '<html lang="zh-CN">' in page
    assert f"maskwright {mw.__version__}" in page


def test_no_page_is_written_that_nobody_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    guide(lambda _: None, 3)
    assert not list(tmp_path.iterdir())


def test_a_walk_that_is_cut_short_leaves_the_old_page(tmp_path: Path) -> None:
    page = tmp_path / "tour.html"
    page.write_text("the old one")

    def stop(line: str) -> None:
        if "why" in line:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        guide(stop, 3, "en", page)
    assert page.read_text() == "the old one"
    assert [path.name for path in tmp_path.iterdir()] == ["tour.html"]


@pytest.mark.parametrize("where", ["nowhere/tour.html", "."])
def test_a_place_that_takes_no_page_is_told_first(tmp_path: Path, where: str) -> None:
    lines: list[str] = []
    with pytest.raises(mw.ArgumentError, match="can't be written"):
        guide(lines.append, 3, "en", tmp_path / where)
    assert lines == []
