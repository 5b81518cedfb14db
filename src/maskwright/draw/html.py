"""A scene as a page that stands alone: every cell says what it is, by mouse, finger or keys.

The page asks nobody for anything. It runs its own script and style and, by its content policy,
no other; what it was given is data in it, never markup.
"""

from __future__ import annotations

import base64
import hashlib
import json
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maskwright.draw import svg
from maskwright.draw.palette import DARK, LIGHT
from maskwright.draw.svg_text import escape
from maskwright.draw.tokens import clean

if TYPE_CHECKING:
    from maskwright.draw.palette import Theme
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
    held = [
        {**data_of(grid), **place._asdict()}
        for grid, place in zip(scene.grids, picture.places, strict=True)
    ]
    policy = (
        f"default-src 'none'; script-src {_hash(SCRIPT)}; "
        f"style-src {_hash(STYLE)} {_hash(picture.style)}; base-uri 'none'; form-action 'none'"
    )
    keys = "Arrow keys, Home and End go from cell to cell, Page Up and Page Down between grids."
    body = f"""<main>
<div id="picture" tabindex="0" role="application" aria-label="{escape(scene.title)}. {keys}">
{picture.text}</div>
<p id="cell" aria-live="polite">Point at a cell, tap it, or use the arrow keys.</p>
<p><button id="copy" type="button">Copy SVG</button> <button id="save" type="button">Save SVG</button>
<span id="done" role="status"></span></p>
<details>
<summary>In words</summary>
<p>{escape(scene.description or scene.title)}</p>
<p>{keys}</p>
</details>
</main>
<script type="application/json" id="data">{_as_data(held)}</script>
<script>{SCRIPT}</script>"""
    return page(scene.title, body, style=STYLE, policy=policy)


def page(title: str, body: str, *, style: str, policy: str, lang: str = "en") -> str:
    """A self-contained HTML page.

    Args:
        title: Its title, as text.
        body: Its content, as HTML.
        style: Its style sheet.
        policy: Its content security policy.
        lang: The language of its content.

    >>> from maskwright.draw.html import THEME, page
    >>> "<title>a &amp; b</title>" in page("a & b", "", style=THEME, policy="default-src 'none'")
    True
    """
    return f"""<!doctype html>
<html lang="{lang}">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>{style}</style>
</head>
<body>
{body}
</body>
</html>
"""


def data_of(grid: Grid) -> dict[str, Any]:
    """What a grid says of its cells: the places along both axes, and runs of equal words.

    A cell's sentence is `rows[i], columns[j]: words[w]`, as `Grid.says` has it. `runs` has a list
    for every row: how many cells, which words, and so on.

    >>> import maskwright as mw
    >>> from maskwright.draw.html import data_of
    >>> from maskwright.draw.masks import scene_of
    >>> data = data_of(scene_of(mw.causal().on(2)).grids[0])
    >>> data["rows"], data["words"], data["runs"]
    (['query 0', 'query 1'], ['seen', 'hidden'], [[1, 0, 1, 1], [2, 0]])
    """
    rows, columns = grid.shape
    across = [grid.place(0, row) for row in range(rows)]
    along = [grid.place(1, column) for column in range(columns)]
    known: dict[Any, int] = {}  # what decides a cell's words, and which words these are
    words: dict[str, int] = {}
    runs = []
    for row in range(rows):
        found = np.empty(columns, np.int64)
        for column in range(columns):
            cause = _cause(grid, row, column)
            if cause not in known:
                said = grid.says(row, column).removeprefix(f"{across[row]}, {along[column]}: ")
                known[cause] = words.setdefault(clean(said), len(words))
            found[column] = known[cause]
        starts = [0, *(np.flatnonzero(np.diff(found)) + 1).tolist()] if columns else []
        stops = [*starts[1:], columns]
        pairs = zip(starts, stops, strict=False)
        runs.append([n for start, stop in pairs for n in (stop - start, int(found[start]))])
    return {
        "rows": [clean(place) for place in across],
        "columns": [clean(place) for place in along],
        "words": list(words),
        "runs": runs,
        "title": clean(grid.title),
    }


def _cause(grid: Grid, row: int, column: int) -> tuple[Any, ...]:
    text = None if grid.texts is None else grid.texts[row][column]
    shade = None if grid.shades is None else float(grid.shades[row, column])
    return int(grid.kinds[row, column]), text, shade


def _as_data(held: object) -> str:
    """JSON that can't end the script element it stands in, nor open a comment there."""
    text = json.dumps(held, ensure_ascii=False, separators=(",", ":"))
    for sign in "<>&\u2028\u2029":
        text = text.replace(sign, f"\\u{ord(sign):04x}")
    return text


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _colours(theme: Theme) -> str:
    return (
        f":root{{--ground:{theme.ground};--text:{theme.text};--faint:{theme.faint};"
        f"--line:{theme.line};--mark:{theme.outline}}}"
    )


THEME: Final = (  # the colours and the font of every page
    f"""
{_colours(LIGHT)}
@media (prefers-color-scheme:dark){{{_colours(DARK)}}}
"""
    + """
body{margin:0;background:var(--ground);color:var(--text);
font:15px/1.5 system-ui,-apple-system,"Segoe UI","Helvetica Neue",Arial,sans-serif}
"""
)
STYLE: Final = (
    THEME
    + """main{max-width:56rem;margin:0 auto;padding:.5rem}
#picture{overflow:auto;border-radius:6px;touch-action:pan-x pan-y}
#picture:focus-visible,button:focus-visible,summary:focus-visible{outline:2px solid var(--mark);
outline-offset:2px}
#picture svg{display:block;min-width:var(--least,0)}
#cursor{fill:none;stroke:var(--mark);stroke-width:2.5;pointer-events:none}
#cell{position:sticky;bottom:0;margin:0;padding:.6rem .5rem;min-height:1.5em;
background:var(--ground);border-top:1px solid var(--line);overflow-wrap:anywhere}
p,details{margin:.6rem .5rem;overflow-wrap:anywhere}
button{font:inherit;min-height:2.75rem;padding:.25rem .9rem;color:var(--text);
background:transparent;border:1px solid var(--line);border-radius:6px;cursor:pointer}
button:hover{border-color:var(--faint)}
summary{cursor:pointer;padding:.5rem 0}
#done{color:var(--faint)}
@media print{#cell,button{display:none}}
"""
)

SCRIPT: Final = """
"use strict";
const grids = JSON.parse(document.getElementById("data").textContent);
const box = document.getElementById("picture");
const picture = box.querySelector("svg");
const line = document.getElementById("cell");
const source = new XMLSerializer().serializeToString(picture) + "\\n";
const name = picture.querySelector("title").textContent;

// The browser would show the picture's title over every cell; it stays as its label.
picture.setAttribute("aria-label", name);
picture.removeAttribute("aria-labelledby");
picture.querySelector("title").remove();
box.style.setProperty("--least", 0.6 * picture.getAttribute("width") + "px");

const cursor = document.createElementNS(picture.namespaceURI, "rect");
cursor.id = "cursor";
cursor.setAttribute("visibility", "hidden");
picture.append(cursor);
let at = null;

function says(grid, row, column) {
  const runs = grid.runs[row];
  let i = 0;
  for (let left = column; left >= runs[i]; i += 2) left -= runs[i];
  const place = grid.rows[row] + ", " + grid.columns[column];
  return (grid.title ? grid.title + ", " : "") + place + ": " + grid.words[runs[i + 1]];
}

function show(number, row, column) {
  const grid = grids[number];
  at = [number, row, column];
  const width = Math.max(grid.wide, 7), height = Math.max(grid.tall, 7);  // else none could see it
  const sizes = {x: grid.x + (column + 0.5) * grid.wide - width / 2,
    y: grid.y + (row + 0.5) * grid.tall - height / 2, width, height};
  for (const key in sizes) cursor.setAttribute(key, sizes[key]);
  cursor.setAttribute("visibility", "visible");
  line.textContent = says(grid, row, column);
}

function point(event) {
  const spot = new DOMPoint(event.clientX, event.clientY)
    .matrixTransform(picture.getScreenCTM().inverse());
  grids.forEach((grid, number) => {
    const row = Math.floor((spot.y - grid.y) / grid.tall);
    const column = Math.floor((spot.x - grid.x) / grid.wide);
    if (row < 0 || column < 0 || row >= grid.rows.length || column >= grid.columns.length) return;
    if (!at || at[0] !== number || at[1] !== row || at[2] !== column) show(number, row, column);
  });
}

function move(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const ways = {ArrowUp: [0, -1, 0], ArrowDown: [0, 1, 0], ArrowLeft: [0, 0, -1],
    ArrowRight: [0, 0, 1], Home: [0, 0, -Infinity], End: [0, 0, Infinity],
    PageUp: [-1, 0, 0], PageDown: [1, 0, 0]};
  const way = ways[event.key];
  const first = grids.findIndex((grid) => grid.rows.length && grid.columns.length);
  if (!way || first < 0) return;
  event.preventDefault();
  if (!at) return show(first, 0, 0);
  const within = (value, count) => Math.min(Math.max(value, 0), count - 1);
  let number = within(at[0] + way[0], grids.length);
  if (!grids[number].rows.length || !grids[number].columns.length) number = at[0];
  const grid = grids[number];
  show(number, within(at[1] + way[1], grid.rows.length),
    within(at[2] + way[2], grid.columns.length));
  const edge = cursor.getBoundingClientRect(), room = box.getBoundingClientRect();
  if (edge.right > room.right) box.scrollLeft += edge.right - room.right + 8;
  if (edge.left < room.left) box.scrollLeft -= room.left - edge.left + 8;
  cursor.scrollIntoView({block: "nearest", inline: "nearest"});
}

function done(text) {
  document.getElementById("done").textContent = text;
}

async function copy() {
  try {
    await navigator.clipboard.writeText(source);
  } catch {
    const field = document.createElement("textarea");
    field.value = source;
    document.body.append(field);
    field.select();
    const copied = document.execCommand("copy");
    field.remove();
    if (!copied) return done("The browser does not let the page copy; save the picture instead.");
  }
  done("Copied.");
}

function save() {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([source], {type: "image/svg+xml"}));
  link.download = "mask.svg";
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  done("Saved as mask.svg.");
}

box.addEventListener("pointermove", point);
box.addEventListener("click", point);
box.addEventListener("keydown", move);
document.getElementById("copy").addEventListener("click", copy);
document.getElementById("save").addEventListener("click", save);
"""
