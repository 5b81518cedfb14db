"""The picture as a file: SVG and PNG that other programs can read."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import TYPE_CHECKING
from xml.etree import ElementTree

from tests.explore.browser import expect

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from tests.explore.browser import Visit


def saved(page: Page, label: str) -> tuple[str, bytes]:
    with page.expect_download() as handed:
        page.get_by_role("button", name=label).click()
    return handed.value.suggested_filename, Path(handed.value.path()).read_bytes()


def test_the_svg_is_a_picture_of_the_mask_in_the_colours_of_the_page(visit: Visit) -> None:
    page = visit(expression="causal() & window(back=2)", text="I like <tea> & you", theme="light")
    files = []
    for theme in ("light", "dark"):
        page.get_by_role("combobox", name="Theme").select_option(theme)
        name, data = saved(page, "Download as SVG")
        assert name == "mask.svg"
        root = ElementTree.fromstring(data)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        words = "".join(root.itertext())
        for token in ("like", "<tea>", "causal() & window(back=2)"):
            assert token in words
        files.append(data)
    assert files[0] != files[1]
    expect(page.locator("#grid-error")).to_be_empty()


def test_the_png_is_whole(visit: Visit) -> None:
    page = visit(expression="causal()", text=None, size=4096)
    name, data = saved(page, "Download as PNG")
    assert name == "mask.png"
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    chunks = dict[bytes, bytes]()
    at = 8
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + length]
        (check,) = struct.unpack(">I", data[at + 8 + length : at + 12 + length])
        assert check == zlib.crc32(kind + body)
        chunks[kind] = chunks.get(kind, b"") + body
        at += 12 + length
    width, height = struct.unpack(">II", chunks[b"IHDR"][:8])
    assert min(width, height) > 100
    assert len(zlib.decompress(chunks[b"IDAT"])) > width * height
    assert b"IEND" in chunks
