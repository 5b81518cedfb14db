"""Verbs about running: how attention under a mask is planned, and how long it takes."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from maskwright.cli.app import app
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
    from maskwright.engine.plan import Plan


@app.command(
    epilog="""Examples:

    maskwright plan "window(back=255)" --size 4096 --heads 8

    maskwright plan "causal() & chunks(512)" --size 2048 --backward

    maskwright plan "window(back=63)" --size 256 -o plan.svg"""
)
def plan(
    expression: Expression,
    size: Annotated[int, typer.Option("--size", "-n", help="How many queries.")] = 4096,
    keys: Keys = None,
    batch: Batch = None,
    heads: Heads = None,
    q_start: QStart = None,
    backward: Annotated[bool, typer.Option(help="The plan of the backward pass.")] = False,
    form: Form = None,
    output: Output = None,
) -> None:
    """Show how attention under a mask would be computed: its pieces, and what they cost.

    A picture has a frame around every strip that is computed at once. Needs no framework.
    """
    from maskwright import parse
    from maskwright.draw.plans import plan_scene
    from maskwright.engine.plan import plan_of
    from maskwright.engine.routes import plan_route

    with flags_in_errors():
        bound = parse(expression).on(size, keys, batch, heads, q_start)
        route = plan_route(bound)
        found = plan_of(bound, "backward" if backward else "forward")
        give(
            lambda: plan_scene(bound, found),
            lambda: {"route": route.kind, "why": route.why, **_as_data(found)},
            form,
            output,
            lambda: str(found) if backward else str(route),
        )


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
