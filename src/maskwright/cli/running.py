"""Verbs about running: how attention under a mask is planned, and how long it takes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

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
from maskwright.cli.output import emit, give, progress, text_or_json

if TYPE_CHECKING:
    from pathlib import Path

    from maskwright.core.bound import BoundMask
    from maskwright.engine.plan import Plan
    from maskwright.parallel.predict import Prediction


@app.command(
    epilog="""Examples:

    maskwright plan "window(back=255)" --size 4096 --heads 8

    maskwright plan "causal() & chunks(512)" --size 2048 --backward

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
    backward: Annotated[bool, typer.Option(help="The plan of the backward pass.")] = False,
    ranks: Annotated[
        int | None, typer.Option(help="Share the sequence out over so many machines instead.")
    ] = None,
    link: Annotated[str, typer.Option(help="Bytes a second between ranks.")] = "50GB/s",
    flops: Annotated[str, typer.Option(help="Operations a second of one rank.")] = "400T",
    head_dim: Annotated[int, typer.Option(help="Numbers a head, for bytes and flops.")] = 128,
    form: Form = None,
    output: Output = None,
) -> None:
    """Show how attention under a mask would be computed: by what, its pieces, and what they cost.

    The kernel in C reads the mask's intervals as they are; the pieces are those of strips, which serve
    where there is none. A picture has a frame around every strip that is computed at once. Needs no
    framework. With --ranks: which of so many machines does what, what they send each other, and how
    long it takes.
    """
    from maskwright import parse
    from maskwright.draw.plans import plan_scene
    from maskwright.engine.plan import plan_of
    from maskwright.engine.routes import native_line, plan_route

    with flags_in_errors():
        bound = parse(expression).on(_tokens(size), keys, batch, heads, q_start)
        if ranks is not None:
            _give_ranks(_over_ranks(bound, ranks, link, flops, head_dim), form, output)
            return
        route = plan_route(bound)
        direction = "backward" if backward else "forward"
        found = plan_of(bound, direction)
        give(
            lambda: plan_scene(bound, found),
            lambda: {
                "native": native_line(bound, direction),
                "route": route.kind,
                "why": route.why,
                **_as_data(found),
            },
            form,
            output,
            lambda: f"{native_line(bound, direction)}\n{found if backward else route}",
        )


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


def _as_data(plan: Plan) -> dict[str, Any]:
    return {
        "shape": plan.shape,
        "useful": plan.useful,
        "computed": plan.computed,
        "nanoseconds": round(plan.nanoseconds),
        "pieces": [str(piece) for piece in plan.pieces],
    }


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
    form: TextForm = None,
    output: Output = None,
) -> None:
    """Time attention under a mask beside SDPA with a dense mask, or measure the cost table."""
    wanted = text_or_json("bench", form, output)
    if calibrate:
        _calibrate()
        return
    from maskwright import parse
    from maskwright.engine.beside import beside_sdpa

    with flags_in_errors():
        found = beside_sdpa(parse(expression), size, heads)
    emit(json.dumps(found.as_dict(), indent=2) if wanted == "json" else str(found), output)


def _calibrate() -> None:
    from maskwright.engine.calibrate import machine, measure
    from maskwright.engine.costs import write_costs

    table = {}
    for direction, costs in measure():
        progress(f"measured: {direction}")
        table[direction] = costs
    typer.echo(f"kept in {write_costs(table, machine())}")


@app.command(
    epilog="""Examples:

    maskwright doctor

    maskwright doctor --format json"""
)
def doctor(form: TextForm = None, output: Output = None) -> None:
    """Tell which kernel, instructions and threads attention is computed by, and why."""
    wanted = text_or_json("doctor", form, output)
    from maskwright import __version__
    from maskwright.engine.doctor import facts

    found = {"maskwright": __version__, **facts()}
    lines = "\n".join(f"{name}: {fact}" for name, fact in found.items())
    emit(json.dumps(found, indent=2) if wanted == "json" else lines, output)
