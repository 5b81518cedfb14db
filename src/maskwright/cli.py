"""The command line: a thin layer over the library. Anything heavy is imported where it is used."""

from __future__ import annotations

import re
from typing import Annotated

import typer

HELP = """Attention masks for Transformers, said in one line and known exactly.

A mask is the set of (batch, head, query, key) cells in which a query may see a key.
Every query's row of it is a few intervals of keys.
"""

FLAGS = {"q_len": "--size", "kv_len": "--keys", "q_start": "--q-start"}

app = typer.Typer(help=HELP, no_args_is_help=True, pretty_exceptions_enable=False)


def _print_version(wanted: bool) -> None:
    if wanted:
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
    """What stands before a verb."""


root.__doc__ = HELP


@app.command(
    epilog="""Examples:

    maskwright show "causal()"

    maskwright show "causal() & padding(lengths=[3, 5])" --size 5

    maskwright show "window(back=255) | keys(range(4))" --size 65536"""
)
def show(
    expression: Annotated[
        str, typer.Argument(help="A mask: atoms joined by & (and), | (or), ~ (not), - (and not).")
    ],
    size: Annotated[int, typer.Option("--size", "-n", help="How many queries.")] = 8,
    keys: Annotated[
        int | None, typer.Option(help="How many keys; as many as queries if not given.")
    ] = None,
    batch: Annotated[
        int | None, typer.Option(help="How many sequences; taken from the mask if not given.")
    ] = None,
    heads: Annotated[
        int | None, typer.Option(help="How many heads; taken from the mask if not given.")
    ] = None,
    q_start: Annotated[
        int | None,
        typer.Option(help="Position of the first query; by default the last sits at the last key."),
    ] = None,
) -> None:
    """Draw a mask: a row for each query, a column for each key, ■ may see, · may not.

    Atoms: everything, nothing, causal, window, padding, documents, prefix, chunks, stride, keys,
    queries, tree, graph, image, blocks, dense; and by_head, by_batch.
    """
    from maskwright import MaskError, parse

    try:
        text = str(parse(expression).on(size, keys, batch, heads, q_start))
    except MaskError as error:
        raise type(error)(_with_flags(str(error))) from None
    typer.echo(text)


def _with_flags(message: str) -> str:
    """The library's message, with its arguments named as the command line names them."""
    for argument, flag in FLAGS.items():
        message = re.sub(rf"\b(?:on: )?{argument}(=| )", rf"{flag} ", message)
    return message


@app.command(
    epilog="""Examples:

    maskwright tour

    maskwright tour --chapter 3"""
)
def tour(
    chapter: Annotated[
        int | None, typer.Option(help="Only this chapter; all of them if not given.")
    ] = None,
) -> None:
    """See what maskwright does, step by step, each with the code that did it."""
    from maskwright.tour import walk

    for line in walk(chapter):
        typer.echo(line)
