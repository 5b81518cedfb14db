"""HTML pages: the frame of every page, and scenes as pages whose cells can be inspected.

Pages are self-contained: they load nothing, and their content security policy allows no script but
their own. What they show is data in them, never markup.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from itertools import groupby
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING, Any, Final

from maskwright.draw import svg
from maskwright.draw.palette import DARK, LIGHT, Theme
from maskwright.draw.text import clean, escape

if TYPE_CHECKING:
    from maskwright.draw.scene import Grid, Scene


def render(scene: Scene) -> str:
    """A scene as a self-contained HTML page.

    >>> import maskwright as mw
    >>> from maskwright.draw import html
    >>> from maskwright.draw.masks import scene_of
    >>> page = html.render(scene_of(mw.causal().on(4)))
    >>> page.splitlines()[0], "query 0" in page
    ('<!doctype html>', True)
    """
    picture = svg.draw(scene, tooltips=False)
    grids = [
        {**data_of(grid), **place._asdict()}
        for grid, place in zip(scene.grids, picture.places, strict=True)
    ]
    body = _fill(
        "mask_page.html",
        title=escape(scene.title),
        picture=picture.text,
        text=escape(scene.description or scene.title),
        data=_as_data(grids),
    )
    return page(scene.title, body, style=_read("mask_page.css"), script=_read("mask_page.js"))


def fragment(scene: Scene) -> str:
    """A scene as a piece of HTML without script, for notebooks: an SVG and its text alternative."""
    return (
        f"<div>\n{svg.render(scene)}<details><summary>As text</summary>"
        f"<p>{escape(scene.description)}</p></details>\n</div>"
    )


def page(title: str, body: str, *, style: str = "", script: str = "", lang: str = "en") -> str:
    """A self-contained HTML page, light or dark as its reader's system is.

    Its content security policy forbids every request and every script but `script`.

    Args:
        title: Its title, as text.
        body: Its content, as HTML. Escape text with `maskwright.draw.text.escape`.
        style: CSS after the style that all pages share. It may use the variables --ground, --text,
            --faint, --line, --accent, --box, --link, --good and --bad.
        script: JavaScript to run after the body.
        lang: Language of its content: "en", "zh-CN".

    >>> from maskwright.draw.html import page
    >>> "<title>a &amp; b</title>" in page("a & b", "<p>text</p>")
    True
    """
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    scripts = f"script-src 'sha256-{digest}'; " if script else ""
    policy = (  # pictures have styles of their own, which cannot load anything
        f"default-src 'none'; {scripts}style-src 'unsafe-inline'; base-uri 'none'; "
        "form-action 'none'"
    )
    return _fill(
        "page.html",
        lang=lang,
        policy=policy,
        title=escape(title),
        style=STYLE + style,
        body=body,
        script=f"<script>{script}</script>" if script else "",
    )


def data_of(grid: Grid) -> dict[str, Any]:
    """The texts of a grid's cells, for the script of a page.

    The text of a cell is `rows[i], columns[j]: kinds[k]`, as in `Grid.describe_cell`. `runs` has a
    list for each row: the number of cells, the index k of their text, and so on.

    >>> import maskwright as mw
    >>> from maskwright.draw.html import data_of
    >>> from maskwright.draw.masks import scene_of
    >>> data = data_of(scene_of(mw.causal().on(2)).grids[0])
    >>> data["rows"], data["kinds"], data["runs"]
    (['query 0', 'query 1'], ['visible', 'masked'], [[1, 0, 1, 1], [2, 0]])
    """
    rows, columns = grid.shape
    texts: dict[str, int] = {}
    runs = []
    for row in range(rows):
        kinds = (texts.setdefault(grid.describe_kind(row, c), len(texts)) for c in range(columns))
        runs.append([n for index, run in groupby(kinds) for n in (len([*run]), index)])
    return {
        "rows": [clean(grid.describe_axis(0, row)) for row in range(rows)],
        "columns": [clean(grid.describe_axis(1, column)) for column in range(columns)],
        "kinds": [clean(text) for text in texts],
        "runs": runs,
        "title": clean(grid.title),
    }


def _read(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")


def _fill(name: str, **texts: str) -> str:
    """A template in this folder, with texts in place of its names."""
    return Template(_read(name)).substitute(texts)


def _as_data(value: object) -> str:
    """JSON that cannot end the script element that contains it, nor open a comment."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return re.sub("[<>&\u2028\u2029]", lambda match: f"\\u{ord(match[0]):04x}", text)


def _colours(theme: Theme, **extra: str) -> str:
    colours = {**theme._asdict(), **extra}
    del colours["kinds"]
    return f":root{{{';'.join(f'--{name}:{value}' for name, value in colours.items())}}}"


STYLE: Final = (  # of every page
    _colours(LIGHT, box="#f3f5f7", link="#0a4da3", good="#0f5c27", bad="#9b1022")
    + "@media (prefers-color-scheme:dark){"
    + _colours(DARK, box="#1a2129", link="#8cc0ff", good="#6fd08c", bad="#ff9aa5")
    + "}\n"
    + _read("page.css")
)
