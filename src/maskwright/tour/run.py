"""The walk: chapters become steps, and code is run just after it is shown."""

from __future__ import annotations

import ast
import contextlib
import io
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from maskwright._optional_deps import EXTRAS
from maskwright.core.bound import BoundMask
from maskwright.draw.picture import scene_from
from maskwright.draw.scene import Scene
from maskwright.errors import ArgumentError
from maskwright.tour.chapter import Text
from maskwright.tour.chapters import CHAPTERS
from maskwright.tour.steps import Code, Commands, Heading, Missing, Output, Picture, Words

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from maskwright.tour.chapter import Cell, Chapter, Language
    from maskwright.tour.steps import Step

LEFT_OUT: Final = Text(
    "Left out, for {missing} not installed. Run: pip install 'maskwright[{extras}]'",
    "没有安装 {missing}，先跳过。请运行：pip install 'maskwright[{extras}]'",
)


def walk(
    chapter: int | None = None,
    language: Language = "en",
    chapters: Sequence[Chapter] = CHAPTERS,
) -> Iterator[Step]:
    """The steps of one chapter, or of all. Every chapter stands alone.

    >>> from maskwright.tour.run import walk
    >>> heading, *_, output, after = walk(chapter=3)
    >>> heading.title, output.text[:31]
    ('Ask why a cell is hidden', 'query 0 does not attend to key ')
    """
    if chapter is not None and not 1 <= chapter <= len(chapters):
        raise ArgumentError(
            f"tour: there is no chapter {chapter}. Give a number from 1 to {len(chapters)}."
        )
    for number, part in enumerate(chapters, start=1):
        if chapter in (None, number):
            yield Heading(number, part.title.in_language(language))
            yield from _said(part.words, language)
            yield from _cells(part.cells, language)
            if part.commands:
                yield Commands(
                    tuple((said, text.in_language(language)) for said, text in part.commands)
                )


def _cells(cells: Sequence[Cell], language: Language) -> Iterator[Step]:
    names: dict[str, Any] = {"__name__": "tour"}
    told: set[str] = set()
    for cell in cells:
        missing = [name for name in cell.needs if find_spec(name) is None]
        if missing:
            if not told.issuperset(missing):
                yield Missing(_left_out(missing, language))
            told.update(missing)
            continue
        yield from _said(cell.before, language)
        source = cell.code.strip()
        yield Code(source)
        yield from _run(source, names)
        yield from _said(cell.after, language)


def _said(text: Text, language: Language) -> Iterator[Step]:
    if text.en:
        yield Words(text.in_language(language))


def _left_out(missing: Sequence[str], language: Language) -> str:
    extras = ",".join(sorted({EXTRAS[name] for name in missing}))
    joined = ("、" if language == "zh" else ", ").join(missing)
    if language == "en":
        joined += " is" if len(missing) == 1 else " are"
    return LEFT_OUT.in_language(language).format(missing=joined, extras=extras)


def _run(source: str, names: dict[str, Any]) -> Iterator[Step]:
    """What the code prints, and the value of a last expression, as a notebook shows it."""
    parsed = ast.parse(source)
    last = parsed.body.pop() if isinstance(parsed.body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(parsed, "<tour>", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<tour>", "eval"), names)
    if text := printed.getvalue().rstrip():
        yield Output(text)
    if isinstance(value, BoundMask | Scene):
        yield Picture(scene_from(value))
    elif value is not None:
        yield Output(repr(value))
