"""Options that several commands share.

Options that set an argument of the library bear its name (`--kv-len` is `kv_len`), so that the
library's messages apply to the command line as they are.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal, TypeVar

import typer

from maskwright._atomic_write import check_writable
from maskwright.cli.errors import LANGUAGE, UsageError, writing
from maskwright.cli.output import scene_text, write, write_json

if TYPE_CHECKING:
    from maskwright.draw.scene import Scene

Function = TypeVar("Function", bound=Callable[..., Any])

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


def option(text: str, *flags: str, **settings: Any) -> Any:
    """An option with its help text."""
    return typer.Option(*flags, help=text, **settings)


class OptionGroup:
    """Base class of options that several commands share: the arguments of the constructor."""


def expand_groups(function: Function) -> Function:
    """The function with the options of its `OptionGroup` parameters in place of these.

    typer reads the parameters of a function, and has no groups of them.

    >>> def command(size: int, sizes: Sizes) -> None: ...
    >>> list(inspect.signature(expand_groups(command)).parameters)
    ['size', 'kv_len', 'batch', 'heads', 'q_start']
    """
    expanded: list[inspect.Parameter] = []
    groups: dict[str, tuple[type[OptionGroup], list[str]]] = {}
    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        group = parameter.annotation
        if isinstance(group, type) and issubclass(group, OptionGroup):
            options = inspect.signature(group, eval_str=True).parameters
            groups[parameter.name] = group, list(options)
            expanded += options.values()
        else:
            expanded.append(parameter)

    @wraps(function)
    def run(**values: Any) -> Any:
        for name, (group, options) in groups.items():
            values[name] = group(**{option: values.pop(option) for option in options})
        return function(**values)

    run.__annotations__ = {parameter.name: parameter.annotation for parameter in expanded}
    keywords = [parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in expanded]
    run.__signature__ = inspect.Signature(keywords)  # type: ignore[attr-defined]
    return run  # type: ignore[return-value]


# masks and their sizes
Expression = Annotated[
    str,
    typer.Argument(
        help="A mask: atoms combined by & (and), | (or), ~ (not), - (and not).",
        autocompletion=complete_expression,
    ),
]
SIZE_FLAGS: Final = ("--size", "--q-len", "-n")
Size = Annotated[
    int | None, option("Number of queries. Default: 8, or the tokens.", *SIZE_FLAGS, min=1)
]
KvLen = Annotated[int | None, option("Number of keys. Default: the number of queries.", min=0)]
Batch = Annotated[int | None, option("Batch size. Default: that of the mask.", min=1)]
Heads = Annotated[int | None, option("Number of heads. Default: that of the mask.", min=1)]
QStart = Annotated[
    int | None, option("Position of the first query. Default: the last query is at the last key.")
]
Tokens = Annotated[
    str | None, option('A sentence that labels the axes: "I like tea".', "--tokens", "-t")
]
BatchRow = Annotated[int | None, option("Only this batch row. Default: all that differ.", min=0)]
HeadIndex = Annotated[int | None, option("Only this head.", "--head", min=0)]


@dataclass(frozen=True)
class Sizes(OptionGroup):
    """The sizes of a mask except its number of queries, as arguments of `Mask.on`."""

    kv_len: KvLen = None
    batch: Batch = None
    heads: Heads = None
    q_start: QStart = None

    def with_defaults(self, **sizes: int) -> Sizes:
        """These sizes, where they are not None, else the passed ones."""
        return replace(self, **{name: n for name, n in sizes.items() if vars(self)[name] is None})


# models
Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="module:attribute, a model or a function that returns a model or (model, inputs); or "
        "hf:PATH, a local checkpoint or config of transformers.",
    ),
]
Seed = Annotated[int, option("Random seed.")]


# output
def _set_language(lang: str) -> str:
    LANGUAGE.set(lang)
    return lang


Lang = Annotated[
    Literal["en", "zh"],
    option("Language: English or Chinese.", is_eager=True, callback=_set_language),
]


def _file(formats: tuple[str, ...]) -> Any:
    suffixes = ", ".join(suffix for suffix, name in SUFFIXES.items() if name in formats)
    return option(f"Write to FILE: {suffixes}.", "--output", "-o", metavar="FILE")


_FORMAT: Final = option("Output format. Default: by the suffix of FILE, or text.", "--format", "-f")
TextFormat = Annotated[Literal["text", "json"] | None, _FORMAT]
PictureFormat = Annotated[Literal["text", "json", "svg", "png", "html"] | None, _FORMAT]
ReportFormat = Annotated[Literal["text", "json", "html", "junit", "sarif"] | None, _FORMAT]
TextFile = Annotated[Path | None, _file(TEXT)]
ReportFile = Annotated[Path | None, _file(REPORT)]
CurvesFile = Annotated[Path | None, _file(CURVES)]
PictureFile = Annotated[Path | None, _file(PICTURE)]


class Output(OptionGroup):
    """The format and the file of a command's result.

    Raises:
        UsageError: As `choose_format`.
    """

    def __init__(self, form: str | None, output: Path | None, formats: tuple[str, ...]) -> None:
        self.form = choose_format(form, output, formats)
        self.file = output

    def write(self, text: str, data: Any) -> None:
        """Writes the text or the data, by the format."""
        if self.form == "json":
            write_json(data, self.file)
        else:
            write(text, self.file)

    def write_scene(
        self,
        scene: Callable[[], Scene],
        data: Callable[[], Any],
        text: Callable[[], str] | None = None,
    ) -> None:
        """Writes a picture in the format, or its data as JSON. Only that format is computed."""
        from maskwright.draw.picture import render

        if self.form == "json":
            write_json(data(), self.file)
        elif self.form == "text":
            write(scene_text(scene(), self.file) if text is None else text(), self.file)
        else:
            write(render(scene(), self.form), self.file)


class TextOutput(Output):
    """Of a command that writes text or data."""

    def __init__(self, form: TextFormat = None, output: TextFile = None) -> None:
        super().__init__(form, output, TEXT)


class PictureOutput(Output):
    """Of a command that writes pictures."""

    def __init__(self, form: PictureFormat = None, output: PictureFile = None) -> None:
        super().__init__(form, output, PICTURE)
