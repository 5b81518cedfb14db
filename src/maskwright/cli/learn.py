"""Commands to learn with: `explore`, the interactive page, and `tour`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from maskwright.cli import options as opt
from maskwright.cli.main import command


@command("maskwright explore", "maskwright explore --port 9000 --no-open")
def explore(
    port: Annotated[int | None, opt.option("Port. Default: 8765, or a free one.")] = None,
    open_browser: Annotated[
        bool, opt.option("Open the page in a browser.", "--open/--no-open")
    ] = True,
) -> None:
    """Start the explorer: a local page that draws and calculates masks as you type."""
    from maskwright._optional_deps import require

    with require("explore"):
        from maskwright.explore.app import serve
    serve(port, open_browser, echo=typer.echo)


@command("maskwright tour", "maskwright tour --open", "maskwright tour --chapter 3 --lang zh")
def tour(
    chapter: Annotated[int | None, opt.option("Only this chapter.")] = None,
    lang: opt.Lang = "en",
    output: Annotated[
        Path | None, opt.option("The page. Default: tour.html.", "--output", "-o", metavar="FILE")
    ] = None,
    open_page: Annotated[bool, opt.option("Open the page in a browser.", "--open")] = False,
) -> None:
    """Show what maskwright does, chapter by chapter, with the code and its output.

    Runs all chapters in about a minute, and writes them to tour.html too. With --chapter, the page
    is written only if --output or --open is given.
    """
    import webbrowser

    from maskwright.tour import run_tour

    if output is not None:
        opt.choose_format(None, output, ("html",))
    if output is None and (chapter is None or open_page):
        output = Path("tour.html" if chapter is None else f"tour-{chapter}.html")
    run_tour(chapter, lang, output)
    if open_page and output is not None:
        webbrowser.open(output.resolve().as_uri())
