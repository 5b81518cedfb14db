"""Verbs between masks and frameworks: hand one over, read one back, and say what is wrong with it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Literal

from maskwright.cli.app import app
from maskwright.cli.front import typer
from maskwright.cli.options import (
    Batch,
    Form,
    Heads,
    Keys,
    Lang,
    Output,
    QStart,
    TextForm,
    complete_expression,
    flags_in_errors,
)
from maskwright.cli.output import as_text, emit, give, text_or_json
from maskwright.errors import ArgumentError

Name = Annotated[str | None, typer.Option(help="Which array, where the file holds several.")]


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

    with flags_in_errors():
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
    from maskwright import capabilities

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

    maskwright recognize mask.npy

    maskwright recognize batch.safetensors --name attention_mask --axes bk

    maskwright recognize mask.csv -o mask.svg"""
)
def recognize(
    file: Annotated[
        Path, typer.Argument(help="An array: .npy, .npz, .safetensors, .json or .csv.")
    ],
    name: Name = None,
    axes: Annotated[
        str | None, typer.Option(help="What its axes are, by the letters b, h, q, k: qk, bk, bhqk.")
    ] = None,
    polarity: Annotated[
        Literal["keep", "drop"] | None,
        typer.Option(help="What True or 1 does, where it is unclear."),
    ] = None,
    q_start: QStart = None,
    form: Form = None,
    output: Output = None,
) -> None:
    """Say which mask an array is, in which convention, and what is odd about it."""
    import maskwright
    from maskwright.cli.files import read_array
    from maskwright.draw.masks import scene_of

    with flags_in_errors():
        found = maskwright.recognize(
            read_array(file, name), axes=axes, polarity=polarity, q_start=q_start
        )
        frame = found.frame
        bound = found.mask.on(frame.q_len, frame.kv_len, frame.batch, frame.heads, frame.q_start)

        def data() -> dict[str, Any]:
            return {
                "expression": repr(found.mask),
                "convention": str(found.convention),
                "shape": found.convention.shape,
                "notes": found.notes,
                "otherwise": None if found.other is None else repr(found.other.mask),
            }

        give(
            lambda: scene_of(bound),
            data,
            form,
            output,
            lambda: f"{found}\n\n{as_text(scene_of(bound), output)}",
        )


@app.command(
    epilog="""Examples:

    maskwright lint mask.npy --causal

    maskwright lint mask.npy --to torch.mha --size 128

    maskwright lint "causal() & padding(lengths=[3, 5])" --size 5

    maskwright lint mask.npy --causal --lang zh"""
)
def lint(
    mask: Annotated[
        str, typer.Argument(help="A mask expression, or a file that contains a mask array.")
    ],
    size: Annotated[int | None, typer.Option("--size", "-n", help="Number of queries.")] = None,
    keys: Keys = None,
    batch: Batch = None,
    heads: Heads = None,
    q_start: QStart = None,
    to: Annotated[
        str | None,
        typer.Option(
            help="How an array is read: keep (True keeps), drop (True masks), additive, or the "
            "name of a target."
        ),
    ] = None,
    axes: Annotated[
        str | None, typer.Option(help="The axes of an array: k, qk, bk, bqk, hqk or bhqk.")
    ] = None,
    causal: Annotated[bool, typer.Option(help="The mask should be causal.")] = False,
    window: Annotated[
        int | None, typer.Option(help="The mask should be a sliding window of this many keys.")
    ] = None,
    expects: Annotated[
        str | None,
        typer.Option(help="The exact mask.", autocompletion=complete_expression),
    ] = None,
    name: Name = None,
    lang: Lang = "en",
    form: TextForm = None,
    output: Output = None,
) -> None:
    """Check a mask. Exit code 0 without findings, 1 with findings, 2 for invalid arguments."""
    import maskwright
    from maskwright.cli.files import is_file, read_array

    wanted = text_or_json("lint", form, output)
    with flags_in_errors():
        given = read_array(Path(mask), name) if is_file(mask) else maskwright.parse(mask)
        report = maskwright.lint(
            given,
            q_len=size,
            kv_len=keys,
            batch=batch,
            heads=heads,
            q_start=q_start,
            to=to,
            axes=axes,
            causal=causal,
            window=window,
            expects=None if expects is None else maskwright.parse(expects),
        )
    if wanted == "json":
        emit(json.dumps(report.as_dict(lang), indent=2, ensure_ascii=lang == "en"), output)
    else:
        emit(report.text(lang), output)
    if not report.ok:
        raise typer.Exit(1)
