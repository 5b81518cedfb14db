"""What a notebook shows: few planes, no script, and text where a picture would be too large."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET

import maskwright as mw
from maskwright.draw.notebook import html_of, svg_of

SVG = "{http://www.w3.org/2000/svg}"


def heads(count: int, size: int = 8) -> mw.BoundMask:
    return mw.by_head([mw.window(back=back) for back in range(count)]).on(size)


def titles_of(text: str) -> list[str]:
    said = [node.text or "" for node in ET.fromstring(text).iter(f"{SVG}text")]
    return [words for words in said if words.startswith("head")]


def test_four_planes_are_shown_and_the_others_counted() -> None:
    assert titles_of(svg_of(heads(4))) == [f"head {head}" for head in range(4)]
    assert "not drawn" not in svg_of(heads(4))
    text = svg_of(heads(6))
    assert titles_of(text) == [f"head {head}" for head in range(4)]
    assert "2 more batch rows and heads are not drawn" in text


def test_a_note_tells_of_tiles_and_of_planes_left_out() -> None:
    note = "; 2 more batch rows and heads are not drawn; a sign is 2 × 2 cells"
    assert note in html_of(heads(6, 512))


def test_the_words_unfold_below_the_picture() -> None:
    bound = mw.causal().on(3)
    picture, words = html_of(bound).split("<details>")
    assert picture == f"<div>\n{svg_of(bound)}"
    assert "<summary>In words</summary>" in words
    assert "query 1 sees keys 0 to 1" in words
    assert "<script" not in html_of(heads(6))


def test_a_bound_mask_shows_itself() -> None:
    bound = heads(6)
    assert bound._repr_svg_() == svg_of(bound)
    assert bound._repr_html_() == html_of(bound)


def test_a_mask_too_large_for_a_picture_has_none() -> None:
    bound = mw.keys(range(0, 64, 2)).on(2**20)
    assert bound._repr_svg_() is None
    assert bound._repr_html_() is None


def test_numpy_is_all_that_a_notebook_needs() -> None:
    code = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(('wcwidth', 'matplotlib', 'torch')))\n"
        "import maskwright as mw\n"
        "bound = mw.causal().on(4)\n"
        "assert '<svg' in bound._repr_svg_()\n"
        "assert 'In words' in bound._repr_html_()\n"
        "from maskwright.draw import html\n"
        "from maskwright.draw.masks import scene_of\n"
        "assert '<html' in html.render(scene_of(bound, tokens=['注', 'e\u0301', '👩', '']))\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
