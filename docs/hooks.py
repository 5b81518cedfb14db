"""Hooks of mkdocs: small corrections of the generated HTML."""

from __future__ import annotations

import re
from typing import Any

CODE = re.compile(r"<code>[^<]*</code>")
NOTE = re.compile(r'\s*<span class="c1"># doctest: [^<]*</span>')


def on_page_content(html: str, **_: Any) -> str:
    """Removes doctest directives, and the backslash before a bar in code, which only GitHub needs."""
    html = NOTE.sub("", html.replace("&lt;BLANKLINE&gt;", ""))
    return CODE.sub(lambda code: code[0].replace("\\|", "|"), html)


def on_post_page(output: str, *, page: Any, **_: Any) -> str:
    """Sets the language of the Chinese pages."""
    if "/zh/" in page.file.src_uri:
        return output.replace('<html lang="en"', '<html lang="zh-CN"', 1)
    return output
