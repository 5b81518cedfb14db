"""One function for all pictures: of a mask, of two, of a calculation, or of numbers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from maskwright._atomic_write import write_atomic
from maskwright.core.bound import BoundMask
from maskwright.core.expr import Mask
from maskwright.draw.masks import difference_of, scene_of
from maskwright.draw.numbers import matrix_scene
from maskwright.draw.scene import Scene
from maskwright.draw.walkthrough import Walkthrough
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    import os

    Form = Literal["text", "svg", "png", "html"]

ENDINGS: Final = {
    ".txt": "text",
    ".svg": "svg",
    ".png": "png",
    ".html": "html",
    ".htm": "html",
}
FILE_WIDTH: Final = 100  # of a text that goes to a file


def picture(
    what: Any,
    file: str | os.PathLike[str] | None = None,
    *,
    form: Form | None = None,
    **options: Any,
) -> str | bytes:
    """A picture as text, SVG, PNG or HTML; written to the file too, where one is given.

    Args:
        what: A bound mask; two of them, to see where they differ; a walkthrough; or an array of two
            axes, such as weights or an influence.
        file: Where to write it. Its ending tells the form, if that is not given.
        form: "text", "svg", "png" or "html"; "svg" if nothing tells it.
        options: Of a mask: tokens, key_tokens, batch, head, view and most. Of an array: title, note,
            hidden, rows, columns and digits.

    >>> import maskwright as mw
    >>> mw.picture(mw.causal().on(8), tokens="a b c d e f g h".split())[:4]
    '<svg'
    >>> print(mw.picture((mw.causal().on(3), mw.window(back=1).on(3)), form="text"))
    causal() against window(back=1)
    3 queries × 3 keys; only the first sees 1 cell, only the second 0
    <BLANKLINE>
    query ↓  key →
             0 1 2
          0  ██····
          1  ████··
          2  ▲▲████
    <BLANKLINE>
    ▲▲ only causal()   ██ both see it   ·· hidden
    """
    path = None if file is None else Path(file)
    drawn = render(scene_from(what, **options), form or form_of(path, "svg"))
    if path is not None:
        write_atomic(path, drawn if isinstance(drawn, bytes) else drawn.rstrip() + "\n")
    return drawn


def scene_from(what: Any, **options: Any) -> Scene:
    """The scene of whatever can be drawn."""
    if isinstance(what, Scene):
        return what
    if isinstance(what, Walkthrough):
        return what.scene(**options)
    if isinstance(what, Mask):
        raise ArgumentError(f"picture: {what!r:.60} has no size yet. Bind it to one: .on(8).")
    if isinstance(what, BoundMask):
        return scene_of(what, **options)
    if isinstance(what, (tuple, list)) and any(isinstance(one, BoundMask) for one in what):
        if len(what) != 2 or not all(isinstance(one, BoundMask) for one in what):
            raise ArgumentError(
                "picture: a difference is of two bound masks, and this is something else. "
                "Give (a.on(8), b.on(8))."
            )
        return difference_of(what[0], what[1], **options)
    return matrix_scene(what, **options)


def form_of(path: Path | None, otherwise: str) -> str:
    """What the ending of a file tells."""
    if path is None:
        return otherwise
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise ArgumentError(
            f"{path}: the ending {ending or '(none)'} tells no format. "
            f"Use one of {' '.join(ENDINGS)}, or say which."
        )
    return ENDINGS[ending]


def render(scene: Scene, form: str) -> str | bytes:
    """A scene in one of the forms; text without colours."""
    if form == "svg":
        from maskwright.draw import svg

        return svg.render(scene)
    if form == "html":
        from maskwright.draw import html

        return html.render(scene)
    if form == "png":
        from maskwright.draw import png

        return png.render(scene)
    if form != "text":
        raise ArgumentError(f"There is no form {form}. Give text, svg, png or html.")
    from maskwright.draw import terminal

    return terminal.render(scene, width=FILE_WIDTH, colour=False)
