"""Pictures of masks, biases, walkthroughs and matrices in any format, and their display in notebooks."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from maskwright._atomic_write import write_atomic
from maskwright.bias.expr import Bias, BoundBias
from maskwright.core.bound import BoundMask
from maskwright.core.expr import Mask
from maskwright.draw.masks import difference_of, scene_of
from maskwright.draw.matrices import bias_scene, matrix_scene
from maskwright.draw.scene import Scene
from maskwright.draw.text import escape
from maskwright.draw.walkthrough import Walkthrough
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    Form = Literal["text", "svg", "png", "html"]

ENDINGS: Final = {".txt": "text", ".svg": "svg", ".png": "png", ".html": "html", ".htm": "html"}
FILE_WIDTH: Final = 100  # columns of a text file
NOTEBOOK_PLANES: Final = 4


def picture(
    what: Any,
    file: str | os.PathLike[str] | None = None,
    *,
    form: Form | None = None,
    **options: Any,
) -> str | bytes:
    """Draws a mask, a difference, a bias, a walkthrough or a matrix as SVG, PNG, HTML or text.

    The picture is also written to `file` if given. A notebook displays the result.

    Args:
        what: A bound mask; two of them, to draw their difference; a bound bias; a walkthrough; or a
            matrix, such as softmax weights or an influence.
        file: The file to write. Its ending decides the form.
        form: "text", "svg", "png" or "html". Default: by the ending of the file, else "svg".
        options: For masks: tokens, key_tokens, batch, head, view and max_cells. For biases:
            tokens, key_tokens, batch, head, mask (a bound mask that hides values) and digits. For
            matrices: title, note, hidden, rows, columns and digits. For walkthroughs: digits.

    Returns:
        The picture: str, or bytes of a PNG.

    >>> import maskwright as mw
    >>> mw.picture(mw.causal().on(8), tokens="a b c d e f g h".split())[:4]
    '<svg'
    >>> print(mw.picture((mw.causal().on(3), mw.window(back=1).on(3)), form="text"))
    causal() compared with window(back=1)
    3 queries × 3 keys; visible only in the first: 1, only in the second: 0
    <BLANKLINE>
    query ↓  key →
             0 1 2
          0  ██····
          1  ████··
          2  ▲▲████
    <BLANKLINE>
    ▲▲ only causal()   ██ visible in both   ·· masked
    """
    ending = ".svg" if file is None else Path(file).suffix.lower()
    if form is None and ending not in ENDINGS:
        raise ArgumentError(
            f"{file}: expected a file ending of {' '.join(ENDINGS)}, got {ending or 'none'}."
        )
    chosen = form or ENDINGS[ending]
    if file is not None and ENDINGS.get(ending, chosen) != chosen:
        raise ArgumentError(
            f"form={chosen!r} does not write {ending} files, and file is {file}. Omit form, or pass "
            "another file."
        )
    drawn = render(scene_from(what, **options), chosen)
    if file is not None:
        write_atomic(Path(file), drawn if isinstance(drawn, bytes) else drawn.rstrip() + "\n")
    return PngPicture(drawn) if isinstance(drawn, bytes) else TextPicture(drawn, chosen)


def scene_from(what: Any, **options: Any) -> Scene:
    """The scene of anything that `picture` draws."""
    if isinstance(what, Scene):
        return what
    if isinstance(what, Walkthrough):
        return what.scene(**options)
    if isinstance(what, BoundBias):
        return bias_scene(what, **options)
    if isinstance(what, (Mask, Bias)):
        raise ArgumentError(f"picture: {what!r:.60} has no sizes. Bind it to some: .on(8).")
    if isinstance(what, BoundMask):
        return scene_of(what, **options)
    if isinstance(what, (tuple, list)) and any(isinstance(part, BoundMask) for part in what):
        if len(what) != 2 or not all(isinstance(part, BoundMask) for part in what):
            kinds = ", ".join(type(part).__name__ for part in what)
            raise ArgumentError(
                f"picture: expected two bound masks, such as (a.on(8), b.on(8)), got {kinds}."
            )
        return difference_of(what[0], what[1], **options)
    return matrix_scene(what, **options)


def render(scene: Scene, form: str) -> str | bytes:
    """A scene in a form; text without colours."""
    from maskwright.draw import html, png, svg, terminal

    renderers: dict[str, Callable[[Scene], str | bytes]] = {
        "text": partial(terminal.render, width=FILE_WIDTH, colour=False),
        "svg": svg.render,
        "png": png.render,
        "html": html.render,
    }
    if form not in renderers:
        raise ArgumentError(f"form: expected one of {', '.join(renderers)}, got {form}.")
    return renderers[form](scene)


# ── notebooks ────────────────────────────────────────────────────────────────────────────────────


class TextPicture(str):
    """A picture as text, SVG or HTML, which a notebook displays.

    >>> import maskwright as mw
    >>> repr(mw.picture(mw.causal().on(4)))[:16]
    '<svg picture of '
    """

    form: str

    def __new__(cls, text: str, form: str) -> TextPicture:
        """A picture in this form."""
        self = super().__new__(cls, text)
        self.form = form
        return self

    def __repr__(self) -> str:
        return f"<{self.form} picture of {len(self):,} characters>"

    def _repr_svg_(self) -> str | None:
        return str(self) if self.form == "svg" else None

    def _repr_html_(self) -> str | None:
        if self.form == "text":
            return f"<pre>{escape(self)}</pre>"
        if self.form == "html":  # the page runs its script in a frame of its own
            page = escape(self)
            return (
                f'<iframe srcdoc="{page}" sandbox="allow-scripts allow-downloads" width="100%"'
                ' height="640" style="border:0"></iframe>'
            )
        return None


class PngPicture(bytes):
    """A PNG, which a notebook displays."""

    def __repr__(self) -> str:
        return f"<png picture of {len(self):,} bytes>"

    def _repr_png_(self) -> bytes:
        return bytes(self)


def notebook_svg(bound: BoundMask | BoundBias) -> str:
    """The SVG that a notebook displays of a bound mask or bias.

    >>> import maskwright as mw
    >>> mw.causal().on(4)._repr_svg_()[:4]
    '<svg'
    """
    from maskwright.draw import svg

    if isinstance(bound, BoundBias):
        return svg.render(bias_scene(bound))
    return svg.render(scene_of(bound, max_planes=NOTEBOOK_PLANES))


def notebook_html(what: BoundMask | tuple[BoundMask, BoundMask]) -> str:
    """The HTML that a notebook displays of a bound mask, or of the difference of two.

    >>> import maskwright as mw
    >>> "<details>" in mw.causal().on(4)._repr_html_()
    True
    """
    from maskwright.draw.html import fragment

    options = {"max_planes": NOTEBOOK_PLANES} if isinstance(what, BoundMask) else {}
    return fragment(scene_from(what, **options))
