"""The typer app, and `main`, which runs it and turns errors into one sentence and an exit code."""

from __future__ import annotations

import io
import os
import sys
from typing import TYPE_CHECKING, Annotated, Final, NoReturn

import typer

from maskwright._optional_deps import missing
from maskwright.cli.errors import LANGUAGE, UsageError
from maskwright.cli.options import Function, expand_groups
from maskwright.errors import MaskError

if TYPE_CHECKING:
    from collections.abc import Callable

HELP = """Attention masks for Transformers: compose, visualise, convert, compute and verify them.

A mask is the set of (batch, head, query, key) cells in which the query attends to the key.
Each query row of that set is a short list of key intervals, called its spans.
A bias changes the scores inside that set. It never changes the set.
"""

PANELS: Final = {  # of `--help`, by module
    "inspect": "Show masks",
    "convert": "Convert and check masks",
    "attention": "Compute attention",
    "audit": "Check models",
    "apps": "Train models",
    "learn": "Learn",
}

app = typer.Typer(
    help=HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def command(*examples: str, name: str | None = None) -> Callable[[Function], Function]:
    """Registers a function as a command, by default of its own name; its help ends with examples."""
    lines = ["Examples:", *(f"    {example}" for example in examples)]

    def register(function: Function) -> Function:
        panel = PANELS[function.__module__.rpartition(".")[2]]
        epilog = "\n\n".join(lines)
        app.command(name, epilog=epilog, rich_help_panel=panel)(expand_groups(function))
        return function

    return register


def main() -> None:
    """Runs the command line.

    The exit code is 0 for success, 1 for findings, 2 for an error, and 130 after Ctrl-C.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # an ASCII terminal prints ? for other characters
            stream.reconfigure(errors="replace")
    before = LANGUAGE.set("en")  # until `--lang` is read
    try:
        app()
    except UsageError as error:
        _fail(error.translated())
    except MaskError as error:
        _fail(str(error))
    except ModuleNotFoundError as error:
        message = missing(sys.argv[1], error)
        if message is None:
            raise
        _fail(str(message))
    except RecursionError:
        _fail("the input is nested too deeply. Pass fewer levels of brackets.")
    except MemoryError:
        _fail("not enough memory. Pass smaller sizes, or a part of the mask.")
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:  # such as a full disk behind standard output
        # Python flushes the buffer once more at exit, and would print a traceback.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        place = error.filename or "standard output"
        _fail(f"{place}: {error.strerror or error}. Check the path and the disk.")
    finally:
        LANGUAGE.reset(before)


def _fail(message: str) -> NoReturn:
    print(f"maskwright: {message}", file=sys.stderr)
    sys.exit(2)


def _print_version(requested: bool) -> None:
    if requested:
        from maskwright import __version__

        typer.echo(f"maskwright {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Options before the command."""


root.__doc__ = HELP
