"""Steps as one page of HTML that stands alone: no script, and nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
from typing import TYPE_CHECKING

from maskwright.draw import svg
from maskwright.draw.svg_text import escape
from maskwright.tour import words
from maskwright.tour.page_style import STYLE
from maskwright.tour.source import lines_of
from maskwright.tour.steps import Code, Commands, Heading, Missing, Output, Picture, Words

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from maskwright.draw.scene import Scene
    from maskwright.tour.chapter import Language, Text
    from maskwright.tour.steps import Step

READABLE = 0.62  # a picture may shrink to this share of its width, and is scrolled beyond


def page_of(steps: Sequence[Step], language: Language, measured: str = "") -> str:
    """All steps as a page; `measured` says where and with what they were run.

    >>> from maskwright.tour.page import page_of
    >>> from maskwright.tour.steps import Code, Heading
    >>> page = page_of([Heading(1, "Say a mask"), Code("import maskwright")], "en")
    >>> page.splitlines()[0], '<section id="chapter-1"' in page
    ('<!doctype html>', True)
    """
    return _Page(language).whole(steps, measured)


class _Page:
    """The page while it is made: it keeps the styles that its pictures bring."""

    def __init__(self, language: Language) -> None:
        self.language: Language = language
        self.styles: list[str] = []  # of the pictures
        self.widths: list[str] = []

    def whole(self, steps: Sequence[Step], measured: str) -> str:
        chapters = "\n".join(map(self._chapter, _chapters(steps)))
        headings = [step for step in steps if isinstance(step, Heading)]
        style = STYLE + "".join(self.widths)
        hashes = " ".join(map(_hash, [style, *self.styles]))
        policy = f"default-src 'none'; style-src {hashes}; base-uri 'none'; form-action 'none'"
        title, language = self._says(words.TITLE), "zh-CN" if self.language == "zh" else "en"
        links = "\n".join(
            f'<li value="{number}"><a href="#chapter-{number}">{escape(name)}</a></li>'
            for number, name in headings
        )
        return f"""<!doctype html>
<html lang="{language}">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<a class="skip" href="#chapters">{self._says(words.SKIP)}</a>
<header>
<h1>{title}</h1>
<p class="theory">{self._says(words.THEORY)}</p>
<nav aria-labelledby="contents">
<h2 id="contents">{self._says(words.CONTENTS)}</h2>
<ol>
{links}
</ol>
</nav>
</header>
<main id="chapters" tabindex="-1">
{chapters}
</main>
<footer>
<p>{escape(measured)}</p>
</footer>
</body>
</html>
"""

    def _chapter(self, steps: Sequence[Step]) -> str:
        body = "\n".join(map(self._draw, steps))
        heading = steps[0]
        assert isinstance(heading, Heading)
        name = f"chapter-{heading.number}"
        back = f'<p class="back"><a href="#contents">{self._says(words.BACK)}</a></p>'
        return f'<section id="{name}" aria-labelledby="{name}-title">\n{body}\n{back}\n</section>'

    def _draw(self, step: Step) -> str:
        match step:
            case Heading(number, title):
                return f'<h2 id="chapter-{number}-title">{number}. {escape(title)}</h2>'
            case Words(text):
                return f"<p>{escape(text)}</p>"
            case Code(source):
                return self._box("code", words.CODE, f"<code>{_coloured(source)}</code>")
            case Output(text):
                return self._box("output", words.OUTPUT, f"<samp>{escape(text)}</samp>")
            case Picture(scene):
                return self._picture(scene)
            case Missing(text):
                return f'<p class="missing">{escape(text)}</p>'
            case Commands(rows):
                return self._commands(rows)

    def _box(self, kind: str, name: Text, inside: str) -> str:
        label = f'role="group" aria-label="{self._says(name)}"'
        return f'<pre class="{kind}" lang="en" tabindex="0" {label}>{inside}</pre>'

    def _picture(self, scene: Scene) -> str:
        drawn = svg.draw(scene)
        self.styles.append(drawn.style)
        self.widths.append(f"#{drawn.name}{{min-width:{drawn.width * READABLE:.0f}px}}\n")
        label = f'role="group" aria-label="{self._says(words.PICTURE)}"'
        said = f"<summary>{self._says(words.IN_WORDS)}</summary>"
        return (
            f'<div class="picture" lang="en" tabindex="0" {label}>\n{drawn.text}</div>\n'
            f'<details>{said}<p lang="en">{escape(scene.description)}</p></details>'
        )

    def _commands(self, rows: Iterable[tuple[str, str]]) -> str:
        body = "\n".join(
            f"<dt>{escape(answer)}</dt>\n<dd><code>{escape(command)}</code></dd>"
            for command, answer in rows
        )
        return f"<dl>\n{body}\n</dl>"

    def _says(self, text: Text) -> str:
        return escape(text.in_language(self.language))


def _chapters(steps: Sequence[Step]) -> list[list[Step]]:
    """The steps of each chapter, its heading first."""
    found: list[list[Step]] = []
    for step in steps:
        if isinstance(step, Heading):
            found.append([])
        found[-1].append(step)
    return found


def _coloured(source: str) -> str:
    return "\n".join(
        "".join(
            escape(part.text)
            if part.kind == "plain"
            else f'<span class="{part.kind}">{escape(part.text)}</span>'
            for part in line
        )
        for line in lines_of(source)
    )


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
