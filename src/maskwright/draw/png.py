"""Scenes as PNG: the SVG of a scene, rasterised by resvg.

Text is drawn with the fonts in `fonts/`, a subset of DejaVu Sans, so that a picture is the same on
every machine. Characters that it lacks, such as Chinese, are drawn with installed fonts.
"""

from __future__ import annotations

import re
import struct
import warnings
import zlib
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from maskwright._optional_deps import require
from maskwright.draw import svg
from maskwright.draw.text import clean
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from maskwright.draw.scene import Scene

FAMILY: Final = "Maskwright Sans"  # the name of the subset
FONTS: Final = [str(path) for path in sorted((Path(__file__).parent / "fonts").glob("*.ttf"))]
OTHER_FAMILIES: Final = (
    "'Noto Sans CJK SC','Source Han Sans SC','PingFang SC','Hiragino Sans GB','Microsoft YaHei',"
    "'WenQuanYi Micro Hei','Noto Sans',sans-serif"
)
MAX_LISTED: Final = 8  # characters of a warning
NO_GLYPH: Final = "\U0010fffd"  # a private character, which no font has


def render(scene: Scene, theme: Literal["light", "dark"] = "light", scale: int = 2) -> bytes:
    r"""A scene as a PNG file. Its title and description are stored in the file as text.

    Args:
        scene: The scene.
        theme: "light" or "dark".
        scale: Pixels per SVG unit; 2 is right for most screens.

    Raises:
        MissingError: resvg-py is not installed.
        ArgumentError: The theme is unknown, or `scale` is not a positive integer.

    Warns:
        UserWarning: No installed font has a character. A box is drawn instead.

    >>> import numpy as np
    >>> from maskwright.draw.scene import Grid, Scene
    >>> render(Scene("causal()", (Grid(np.tri(3, dtype=np.uint8) * 2),)))[:4]
    b'\x89PNG'
    """
    if theme not in ("light", "dark"):
        raise ArgumentError(f'png: theme: expected "light" or "dark", got {theme!r}.')
    if scale < 1 or scale != int(scale):
        raise ArgumentError(f"png: scale: expected a positive integer, got {scale}.")
    text = svg.draw(scene, theme, tooltips=False).text
    text = re.sub(r"<(title|desc)\b.*?</\1>\n?", "", text, flags=re.DOTALL)
    text = text.translate(_CONTROL_PICTURES).replace(svg.FONT, FAMILY)
    uncovered = {c for c in set(text) if not c.isascii() and not _has_glyph(c, installed=False)}
    missing = sorted(c for c in uncovered if not _has_glyph(c, installed=True))
    if missing:
        listed = ", ".join(f"{c} (U+{ord(c):04X})" for c in missing[:MAX_LISTED])
        listed += ", …" if len(missing) > MAX_LISTED else ""
        warnings.warn(
            f"png: no installed font has {listed}; boxes are drawn instead. Install a font for "
            "them, such as Noto Sans CJK for Chinese.",
            stacklevel=2,
        )
    if uncovered:
        runs = f"[{re.escape(''.join(sorted(uncovered)))}]+"
        text = re.sub(runs, rf'<tspan font-family="{OTHER_FAMILIES}">\g<0></tspan>', text)
    data = _rasterise(text, installed=bool(uncovered), scale=int(scale))
    return _with_texts(data, {"Title": scene.title, "Description": scene.description})


def _rasterise(text: str, *, installed: bool, scale: int = 1) -> bytes:
    with require("png"):
        import resvg_py

    return bytes(
        resvg_py.svg_to_bytes(
            svg_string=text,
            zoom=scale,
            font_files=FONTS,
            font_family=FAMILY,
            skip_system_fonts=not installed,
        )
    )


def _has_glyph(character: str, *, installed: bool) -> bool:
    """Whether a font has the character: it is not drawn as the box for missing characters."""
    return _sample(character, installed) != _sample(NO_GLYPH, installed)


@cache
def _sample(character: str, installed: bool) -> bytes:
    families = OTHER_FAMILIES if installed else FAMILY
    return _rasterise(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="24" height="24"><text x="2" y="18" '
        f'font-family="{families}">&#{ord(character)};</text></svg>',
        installed=installed,
    )


def _with_texts(data: bytes, texts: dict[str, str]) -> bytes:
    """The PNG with iTXt chunks after its header."""
    header = 8 + 25  # signature and IHDR
    chunks = b""
    for key, text in texts.items():
        if text:
            chunk = b"iTXt" + key.encode() + b"\0\0\0\0\0" + clean(text).encode()
            chunks += struct.pack(">I", len(chunk) - 4) + chunk
            chunks += struct.pack(">I", zlib.crc32(chunk))
    return data[:header] + chunks + data[header:]


# The fonts have no control pictures.
_CONTROL_PICTURES: Final = {0x2400 + code: ascii(chr(code))[1:-1] for code in range(32)} | {
    0x2421: r"\x7f"
}
