"""Verbs about the apps: list, train and use them, and see what a mask is worth to one."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from maskwright.cli.app import app
from maskwright.cli.front import typer
from maskwright.cli.options import Output, Seed, TextForm, complete_expression, model_errors
from maskwright.cli.output import chosen_form, emit, progress
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maskwright.apps.app import App, Wishes
    from maskwright.apps.checkpoints import Progress
    from maskwright.apps.training import Course

RUNS = Path("runs")

Name = Annotated[str, typer.Argument(metavar="APP", help="`maskwright apps` lists them.")]
Version = Annotated[str | None, typer.Option(help="Which of its versions; its first if not given.")]
Text = Annotated[Path | None, typer.Option(help="Your own text to learn from.")]
Pairs = Annotated[Path | None, typer.Option(help="Your own pairs, one a line, with a tab between.")]
Data = Annotated[str | None, typer.Option(help="Other data that the app knows by name.")]
Steps = Annotated[int | None, typer.Option(help="How many steps to train.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto.")]


@app.command(epilog="Examples:\n\n    maskwright apps")
def apps(form: TextForm = None) -> None:
    """List the applications: what each learns, and its versions."""
    from maskwright.apps.registry import APPS, find_app

    with model_errors():
        known = [find_app(name) for name in APPS]
    if form == "json":
        data = [{"name": a.name, "summary": a.summary, "versions": a.versions} for a in known]
        emit(json.dumps(data, indent=2), None)
        return
    for one in known:
        typer.echo(f"{one.name:<14} {one.summary} ({', '.join(one.versions)})")


@app.command(
    epilog="""Examples:

    maskwright train language --version v4

    maskwright train language --text my-notes.txt --steps 500

    maskwright train translation --resume

    maskwright train language --mask everything --to runs/cheat

    torchrun --nproc-per-node 4 -m maskwright train language --dp 2 --cp 2 --fsdp"""
)
def train(
    name: Name,
    version: Version = None,
    mask: Annotated[
        str | None,
        typer.Option(help="Another mask than its own.", autocompletion=complete_expression),
    ] = None,
    text: Text = None,
    pairs: Pairs = None,
    data: Data = None,
    steps: Steps = None,
    batch: Annotated[int | None, typer.Option(help="How many examples a step.")] = None,
    rate: Annotated[float | None, typer.Option(help="The learning rate at its highest.")] = None,
    accumulate: Annotated[int, typer.Option(help="Batches that make one step.")] = 1,
    patience: Annotated[
        int | None, typer.Option(help="Stop after so many evaluations without a better one.")
    ] = None,
    seed: Seed = 0,
    device: Device = "auto",
    compile_model: Annotated[bool, typer.Option("--compile", help="Use torch.compile.")] = False,
    bfloat16: Annotated[bool, typer.Option(help="Compute in bfloat16 where that is safe.")] = False,
    dp: Annotated[int, typer.Option(help="Processes that share out a step's batches.")] = 1,
    cp: Annotated[int, typer.Option(help="Processes that share out every sequence.")] = 1,
    fsdp: Annotated[bool, typer.Option(help="Share out the weights over all of them too.")] = False,
    resume: Annotated[bool, typer.Option(help="Go on where the last training stopped.")] = False,
    trace: Annotated[bool, typer.Option(help="Show the shapes of one real batch first.")] = False,
    to: Annotated[
        Path | None, typer.Option(help="The folder; runs/APP-VERSION if not given.")
    ] = None,
) -> None:
    """Train an app, show what it has learnt, and keep it. Ctrl-C stops it; --resume goes on."""
    from maskwright.apps.app import Wishes, named_mask, version_of
    from maskwright.apps.registry import find_app

    _at_least_one(steps=steps, batch=batch, accumulate=accumulate, patience=patience, dp=dp, cp=cp)
    if rate is not None and not 0 < rate < math.inf:
        raise ArgumentError(f"--rate {rate} is no learning rate. Give a number above 0.")
    if compile_model and (cp > 1 or fsdp):
        raise ArgumentError(
            "--compile is not for sequences or weights that are shared out. Leave it out, or use "
            "--dp alone."
        )
    with model_errors():
        from maskwright.apps.checkpoints import load_weights
        from maskwright.apps.ranks import start, stop
        from maskwright.apps.training import train as run

        one = find_app(name)
        ranks = start(dp, cp, fsdp=fsdp, device=device)
        main = ranks.main
        say = typer.echo if main else _nothing
        wishes = Wishes(
            version_of(one.name, one.versions, version), mask, text, pairs, data, batch, seed
        )
        task = one.task(wishes)
        course = _course(one, wishes, steps, rate)
        course = replace(
            course,
            accumulate=accumulate,
            patience=course.patience if patience is None else patience,
            device=device,
            compile=compile_model,
            bfloat16=bfloat16,
        )
        folder = to or RUNS / f"{name}-{wishes.version}"
        count = sum(weight.numel() for weight in task.model.parameters())
        say(f"{name} {wishes.version}: {count:,} weights under {named_mask(task):.60}")
        if trace and main:
            _trace(task)

        def each(so_far: Progress) -> None:
            step, held_out = so_far.evaluations[-1]
            say(f"step {step}: loss {so_far.losses[-1]:.3f}, held out {held_out:.3f}")
            progress(one.sample(task))

        outcome = run(task, course, folder, resume=resume, each=each, ranks=ranks)
        if outcome.stopped == "interrupted":
            say(f"stopped at step {outcome.progress.step}. Go on with --resume.")
            raise typer.Exit(1)
        say(f"{outcome.seconds:.0f} s, {outcome.speed:,.0f} tokens/s")
        stop(ranks)
        if main:
            if fsdp:  # its model is in parts, on ranks that are gone
                task = one.task(wishes)
                load_weights(folder / "best", task.model)
            for line in one.report(task):
                say(line)
    say(f"kept in {folder}")


@app.command(
    epilog="""Examples:

    maskwright generate language "The " --count 200

    maskwright generate translation "twelve thousand" --beams 4

    maskwright generate dialogue"""
)
def generate(
    name: Name,
    text: Annotated[
        str | None, typer.Argument(metavar="PROMPT", help="What to begin with.")
    ] = None,
    version: Version = None,
    kept: Annotated[Path | None, typer.Option("--from", help="The folder of the training.")] = None,
    count: Annotated[int | None, typer.Option(help="How much to write.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 is the likeliest, always.")] = None,
    top_k: Annotated[int | None, typer.Option(help="Draw from the likeliest few only.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Draw from the likeliest share only.")] = None,
    beams: Annotated[int | None, typer.Option(help="Follow so many beginnings at once.")] = None,
    seed: Annotated[int | None, typer.Option(help="Of what is drawn.")] = None,
    output: Output = None,
) -> None:
    """Use what was trained; without a prompt, dialogue is a chat."""
    from maskwright.apps.app import Prompt, version_of
    from maskwright.apps.registry import find_app

    with model_errors():
        from maskwright.apps.checkpoints import load_progress, load_weights

        one = find_app(name)
        folder = kept or RUNS / f"{name}-{version_of(one.name, one.versions, version)}"
        best = folder / "best"
        trained: Any = one.again(load_progress(best, name))
        load_weights(best, trained.model)
        trained.model.eval()
        if text is None and hasattr(one, "chat"):
            for line in one.chat(trained, _lines()):
                typer.echo(line)
            return
        given = Prompt(text, count, temperature, top_k, top_p, beams, seed, output)
        for line in one.use(trained, given):
            typer.echo(line)


@app.command(
    "compare-masks",
    epilog="""Examples:

    maskwright compare-masks language

    maskwright compare-masks language --mask "window(back=3)" --steps 200

    maskwright compare-masks translation -o curves.svg""",
)
def compare_masks(
    name: Name,
    mask: Annotated[
        str, typer.Option(help="The other mask.", autocompletion=complete_expression)
    ] = "everything()",
    version: Version = None,
    text: Text = None,
    pairs: Pairs = None,
    data: Data = None,
    steps: Steps = None,
    seed: Seed = 0,
    device: Device = "auto",
    form: TextForm = None,
    output: Output = None,
) -> None:
    """Train an app twice, with its own mask and with another: two curves, and two samples."""
    from maskwright.apps.app import Wishes, version_of
    from maskwright.apps.registry import find_app

    _at_least_one(steps=steps)
    wanted = chosen_form(form, output)
    if wanted == "html":
        raise ArgumentError(f"{output}: there is no page of curves. Name a .svg, .png or .json.")
    with model_errors():
        from maskwright.apps.cheat import compare_masks as run
        from maskwright.apps.curves import curves

        one = find_app(name)
        wishes = Wishes(
            version_of(one.name, one.versions, version), None, text, pairs, data, None, seed
        )
        course = replace(_course(one, wishes, steps, None), device=device)
        found = run(one, wishes, mask, course, progress)
        if wanted == "json":
            emit(json.dumps(found.as_dict(), indent=2), output)
        elif wanted == "text":
            emit(str(found), output)
        else:
            typer.echo(str(found))
            emit(curves(found, wanted), output)


def _course(one: App, wishes: Wishes, steps: int | None, rate: float | None) -> Course:
    course = one.course(wishes)
    if steps is not None:
        course = replace(course, steps=steps, evaluate_every=min(course.evaluate_every, steps))
    return course if rate is None else replace(course, rate=rate)


def _nothing(_: str) -> None:
    """What all ranks but one print."""


def _at_least_one(**counts: int | None) -> None:
    for name, count in counts.items():
        if count is not None and count < 1:
            raise ArgumentError(f"--{name} {count} is less than 1. Give a whole number from 1 on.")


def _trace(task: Any) -> None:
    from maskwright.tracing.trace import trace

    batch = task.batch(0, 0)
    typer.echo(str(trace(task.loss, batch)))


def _lines() -> Iterator[str]:
    """What a person types, line after line, until there is no more."""
    while (line := _typed()) is not None:
        yield line


def _typed() -> str | None:
    try:
        return str(typer.prompt("you", prompt_suffix="> "))
    except (EOFError, typer.Abort):
        return None
