"""What a notebook shows of a bound mask: a small picture, and the same in words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maskwright.draw import svg
from maskwright.draw.masks import scene_of
from maskwright.draw.svg_text import escape

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask

MOST_PLANES = 4


def svg_of(bound: BoundMask) -> str:
    """A bound mask as an SVG of at most four planes.

    >>> import maskwright as mw
    >>> from maskwright.draw.notebook import svg_of
    >>> svg_of(mw.causal().on(4))[:4]
    '<svg'
    """
    return svg.render(scene_of(bound, planes=MOST_PLANES))


def html_of(bound: BoundMask) -> str:
    """A bound mask as a piece of HTML without script: the picture, and its words to unfold.

    >>> import maskwright as mw
    >>> from maskwright.draw.notebook import html_of
    >>> "In words" in html_of(mw.causal().on(4))
    True
    """
    scene = scene_of(bound, planes=MOST_PLANES)
    words = escape(scene.description)
    return (
        f"<div>\n{svg.render(scene)}"
        f"<details><summary>In words</summary><p>{words}</p></details>\n</div>"
    )
