"""The command line: a thin layer over the library. Anything heavy is imported where it is used."""

from __future__ import annotations

import json
import re
from contextlib import contextmanager
from pathlib import Path  # noqa: TC003 - typer reads it
from typing import TYPE_CHECKING, Annotated, Literal

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

HELP = """Attention masks for Transformers, said in one line and known exactly.

A mask is the set of (batch, head, query, key) cells in which a query may see a key.
Every query's row of it is a few intervals of keys.
"""

FLAGS = {"q_len": "--size", "kv_len": "--keys", "q_start": "--q-start"}
MODEL_FLAGS = {
    **dict.fromkeys(("q_len", "kv_len", "length"), "--length"),
    **{name: f"--{name}" for name in ("batch", "vocabulary", "layers")},
    "pad_id": "--pad-id",
}

Expression = Annotated[
    str, typer.Argument(help="A mask: atoms joined by & (and), | (or), ~ (not), - (and not).")
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
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

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
    expression: Expression,
    size: Annotated[int, typer.Option("--size", "-n", help="How many queries.")] = 8,
    keys: Keys = None,
    batch: Batch = None,
    heads: Heads = None,
    q_start: QStart = None,
) -> None:
    """Draw a mask: a row for each query, a column for each key, ■ may see, · may not.

    Atoms: everything, nothing, causal, window, padding, documents, prefix, chunks, stride, keys,
    queries, tree, graph, image, blocks, dense; and by_head, by_batch.
    """
    from maskwright import parse

    with _flags_in_errors():
        text = str(parse(expression).on(size, keys, batch, heads, q_start))
    typer.echo(text)


@app.command(
    epilog="""Examples:

    maskwright lower "causal() & padding(lengths=[3, 5])" --to torch.mha

    maskwright lower "causal()" --to torch.sdpa --size 128

    maskwright lower "padding(lengths=[3])" "causal()" "padding(lengths=[3])" --to torch.transformer -n 4"""
)
def lower(
    expression: Annotated[
        list[str],
        typer.Argument(help="A mask; for torch.transformer three: encoder, decoder, cross."),
    ],
    to: Annotated[str, typer.Option(help="The target; `maskwright targets` lists them.")],
    size: Annotated[
        int | None,
        typer.Option("--size", "-n", help="How many queries; taken from the mask if not given."),
    ] = None,
    keys: Keys = None,
    batch: Batch = None,
    heads: Heads = None,
    q_start: QStart = None,
) -> None:
    """Print the short code that hands a mask to a framework, or say what it can't take."""
    from maskwright import explain_lowering, parse

    with _flags_in_errors():
        masks = tuple(parse(text) for text in expression)
        given = masks[0] if len(masks) == 1 else masks
        text = explain_lowering(given, to, size, keys, batch=batch, heads=heads, q_start=q_start)
    typer.echo(text)


@app.command(
    epilog="""Examples:

    maskwright targets

    maskwright targets torch.mha

    maskwright targets --format json"""
)
def targets(
    name: Annotated[str | None, typer.Argument(help="One target, with all there is to it.")] = None,
    form: Annotated[
        Literal["text", "json"], typer.Option("--format", help="How to print it.")
    ] = "text",
) -> None:
    """List the frameworks that a mask can be handed to, and how each of them says it."""
    from dataclasses import asdict

    from maskwright import ArgumentError, capabilities

    known = capabilities()
    if name is not None and name not in known:
        raise ArgumentError(f"There is no target {name}. Run: maskwright targets")
    chosen = [asdict(known[n]) for n in ([name] if name else known)]
    if form == "json":
        typer.echo(json.dumps(chosen, indent=2, ensure_ascii=False))
    elif name is not None:
        for field, value in chosen[0].items():
            words = " or ".join(value) if isinstance(value, tuple) else value
            typer.echo(f"{field.replace('_', ' '):<11} {words or '–'}")
    else:
        for row in chosen:
            typer.echo(f"{row['name']:<18} {row['gives']}; {row['polarity']}")


@app.command(
    epilog="""Examples:

    maskwright plan "window(back=255)" --size 4096 --heads 8

    maskwright plan "causal() & chunks(512)" --size 2048 --backward"""
)
def plan(
    expression: Expression,
    size: Annotated[int, typer.Option("--size", "-n", help="How many queries.")] = 4096,
    keys: Keys = None,
    batch: Batch = None,
    heads: Heads = None,
    q_start: QStart = None,
    backward: Annotated[bool, typer.Option(help="The plan of the backward pass.")] = False,
) -> None:
    """Show how attention under a mask would be computed: its pieces, and what they cost.

    Needs no framework.
    """
    from maskwright import parse
    from maskwright.engine.plan import plan_of
    from maskwright.engine.routes import plan_route

    with _flags_in_errors():
        bound = parse(expression).on(size, keys, batch, heads, q_start)
        text = str(plan_of(bound, "backward")) if backward else str(plan_route(bound))
    typer.echo(text)


@app.command(
    epilog="""Examples:

    maskwright bench "window(back=255)" --size 4096

    maskwright bench --calibrate"""
)
def bench(
    expression: Annotated[str, typer.Argument(help="A mask.")] = "window(back=255)",
    size: Annotated[int, typer.Option("--size", "-n", help="How many queries and keys.")] = 2048,
    heads: Annotated[int, typer.Option(help="How many heads, of 64 numbers each.")] = 8,
    calibrate: Annotated[
        bool, typer.Option(help="Measure this machine's cost table, and keep it.")
    ] = False,
) -> None:
    """Time attention under a mask beside SDPA with a dense mask, or measure the cost table."""
    if calibrate:
        _calibrate()
        return
    from maskwright import parse
    from maskwright.engine.beside import beside_sdpa

    with _flags_in_errors():
        typer.echo(beside_sdpa(parse(expression), size, heads))


def _calibrate() -> None:
    from maskwright.engine.calibrate import machine, measure
    from maskwright.engine.costs import write_costs

    table = {}
    for direction, costs in measure():
        typer.echo(f"measured: {direction}", err=True)
        table[direction] = costs
    typer.echo(f"kept in {write_costs(table, machine())}")


@app.command(
    epilog="""Examples:

    maskwright audit mypkg.models:build --expects "causal()" --length 64

    maskwright audit mypkg.models:build --expects "causal() & padding(lengths=[5, 9])" -n 9 --pad-id 0

    maskwright audit hf:./my-checkpoint --html report.html"""
)
def audit(
    target: Model,
    expects: Annotated[
        str,
        typer.Option(
            help="What one layer may see: a mask, causal, bidirectional, encoder-decoder; or auto, "
            "which asks the config of a model of transformers."
        ),
    ] = "auto",
    length: Length = None,
    batch: Sequences = None,
    vocabulary: Vocabulary = None,
    pad_id: PadId = None,
    layers: Annotated[
        int | None, typer.Option(help="How many layers of attention; counted if not given.")
    ] = None,
    probes: Annotated[
        str | None,
        typer.Option(
            help="Only these, by commas: leak, reach, gradient, padding, documents, batch, "
            "steps, numbers, paths, dtype."
        ),
    ] = None,
    as_json: Json = False,
    html: Annotated[Path | None, typer.Option(help="Write the report as a page, too.")] = None,
    seed: Seed = 0,
) -> None:
    """Run a model, and say whether it obeys its mask: code 0 if so, 1 if not, 2 for a wrong call.

    It is run on random ids, unless the target gives its inputs.
    """
    with _model_errors():
        import maskwright
        from maskwright.checks.loading import load, make_inputs

        model, inputs = load(target, seed)
        if inputs is None:
            sizes = {"length": length, "batch": batch, "vocabulary": vocabulary, "pad_id": pad_id}
            inputs = make_inputs(model, expects, **sizes, seed=seed)
        chosen = None if probes is None else [probe.strip() for probe in probes.split(",")]
        report = maskwright.audit(
            model,
            inputs,
            expects=expects,
            layers=layers,
            pad_id=pad_id,
            probes=chosen,
            seed=seed,
        )
    typer.echo(report.to_json() if as_json else str(report))
    if html is not None:
        from maskwright.checks.report_html import html_of

        _write(html, html_of(report))
    if not report.ok:
        raise typer.Exit(1)


@app.command(
    epilog="""Examples:

    maskwright trace mypkg.models:build --length 64

    maskwright trace hf:./my-checkpoint --json"""
)
def trace(
    target: Model,
    length: Length = None,
    batch: Sequences = None,
    vocabulary: Vocabulary = None,
    as_json: Json = False,
    seed: Seed = 0,
) -> None:
    """Run a model once, and list every attention call with the mask that it really had."""
    with _model_errors():
        from maskwright.checks.loading import load, make_inputs, run_trace

        model, inputs = load(target, seed)
        if inputs is None:
            sizes = {"length": length, "batch": batch, "vocabulary": vocabulary}
            inputs = make_inputs(model, "auto", **sizes, seed=seed)
        found = run_trace(model, inputs)
    typer.echo(json.dumps(found.as_dict(), indent=2) if as_json else str(found))


def _write(path: Path, text: str) -> None:
    from maskwright import ArgumentError
    from maskwright.checks.report_html import write_whole

    try:
        write_whole(path, text)
    except OSError as error:
        raise ArgumentError(f"{path} can't be written: {error.strerror}.") from error


@contextmanager
def _model_errors() -> Iterator[None]:
    """Errors about a model, with arguments named as the command line does, and the missing extra."""
    from maskwright import MissingError

    try:
        with _flags_in_errors(MODEL_FLAGS, after="="):
            yield
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        fix = "Run: pip install 'maskwright[torch]'"
        raise MissingError(f"torch is not installed. {fix}") from error


@contextmanager
def _flags_in_errors(flags: Mapping[str, str] = FLAGS, after: str = "= ") -> Iterator[None]:
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
