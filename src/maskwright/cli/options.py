"""Options that several verbs share, and the library's errors with arguments named by their flags."""

from __future__ import annotations

import re
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from maskwright.cli.front import typer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

FLAGS = {"q_len": "--size", "kv_len": "--keys", "q_start": "--q-start"}
MODEL_FLAGS = {
    **dict.fromkeys(("q_len", "kv_len", "length"), "--length"),
    **{name: f"--{name}" for name in ("batch", "vocabulary", "layers")},
    "pad_id": "--pad-id",
}


def complete_expression(incomplete: str) -> list[str]:
    """What a half-written mask may go on with: the atoms that begin as its last word does."""
    from maskwright.core.atoms import ATOMS

    head, word = re.fullmatch(r"(.*?)(\w*)", incomplete, re.DOTALL).groups()  # type: ignore[union-attr]
    names = [*sorted(ATOMS), "by_batch", "by_head"]
    return [f"{head}{name}(" for name in names if name.startswith(word)]


Expression = Annotated[
    str,
    typer.Argument(
        help="A mask: atoms joined by & (and), | (or), ~ (not), - (and not).",
        autocompletion=complete_expression,
    ),
]
Size = Annotated[
    int | None, typer.Option("--size", "-n", help="How many queries; 8, or the tokens.")
]
Keys = Annotated[int | None, typer.Option(help="How many keys; as many as queries if not given.")]
Batch = Annotated[
    int | None, typer.Option(help="How many sequences; taken from the mask if not given.")
]
Heads = Annotated[
    int | None, typer.Option(help="How many heads; taken from the mask if not given.")
]
QStart = Annotated[
    int | None,
    typer.Option(help="Position of the first query; by default the last sits at the last key."),
]
Tokens = Annotated[
    str | None, typer.Option("--tokens", "-t", help='Tokens to write beside it: "I like tea".')
]
BatchRow = Annotated[
    int | None, typer.Option(help="Only this sequence; all that differ if not given.")
]
HeadNumber = Annotated[int | None, typer.Option("--head", help="Only this head.")]

Form = Annotated[
    Literal["text", "json", "svg", "png", "html"] | None,
    typer.Option(
        "--format", "-f", help="What to give; by the file's ending if not given, or text."
    ),
]
TextForm = Annotated[
    Literal["text", "json"] | None,
    typer.Option("--format", "-f", help="What to give; text if not given."),
]
Lang = Annotated[Literal["en", "zh"], typer.Option(help="English, or Chinese (中文).")]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Write it to a file: .txt .json .svg .png .html."),
]

Model = Annotated[
    str,
    typer.Argument(
        metavar="TARGET",
        help="module:attribute, a model or what builds one (or a model with its inputs); "
        "or hf:PATH, a local checkpoint of transformers, or a config alone.",
    ),
]
Length = Annotated[
    int | None, typer.Option("--length", "-n", help="How many positions; 24 if not given.")
]
Sequences = Annotated[
    int | None, typer.Option("--batch", help="How many sequences; taken from the mask, or 2.")
]
Vocabulary = Annotated[
    int | None, typer.Option(help="How many ids there are; asked of the model's embedding.")
]
PadId = Annotated[int | None, typer.Option(help="The id of padding, if ids tell what is padding.")]
Seed = Annotated[int, typer.Option(help="Of all random numbers.")]
ReportForm = Annotated[
    Literal["text", "json", "html"] | None,
    typer.Option(
        "--format", "-f", help="What to give; by the file's ending if not given, or text."
    ),
]


@contextmanager
def model_errors() -> Iterator[None]:
    """Errors about a model, with arguments named as the command line does."""
    with flags_in_errors(MODEL_FLAGS, after="="):
        yield


@contextmanager
def flags_in_errors(flags: Mapping[str, str] = FLAGS, after: str = "= ") -> Iterator[None]:
    """Errors that name arguments as the command line does."""
    from maskwright import MaskError

    try:
        yield
    except MaskError as error:
        raise type(error)(_with_flags(str(error), flags, after)) from None


def _with_flags(message: str, flags: Mapping[str, str], after: str) -> str:
    """The library's message, with its arguments named as the command line names them."""
    for argument, flag in flags.items():
        message = re.sub(rf"\b(?:on: )?{argument}[{after}]", f"{flag} ", message)
    return message
