"""Commands about running attention: `plan`, `bench` and `doctor`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any, Literal

from maskwright.cli.app import app
from maskwright.cli.front import typer
from maskwright.cli.options import (
    Batch,
    Expression,
    Form,
    Heads,
    Keys,
    Output,
    QStart,
    TextForm,
    flags_in_errors,
)
from maskwright.cli.output import emit, give, text_or_json

if TYPE_CHECKING:
    from pathlib import Path

    from maskwright.core.bound import BoundMask
    from maskwright.engine.api import BackendChoice
    from maskwright.parallel.predict import Prediction


@app.command(
    epilog="""Examples:

    maskwright plan "window(back=255)" --size 4096 --heads 8

    maskwright plan "causal() & chunks(512)" --size 2048 --dtype bfloat16 --backward

    maskwright plan "window(back=63)" --size 256 -o plan.svg

    maskwright plan "causal()" --size 4m --ranks 256 --link 50GB/s --flops 400T"""
)
def plan(
    expression: Expression,
    size: Annotated[
        str, typer.Option("--size", "-n", help="How many queries; 4k is 4,096, 4m 4,194,304.")
    ] = "4096",
    keys: Keys = None,
    batch: Batch = None,
    heads: Heads = None,
    q_start: QStart = None,
    head_dim: Annotated[int, typer.Option(help="Size of a head.")] = 128,
    dtype: Annotated[
        Literal["float32", "bfloat16", "float16", "float64"],
        typer.Option(help="Data type of q, k and v."),
    ] = "float32",
    backward: Annotated[bool, typer.Option(help="Estimate the backward pass.")] = False,
    ranks: Annotated[
        int | None, typer.Option(help="Share the sequence out over so many machines instead.")
    ] = None,
    link: Annotated[str, typer.Option(help="Bytes a second between ranks.")] = "50GB/s",
    flops: Annotated[str, typer.Option(help="Operations a second of one rank.")] = "400T",
    form: Form = None,
    output: Output = None,
) -> None:
    """Show how attention under a mask is computed on this machine.

    Prints the backend and the reason for it, the instruction set of the C kernel, the number of
    tiles that are visited, the share of computed scores that are visible, and an estimated time.
    A picture shows the mask with an outline around each visited tile. Does not need PyTorch. With
    --ranks: which of so many machines does what, what they send each other, and how long it takes.
    """
    from maskwright import explain_backend, parse
    from maskwright.core.validate import parse_int
    from maskwright.draw.plans import tiles_scene
    from maskwright.engine.native.bindings import loaded

    with flags_in_errors():
        bound = parse(expression).on(_tokens(size), keys, batch, heads, q_start)
        if ranks is not None:
            _give_ranks(_over_ranks(bound, ranks, link, flops, head_dim), form, output)
            return
        frame = bound.frame
        parse_int(head_dim, "--head-dim", minimum=1)
        q, k = (
            (frame.batch, frame.heads, length, head_dim) for length in (frame.q_len, frame.kv_len)
        )
        choice = explain_backend(
            q, k, mask=bound, dtype=dtype, requires_grad=backward, backward=backward
        )
        facts = {
            "mask": repr(bound.mask),
            "shape": {
                "batch": frame.batch,
                "heads": frame.heads,
                "q_len": frame.q_len,
                "kv_len": frame.kv_len,
                "head_dim": head_dim,
            },
            "dtype": dtype,
            "pass": "backward" if backward else "forward",
            "backend": choice.backend,
            "reason": choice.reason,
            "instruction_set": loaded().isa if choice.backend == "native" else None,
            "work": choice.work.as_dict(),
        }
        give(
            lambda: tiles_scene(bound, choice.work),
            lambda: facts,
            form,
            output,
            lambda: _plan_text(facts, choice),
        )


def _plan_text(facts: dict[str, Any], choice: BackendChoice) -> str:
    from maskwright.engine.cost import format_time
    from maskwright.engine.dispatch import DESCRIPTIONS

    shape, work = facts["shape"], choice.work
    lines = {
        "mask": facts["mask"],
        "shape": ", ".join(f"{name} {size}" for name, size in shape.items()),
        "pass": f"{facts['pass']}, {facts['dtype']}",
        "backend": f"{choice.backend} ({DESCRIPTIONS[choice.backend]})",
        "reason": choice.reason,
        "instruction set": facts["instruction_set"],
        "tiles visited": f"{work.tiles_visited:,} of {work.tiles:,}, "
        f"{work.block_q} × {work.block_kv} cells each",
        "scores computed": f"{work.cells_computed:,}, {work.useful_share:.0%} of them visible",
        "estimated time": f"{format_time(work.milliseconds)} on one CPU thread",
    }
    return "\n".join(f"{name}: {value}" for name, value in lines.items() if value is not None)


def _tokens(size: str) -> int:
    """A number of tokens; k and m are powers of two, as lengths mostly are."""
    times = {"k": 2**10, "m": 2**20}.get(size[-1:].lower(), 1)
    number = size[:-1] if times > 1 else size
    if not number.isdecimal():
        raise typer.BadParameter(f"{size} is no whole number. Give one, such as 4096, 4k or 4m.")
    return int(number) * times


def _give_ranks(found: Prediction, form: str | None, output: Path | None) -> None:
    wanted = text_or_json("plan --ranks", form, output)
    emit(json.dumps(found.as_dict(), indent=2) if wanted == "json" else str(found), output)


def _over_ranks(bound: BoundMask, ranks: int, link: str, flops: str, head_dim: int) -> Prediction:
    from maskwright.parallel.balance import balance
    from maskwright.parallel.predict import predict, read_amount

    frame = bound.frame
    key_bytes = frame.batch * frame.heads * 2 * head_dim * 2  # keys and values, in half precision
    shards = balance(bound, ranks, key_bytes=key_bytes)
    speeds = read_amount(link, "--link"), read_amount(flops, "--flops")
    return predict(shards, *speeds, head_dim)


@app.command(
    epilog="""Examples:

    maskwright bench "window(back=255)" --size 4096"""
)
def bench(
    expression: Annotated[str, typer.Argument(help="A mask.")] = "window(back=255)",
    size: Annotated[int, typer.Option("--size", "-n", help="How many queries and keys.")] = 2048,
    heads: Annotated[int, typer.Option(help="How many heads.")] = 8,
    head_dim: Annotated[int, typer.Option(help="Size of a head.")] = 64,
    form: TextForm = None,
    output: Output = None,
) -> None:
    """Time attention under a mask and SDPA with the same mask as a dense tensor."""
    wanted = text_or_json("bench", form, output)
    from maskwright import parse
    from maskwright.engine.benchmark import compare_with_sdpa

    with flags_in_errors():
        found = compare_with_sdpa(parse(expression), size, heads, head_dim)
    emit(json.dumps(found.as_dict(), indent=2) if wanted == "json" else str(found), output)


@app.command(
    epilog="""Examples:

    maskwright doctor

    maskwright doctor --format json"""
)
def doctor(form: TextForm = None, output: Output = None) -> None:
    """Show the C kernel, threads and backend that attention uses; if the kernel is missing, the fix."""
    wanted = text_or_json("doctor", form, output)
    from maskwright import __version__
    from maskwright.engine.doctor import facts

    found = {"maskwright": __version__, **facts()}
    lines = "\n".join(f"{name}: {fact}" for name, fact in found.items())
    emit(json.dumps(found, indent=2) if wanted == "json" else lines, output)
