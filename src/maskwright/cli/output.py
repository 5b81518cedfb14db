"""Where an answer goes: to the terminal or a file, as text, JSON or a picture."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from maskwright._atomic_write import write_atomic
from maskwright.cli.front import typer
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from maskwright.draw.scene import Scene


def chosen_form(form: str | None, output: Path | None) -> str:
    """The form asked for, or the one that the file's ending tells."""
    from maskwright.draw.picture import ENDINGS

    if form is not None:
        return form
    if output is None:
        return "text"
    known = {**ENDINGS, ".json": "json"}
    ending = output.suffix.lower()
    if ending not in known:
        raise ArgumentError(
            f"{output}: the ending {ending or '(none)'} tells no format. "
            f"Use one of {' '.join(known)}, or pass --format."
        )
    return known[ending]


def give(
    scene: Callable[[], Scene],
    data: Callable[[], Any],
    form: str | None,
    output: Path | None,
    text: Callable[[], str] | None = None,
) -> None:
    """Write an answer in the form asked for; only that one is made."""
    chosen = chosen_form(form, output)
    if chosen == "json":
        emit(json.dumps(data(), indent=2, ensure_ascii=False), output)
    elif chosen == "text":
        emit(as_text(scene(), output) if text is None else text(), output)
    else:
        from maskwright.draw.picture import render

        emit(render(scene(), chosen), output)


def as_text(scene: Scene, output: Path | None = None) -> str:
    """A scene for the terminal, or for a file of text."""
    from maskwright.draw.picture import picture
    from maskwright.draw.terminal import render

    encoding = (sys.stdout.encoding or "ascii") if output is None else "utf-8"
    wide = encoding.lower().replace("-", "").startswith("utf")
    return render(scene, unicode=wide) if output is None else str(picture(scene, form="text"))


def emit(content: str | bytes, output: Path | None) -> None:
    """Write it to the file, whole or not at all; else to the terminal."""
    if output is not None:
        try:
            write_atomic(output, content if isinstance(content, bytes) else content.rstrip() + "\n")
        except OSError as error:
            raise ArgumentError(
                f"{output} can't be written: {error.strerror}. Name another file."
            ) from error
        return
    if isinstance(content, bytes) and sys.stdout.isatty():
        raise ArgumentError("A PNG is no text. Pass -o FILE, or send it on to another program.")
    typer.echo(content, nl=isinstance(content, str))


def text_or_json(verb: str, form: str | None, output: Path | None) -> str:
    """The form asked for, of a verb that has no picture."""
    chosen = chosen_form(form, output)
    if chosen not in ("text", "json"):
        raise ArgumentError(
            f"{verb} gives text or json, not {chosen}. Pass --format, or -o FILE.json."
        )
    return chosen


def progress(text: str) -> None:
    """A line for who is waiting: to stderr, and only on a terminal."""
    if sys.stderr.isatty():
        typer.echo(text, err=True)
