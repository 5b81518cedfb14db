"""Output of commands to the terminal or to files: text, tables, JSON and pictures."""

from __future__ import annotations

import io
import json
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import typer

from maskwright._atomic_write import write_atomic
from maskwright.cli.errors import LANGUAGE, UsageError, writing
from maskwright.messages import Reason, render

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from maskwright.draw.scene import Scene


def write(content: str | bytes, output: Path | None = None) -> None:
    """Writes to the file, which is then named on standard error, or to standard output."""
    if output is None:
        if isinstance(content, bytes) and sys.stdout is not None and sys.stdout.isatty():
            raise UsageError("png_terminal")
        typer.echo(content, nl=isinstance(content, str))
        return
    with writing(output):
        write_atomic(output, content if isinstance(content, bytes) else content.rstrip() + "\n")
    typer.echo(render(Reason("cli.wrote", {"output": output}), LANGUAGE.get()), err=True)


def write_json(data: Any, output: Path | None = None) -> None:
    """Writes data as JSON."""
    write(json.dumps(data, indent=2, ensure_ascii=False), output)


def scene_text(scene: Scene, output: Path | None = None) -> str:
    """A picture as text, for the file or for the terminal with its width, colours and encoding."""
    from maskwright.draw.picture import picture
    from maskwright.draw.terminal import render

    if output is not None:
        return str(picture(scene, form="text"))
    encoding = getattr(sys.stdout, "encoding", None) or "ascii"
    return render(scene, unicode=encoding.lower().startswith("utf"))


def table(rows: Iterable[Sequence[str]], header: Sequence[str] = ()) -> str:
    """Text columns that fit the terminal. Only the first column is never wrapped.

    >>> print(table([("numpy", "a bool array"), ("jax", "a mask and is_causal")]))
    numpy  a bool array
    jax    a mask and is_causal
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows = list(rows)
    grid = Table(box=None, padding=(0, 2, 0, 0), show_header=bool(header), pad_edge=False)
    for number, name in enumerate(header or rows[0]):
        grid.add_column(name if header else "", no_wrap=number == 0, overflow="fold")
    for row in rows:
        grid.add_row(*map(Text, row))
    console = Console(file=io.StringIO(), color_system=None)
    with console.capture() as captured:
        console.print(grid)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


@contextmanager
def status(message: str) -> Iterator[Callable[[str], None]]:
    """Shows a spinner on standard error while the block runs, if that is a terminal.

    Yields a function that replaces the message.
    """
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield lambda _: None
        return
    with console.status(message) as spinner:
        yield lambda text: spinner.update(text)
