"""Options that several commands share.

Options that set an argument of the library bear its name (`--kv-len` is `kv_len`), so that the
library's messages apply to the command line as they are.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from maskwright._atomic_write import check_writable
from maskwright.cli.errors import LANGUAGE, UsageError, writing

SUFFIXES: Final = {
    ".txt": "text",
    ".json": "json",
    ".svg": "svg",
    ".png": "png",
    ".html": "html",
    ".xml": "junit",
    ".sarif": "sarif",
    ".sarif.json": "sarif",
}
# The formats that a command can write
TEXT: Final = ("text", "json")
REPORT: Final = ("text", "json", "html", "junit", "sarif")
CURVES: Final = ("text", "json", "svg", "png")
PICTURE: Final = ("text", "json", "svg", "png", "html")


def complete_expression(incomplete: str) -> list[str]:
    """Returns the completions of an expression: the atoms that begin with its last word."""
    from maskwright.core.atoms import ATOMS

    head, word = re.fullmatch(r"(.*?)(\w*)", incomplete, re.DOTALL).groups()  # type: ignore[union-attr]
    names = [*sorted(ATOMS), "by_batch", "by_head"]
    return [f"{head}{name}(" for name in names if name.startswith(word)]


def choose_format(requested: str | None, output: Path | None, formats: tuple[str, ...]) -> str:
    """Returns the output format: the requested one, or that of the file's suffix, or text.

    Raises:
        UsageError: If it is none of `formats`, which the command can write; if the file's suffix is
            that of another format; or if the file cannot be written.

    >>> choose_format(None, Path("report.json"), TEXT)
    'json'
    >>> choose_format(None, Path("audit.sarif.json"), REPORT)
    'sarif'
    >>> choose_format(None, Path("report.svg"), TEXT)
    Traceback (most recent call last):
    maskwright.cli.errors.UsageError: --output report.svg: expected a name that ends in one of .txt, .json.
    """
    if requested is not None and requested not in formats:
        raise UsageError("format", format=requested, known=", ".join(formats))
    if output is None:
        return requested or "text"
    suffix, by_suffix = _format_of(output, formats)
    if requested is None and by_suffix not in formats:
        known = (suffix for suffix, name in SUFFIXES.items() if name in formats)
        raise UsageError("suffix", output=output, known=", ".join(known))
    if requested is not None and by_suffix not in (None, requested):
        raise UsageError("contradiction", format=requested, output=output, suffix=suffix)
    check_output(output)
    return requested or str(by_suffix)


def _format_of(output: Path, formats: tuple[str, ...]) -> tuple[str, str | None]:
    """The suffix of a file and its format: one of `formats` if there is one, else any, or None."""
    end = "".join(output.suffixes)
    fits = [
        (end[-len(suffix) :], name)
        for suffix, name in SUFFIXES.items()
        if end.lower().endswith(suffix)
    ]
    known = [fit for fit in fits if fit[1] in formats] or fits
    return max(known, key=lambda fit: len(fit[0]), default=(output.suffix, None))


def check_output(output: Path) -> None:
    """Checks that the file can be written, before its content is computed.

    Raises:
        UsageError: If it cannot.
    """
    with writing(output):
        check_writable(output)


def _file(formats: tuple[str, ...]) -> Any:
    suffixes = ", ".join(suffix for suffix, name in SUFFIXES.items() if name in formats)
    return typer.Option("--output", "-o", metavar="FILE", help=f"Write to FILE: {suffixes}.")


_FORMAT = typer.Option(
    "--format", "-f", help="Output format. Default: by the suffix of FILE, or text."
)

# masks and their sizes
Expression = Annotated[
    str,
    typer.Argument(
        help="A mask: atoms combined by & (and), | (or), ~ (not), - (and not).",
        autocompletion=complete_expression,
    ),
]
Size = Annotated[
    int | None,
    typer.Option(
        "--size", "--q-len", "-n", min=1, help="Number of queries. Default: 8, or the tokens."
    ),
]
KvLen = Annotated[
    int | None, typer.Option(min=0, help="Number of keys. Default: the number of queries.")
]
Batch = Annotated[int | None, typer.Option(min=1, help="Batch size. Default: that of the mask.")]
Heads = Annotated[
    int | None, typer.Option(min=1, help="Number of heads. Default: that of the mask.")
]
QStart = Annotated[
    int | None,
    typer.Option(help="Position of the first query. Default: the last query is at the last key."),
]
Tokens = Annotated[
    str | None,
    typer.Option("--tokens", "-t", help='A sentence that labels the axes: "I like tea".'),
]
BatchRow = Annotated[
    int | None, typer.Option(min=0, help="Only this batch row. Default: all that differ.")
]
HeadIndex = Annotated[int | None, typer.Option("--head", min=0, help="Only this head.")]

# models
Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="module:attribute, a model or a function that returns a model or (model, inputs); or "
        "hf:PATH, a local checkpoint or config of transformers.",
    ),
]
Length = Annotated[int, typer.Option("--length", "-n", min=1, help="Sequence length.")]
BatchSize = Annotated[
    int | None, typer.Option("--batch", min=1, help="Batch size. Default: that of the mask, or 2.")
]
VocabSize = Annotated[
    int | None, typer.Option(min=1, help="Number of ids. Default: that of the model's embedding.")
]
PadId = Annotated[int | None, typer.Option(help="Padding id, if ids mark the padding.")]
Seed = Annotated[int, typer.Option(help="Random seed.")]


# output
def _set_language(lang: str) -> str:
    LANGUAGE.set(lang)
    return lang


Lang = Annotated[
    Literal["en", "zh"],
    typer.Option(help="Language: English or Chinese.", is_eager=True, callback=_set_language),
]
TextFormat = Annotated[Literal["text", "json"] | None, _FORMAT]
ReportFormat = Annotated[Literal["text", "json", "html", "junit", "sarif"] | None, _FORMAT]
PictureFormat = Annotated[Literal["text", "json", "svg", "png", "html"] | None, _FORMAT]
TextFile = Annotated[Path | None, _file(TEXT)]
ReportFile = Annotated[Path | None, _file(REPORT)]
CurvesFile = Annotated[Path | None, _file(CURVES)]
PictureFile = Annotated[Path | None, _file(PICTURE)]
