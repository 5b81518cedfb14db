"""Verbs for who wants to look around: the explorer page, and the tour."""

from __future__ import annotations

from typing import Annotated

import typer

from maskwright.cli.app import app


@app.command(
    epilog="""Examples:

    maskwright explore

    maskwright explore --port 9000 --no-open"""
)
def explore(
    port: Annotated[
        int | None, typer.Option(help="The port; 8765, or a free one, if not given.")
    ] = None,
    open_browser: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page in a browser.")
    ] = True,
) -> None:
    """Start the explorer page on this machine: masks, drawn and calculated as you type."""
    from maskwright import MissingError

    try:
        from maskwright.explore.server import serve
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in ("starlette", "uvicorn"):
            raise
        fix = "Run: pip install 'maskwright[explore]'"
        raise MissingError(f"explore: {missing} is not installed. {fix}") from error
    serve(port, open_browser, say=typer.echo)


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
