"""The tour: short chapters that show code, run it and print its output.

`chapters/NN-name.md` is a chapter in English and `chapters/NN-name.zh.md` in Chinese, with the
same code. To add a chapter, add both files; their order is that of their names.

A block ```` ```python ```` is run, and its output is shown as a notebook does. Its info string may
name packages, as in ```` ```python needs=torch,jax ````: if one is not installed, the block is
skipped. `run_tour` prints the chapters in the terminal and writes them as a page.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import platform
import time
from datetime import date
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from markdown_it import MarkdownIt
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer
from rich.console import Console
from rich.markdown import Markdown
from rich.padding import Padding
from rich.syntax import Syntax
from rich.text import Text

from maskwright._atomic_write import check_writable, write_atomic
from maskwright._optional_deps import EXTRAS
from maskwright.core.bound import BoundMask
from maskwright.draw import svg, terminal
from maskwright.draw.html import page
from maskwright.draw.picture import scene_from
from maskwright.draw.scene import Scene
from maskwright.draw.text import escape
from maskwright.errors import ArgumentError
from maskwright.messages import Reason, render

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER: Final = Path(__file__).parent / "chapters"
MAX_WIDTH: Final = 96  # columns of the terminal


class Block(NamedTuple):
    """A part of a chapter: Markdown, or code to run."""

    text: str
    is_code: bool = False
    needs: tuple[str, ...] = ()


class Chapter(NamedTuple):
    """A chapter: its number, title and blocks."""

    number: int
    title: str
    blocks: tuple[Block, ...]


def read_chapters(lang: str = "en") -> list[Chapter]:
    """Returns the chapters in a language, in the order of their file names.

    >>> [chapter.title for chapter in read_chapters()][:2]
    ['Write a mask', 'Draw it']
    """
    suffix = ".md" if lang == "en" else f".{lang}.md"
    paths = sorted(path for path in FOLDER.glob("*.md") if "".join(path.suffixes) == suffix)
    return [
        _parse_chapter(number, path.read_text(encoding="utf-8"))
        for number, path in enumerate(paths, start=1)
    ]


def _parse_chapter(number: int, text: str) -> Chapter:
    title, _, body = text.partition("\n")
    return Chapter(number, title.removeprefix("# "), tuple(_blocks(body)))


def _blocks(text: str) -> Iterator[Block]:
    lines = text.splitlines()
    start = 0
    for token in MarkdownIt().parse(text):
        if token.type == "fence" and token.level == 0 and token.map is not None:
            language, _, needs = token.info.partition(" needs=")
            if language == "python":
                yield Block("\n".join(lines[start : token.map[0]]).strip())
                yield Block(token.content.strip(), True, tuple(filter(None, needs.split(","))))
                start = token.map[1]
    yield Block("\n".join(lines[start:]).strip())


def run_tour(chapter: int | None = None, lang: str = "en", output: Path | None = None) -> None:
    """Runs one chapter or all, prints them, and writes them to an HTML page.

    Args:
        chapter: The number of a chapter. Default: all.
        lang: "en" or "zh".
        output: The file of the page. Default: no page.

    Raises:
        ArgumentError: If the chapter does not exist, or the page cannot be written.
    """
    chapters = read_chapters(lang)
    if chapter is not None:
        if not 1 <= chapter <= len(chapters):
            params = {"chapter": chapter, "count": len(chapters)}
            raise ArgumentError(render(Reason("tour.no_chapter", params), lang))
        chapters = [chapters[chapter - 1]]
    if output is not None:  # checked before the chapters run
        try:
            check_writable(output)
        except OSError as error:
            reason = Reason("tour.not_writable", {"path": output, "error": error.strerror})
            raise ArgumentError(render(reason, lang)) from error
    start = time.perf_counter()
    tour = _Tour(lang)
    for selected in chapters:
        tour.run(selected)
    if chapter is None:
        tour.console.print(tour.message("seconds", seconds=time.perf_counter() - start))
    if output is not None:
        write_atomic(output, tour.page(chapters))
        written = tour.message("written", path=output.resolve())
        tour.console.print(written, soft_wrap=True, highlight=False)


class _Tour:
    """Runs chapters, prints them, and collects their HTML."""

    def __init__(self, lang: str) -> None:
        self.lang = lang
        self.console = Console(highlight=False)
        self.console.width = min(self.console.width, MAX_WIDTH)
        self.html: list[str] = []

    def run(self, chapter: Chapter) -> None:
        """Shows each block of a chapter, and runs its code. The blocks share their variables."""
        self.console.print()
        self.console.rule(f"[bold]{chapter.number}. {chapter.title}", align="left", style="dim")
        self.console.print()
        self.html.append(
            f'<h2 id="{chapter.number}">{chapter.number}. {escape(chapter.title)}</h2>'
        )
        variables: dict[str, Any] = {"__name__": "tour", "lang": self.lang}
        for block in chapter.blocks:
            missing = [name for name in block.needs if find_spec(name) is None]
            if missing:
                self._skip(missing)
            elif block.is_code:
                self._code(block.text)
                for result in _run(block.text, variables):
                    self._result(result)
            elif block.text:
                self.console.print(Markdown(block.text))
                self.console.print()
                self.html.append(MarkdownIt().render(block.text))

    def message(self, name: str, **params: object) -> str:
        """A text of the tour in its language."""
        return render(Reason(f"tour.{name}", params), self.lang)

    def page(self, chapters: list[Chapter]) -> str:
        """The HTML page of what was run."""
        links = "".join(f'<li><a href="#{c.number}">{escape(c.title)}</a></li>\n' for c in chapters)
        packages = [n for n in ("maskwright", "numpy", "torch", "jax", "keras") if find_spec(n)]
        versions = [f"{name} {metadata.version(name)}" for name in packages]
        run = self.message(
            "run",
            when=date.today().isoformat(),
            versions=", ".join([f"Python {platform.python_version()}", *versions]),
            cores=os.cpu_count(),
        )
        body = "\n".join(self.html)
        title, contents = self.message("title"), self.message("contents")
        return page(
            title,
            f'<main>\n<h1>{title}</h1>\n<nav aria-label="{contents}">\n<ol>\n{links}'
            f"</ol>\n</nav>\n{body}\n<footer><p>{escape(run)}</p></footer>\n</main>",
            style=_style(),
            lang="zh-CN" if self.lang == "zh" else "en",
        )

    def _skip(self, missing: list[str]) -> None:
        extras = ",".join(sorted({EXTRAS[name] for name in missing}))
        text = self.message("skipped", packages=", ".join(missing), extras=extras)
        self.console.print(text, style="dim", soft_wrap=True, markup=False)
        self.console.print()
        self.html.append(f'<p class="skipped">{escape(text)}</p>')

    def _code(self, source: str) -> None:
        syntax = Syntax(
            source, "python", theme="ansi_dark", background_color="default", word_wrap=True
        )
        self.console.print(Padding(syntax, (0, 0, 1, 2)))
        coloured = highlight(source, PythonLexer(), HtmlFormatter(nowrap=True))
        self.html.append(f'<pre class="code" tabindex="0"><code>{coloured}</code></pre>')

    def _result(self, result: str | Scene) -> None:
        if isinstance(result, str):
            self.console.print(Text(result), soft_wrap=True)
            self.html.append(
                f'<pre class="output" tabindex="0"><samp>{escape(result)}</samp></pre>'
            )
        else:
            drawn = terminal.render(
                result, self.console.width, colour=self.console.color_system is not None
            )
            self.console.print(Text.from_ansi(drawn), soft_wrap=True)
            self.html.append(f'<div class="picture" tabindex="0">{svg.render(result)}</div>')
        self.console.print()


def _run(source: str, variables: dict[str, Any]) -> Iterator[str | Scene]:
    """Yields what the code prints, and the value of its last expression."""
    parsed = ast.parse(source)
    last = parsed.body.pop() if isinstance(parsed.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(parsed, "<tour>", "exec"), variables)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<tour>", "eval"), variables)
    if text := printed.getvalue().rstrip():
        yield text
    if isinstance(value, BoundMask | Scene):
        yield scene_from(value)
    elif value is not None:
        yield repr(value)


def _style() -> str:
    """The style of the page, with that of highlighted code in light and dark."""
    light, dark = (HtmlFormatter(style=name) for name in ("xcode", "github-dark"))
    code = f"{light.get_style_defs('pre.code')}\n@media (prefers-color-scheme: dark) {{\n"
    code += f"{dark.get_style_defs('pre.code')}\n}}\n"
    return code + Path(__file__).with_name("tour.css").read_text(encoding="utf-8")
