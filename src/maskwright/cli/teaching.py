"""Verbs for who wants to look around: the explorer page, and the tour."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated, Literal

from maskwright.cli.app import app
from maskwright.cli.front import typer


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
    from maskwright._optional_deps import require

    with require("explore"):
        from maskwright.explore.server import serve
    serve(port, open_browser, say=typer.echo)


@app.command(
    epilog="""Examples:

    maskwright tour

    maskwright tour --open

    maskwright tour --chapter 3 --lang zh"""
)
def tour(
    chapter: Annotated[
        int | None, typer.Option(help="Only this chapter; all of them if not given.")
    ] = None,
    lang: Annotated[Literal["en", "zh"], typer.Option(help="English, or Chinese (中文).")] = "en",
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Where the page goes; ./tour.html if not given."),
    ] = None,
    open_page: Annotated[
        bool, typer.Option("--open", help="Open the page in a browser in the end.")
    ] = False,
) -> None:
    """See what maskwright does, step by step, each with the code that did it.

    All of it takes less than a minute, and is written as a page, too. One chapter is written as a
    page only if --out or --open asks for it.
    """
    from maskwright.tour.guide import guide

    if out is None and (chapter is None or open_page):
        out = Path("tour.html" if chapter is None else f"tour-{chapter}.html")
    guide(typer.echo, chapter, lang, out)
    if open_page and out is not None:
        webbrowser.open(out.resolve().as_uri())
