"""A scene as an SVG: one file without script, for papers, pages and notebooks.

This is the page: what stands where. One grid is drawn by `svg_grid`, coloured by `svg_ink`.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from maskwright.draw.palette import DARK, LIGHT
from maskwright.draw.scene import Kind, Scene
from maskwright.draw.svg_box import Box
from maskwright.draw.svg_grid import Place, draw_grid
from maskwright.draw.svg_ink import OWN, PATTERNS, Ink, patterns
from maskwright.draw.svg_text import cut, escape, short, text_width, visible, wrap
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

Wish = Literal["auto", "light", "dark"]

FONT: Final = (
    "system-ui,-apple-system,'Segoe UI','Helvetica Neue',Arial,'Noto Sans','PingFang SC',"
    "'Microsoft YaHei',sans-serif"
)
PAGE, MARGIN, GAP = 780, 16, 28  # how wide a row of grids may be; around all; between grids
SIDES = {1: 440, 2: 300}  # how long a grid's side is, by how many grids there are
SIDE = 220  # with more of them
MOST_TOOLTIPS = 1024  # cells of all grids that say what they are


class Picture(NamedTuple):
    """An SVG, with what a page around it must know."""

    text: str
    name: str  # its id
    style: str
    places: tuple[Place, ...]
    width: float


def render(scene: Scene, theme: Wish = "auto") -> str:
    """A scene as a standalone SVG; "auto" is light or dark as its reader's system is.

    >>> import maskwright as mw
    >>> from maskwright.draw import svg
    >>> from maskwright.draw.masks import scene_of
    >>> picture = svg.render(scene_of(mw.causal().on(4)))
    >>> picture[:4], "<title" in picture, "<script" in picture
    ('<svg', True, False)
    """
    return draw(scene, theme).text


def draw(scene: Scene, theme: Wish = "auto", *, tooltips: bool = True) -> Picture:
    """A scene as an SVG, and where its cells are.

    >>> import maskwright as mw
    >>> from maskwright.draw import svg
    >>> from maskwright.draw.masks import scene_of
    >>> svg.draw(scene_of(mw.causal().on(4))).places[0].wide
    34.0
    """
    if theme not in ("auto", "light", "dark"):
        raise ArgumentError(f'theme={theme!r} is not known. Give "auto", "light" or "dark".')
    colours = DARK if theme == "dark" else LIGHT
    side = SIDES.get(len(scene.grids), SIDE)
    boxes = [Box(grid, side) for grid in scene.grids]
    lines = list(_flow(boxes))
    width = max([280.0, *(_extent(line) for line in lines)])
    width = max(width, min(480.0, text_width(scene.title, 15, bold=True)))
    ink = Ink(colours)
    tooltips = tooltips and sum(grid.kinds.size for grid in scene.grids) <= MOST_TOOLTIPS
    body, y = [], float(MARGIN)
    for line in wrap(scene.title, 15, width, bold=True):
        y += 19
        body.append(ink.text(MARGIN, y - 4, line, "text", 15, extra=' font-weight="600"'))
    for line in wrap(scene.note, 11.5, width):
        y += 16
        body.append(ink.text(MARGIN, y - 3, line, "faint", 11.5))
    y += 10
    places: dict[int, Place] = {}
    for row in lines:
        x, top = float(MARGIN), max(box.top for box in row)
        for box in row:
            place = Place(x + box.left, y + top, box.wide, box.tall)
            places[id(box)] = place
            body.append(draw_grid(box, place, ink, tooltips))
            x += box.width + GAP
        y += top + max(box.height for box in row) + 18
    legend, y = _legend(scene, ink, y, width)
    body += legend
    return _document(scene, theme, ink, "\n".join(body), width, y, [places[id(b)] for b in boxes])


def _document(
    scene: Scene,
    theme: Wish,
    ink: Ink,
    body: str,
    width: float,
    height: float,
    places: Sequence[Place],
) -> Picture:
    width, height = round(width + 2 * MARGIN), round(height + MARGIN - 6)
    said = f"{theme}{scene.title}{scene.description}{body}".encode("utf-8", "replace")
    name = "mw" + hashlib.sha256(said).hexdigest()[:8]
    body = patterns(ink, body) + body
    style = f"#{name}{{max-width:100%;height:auto}}"
    if theme == "auto":
        style += f"@media (prefers-color-scheme:dark){{{ink.rules(name, DARK, body)}}}"
    text = (
        f'<svg xmlns="http://www.w3.org/2000/svg" id="{name}" width="{width}" height="{height}"'
        f' viewBox="0 0 {width} {height}" role="img" aria-labelledby="{name}-t {name}-d"'
        f' font-family="{FONT}">\n'
        f'<title id="{name}-t">{escape(scene.title)}</title>\n'
        f'<desc id="{name}-d">{escape(scene.description)}</desc>\n'
        f"<style>{style}</style>\n"
        f'<rect width="{width}" height="{height}" rx="6" {ink.of("ground")}/>\n'
        f"{body.replace(OWN, name)}\n</svg>\n"
    )
    return Picture(text, name, style, tuple(places), width)


def _flow(boxes: Sequence[Box]) -> Iterator[list[Box]]:
    """Rows of grids, none wider than the page unless one grid alone is."""
    line: list[Box] = []
    for box in boxes:
        if line and _extent([*line, box]) > PAGE:
            yield line
            line = []
        line.append(box)
    if line:
        yield line


def _extent(line: Sequence[Box]) -> float:
    return sum(box.width for box in line) + GAP * (len(line) - 1)


def _legend(scene: Scene, ink: Ink, y: float, width: float) -> tuple[list[str], float]:
    drawn, x = [], 0.0
    for entry in scene.legend:
        text = cut(visible(entry.text), 11.5, width - 24)
        needs = 22 + text_width(text, 11.5)
        if x and x + needs > width:
            x, y = 0.0, y + 20
        spot = f'x="{short(MARGIN + x)}" y="{short(y)}" width="14" height="14"'
        drawn.append(f"<rect {spot} {ink.of('k0')}/>")
        if entry.kind != Kind.HIDDEN:
            faint = ' fill-opacity=".5"' if entry.kind == Kind.SOME else ""
            drawn.append(f"<rect {spot} {ink.of(f'k{entry.kind.value}')}{faint}/>")
        if entry.kind in PATTERNS:
            drawn.append(f'<rect {spot} fill="url(#{OWN}-{entry.kind.value})"/>')
        drawn.append(f'<rect {spot} fill="none" {ink.of("line")}/>')
        drawn.append(ink.text(MARGIN + x + 20, y + 11, text, "faint", 11.5, full=entry.text))
        x += needs + 18
    return drawn, y + (20 if scene.legend else 0)
