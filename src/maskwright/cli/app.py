"""The program itself, before any verb."""

from __future__ import annotations

from typing import Annotated

from maskwright.cli.front import typer

HELP = """Attention masks for Transformers, said in one line and known exactly.

A mask is the set of (batch, head, query, key) cells in which a query may see a key.
Every query's row of it is a few intervals of keys.
"""

app = typer.Typer(
    help=HELP,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


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
