"""Commands of the applications: list, train and use them, and compare masks."""

from __future__ import annotations

import contextlib
import math
import sys
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from maskwright.cli import options as opt
from maskwright.cli.errors import writing
from maskwright.cli.main import command
from maskwright.cli.output import table, write, write_json
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from maskwright.apps import Task, TaskOptions
    from maskwright.apps.checkpoint import TrainingState
    from maskwright.apps.trainer import TrainingConfig

RUNS = Path("runs")

# The options of one panel of --help each
data_opt, model_opt, optim_opt, dist_opt, output_opt = (
    partial(opt.option, rich_help_panel=panel)
    for panel in ("Data", "Model", "Optimisation", "Distributed", "Output")
)
Name = Annotated[str, typer.Argument(metavar="APP", help="`maskwright apps` lists them.")]
Version = Annotated[str | None, model_opt("Version of the app. Default: its first.")]
MaxSteps = Annotated[int | None, optim_opt("Training steps.", "--max-steps", "--steps", min=1)]
Seed = Annotated[int, optim_opt("Random seed.")]
Device = Annotated[str, optim_opt("cpu, cuda, or auto.")]
FOLDER_TEXT = "Folder of the run. Default: runs/APP-VERSION."


@dataclass(frozen=True)
class Corpus(opt.OptionGroup):
    """The data to train on."""

    text: Annotated[Path | None, data_opt("Your own text file.")] = None
    pairs: Annotated[Path | None, data_opt("Your own pairs: one per line, tab-separated.")] = None
    data: Annotated[str | None, data_opt("Another data set of the app.")] = None


@dataclass(frozen=True)
class Hyperparameters(opt.OptionGroup):
    """Fields of `TrainingConfig`; None is the app's default."""

    max_steps: MaxSteps = None
    learning_rate: Annotated[float | None, optim_opt("Maximum learning rate.")] = None
    gradient_accumulation_steps: Annotated[int, optim_opt("Batches per optimizer step.", min=1)] = 1
    eval_interval: Annotated[int | None, optim_opt("Steps between evaluations.", min=1)] = None
    patience: Annotated[
        int | None, optim_opt("Early stopping: evaluations without improvement.", min=1)
    ] = None
    seed: Seed = 0
    device: Device = "auto"
    compile: Annotated[bool, optim_opt("Use torch.compile.", "--compile")] = False
    bf16: Annotated[bool, optim_opt("bfloat16 autocast.", "--bf16")] = False


@command("maskwright apps")
def apps(form: opt.TextFormat = None) -> None:
    """List the applications and their versions."""
    from maskwright.apps import APPS, find_app

    known = [find_app(name) for name in APPS]
    if form == "json":
        write_json([{"name": a.name, "summary": a.summary, "versions": a.versions} for a in known])
        return
    write(table((task.name, f"{task.summary} ({', '.join(task.versions)})") for task in known))


@command(
    "maskwright train language --version v4",
    "maskwright train language --text my-notes.txt --max-steps 500",
    "maskwright train translation --resume",
    "maskwright train language --mask everything --output-dir runs/no-mask",
    "torchrun --nproc-per-node 4 -m maskwright train language --dp 2 --cp 2 --fsdp",
)
def train(
    name: Name,
    *,
    version: Version = None,
    mask: Annotated[
        str | None,
        model_opt("Replaces the app's mask.", autocompletion=opt.complete_expression),
    ] = None,
    corpus: Corpus,
    batch_size: Annotated[int | None, data_opt("Sequences per batch.", min=1)] = None,
    hyperparameters: Hyperparameters,
    dp: Annotated[int, dist_opt("Data parallel ranks.", min=1)] = 1,
    cp: Annotated[int, dist_opt("Context parallel ranks.", min=1)] = 1,
    fsdp: Annotated[bool, dist_opt("Shard the weights over ranks.", "--fsdp")] = False,
    output_dir: Annotated[Path | None, output_opt(FOLDER_TEXT)] = None,
    save_interval: Annotated[int | None, output_opt("Steps between checkpoints.", min=1)] = None,
    resume: Annotated[bool, output_opt("Continue from the last checkpoint.", "--resume")] = False,
    overwrite: Annotated[bool, output_opt("Replace the run in the folder.", "--overwrite")] = False,
    trace: Annotated[bool, output_opt("Print the shapes of a batch first.", "--trace")] = False,
    audit: Annotated[bool, output_opt("Audit the trained model in full.", "--audit")] = False,
) -> None:
    """Train an app and print a report. Ctrl-C saves a checkpoint; --resume continues from it."""
    learning_rate = hyperparameters.learning_rate
    if learning_rate is not None and not 0 < learning_rate < math.inf:
        raise ArgumentError(f"--learning-rate {learning_rate}: expected a number above 0.")
    if hyperparameters.compile and (cp > 1 or fsdp):
        raise ArgumentError("--compile does not work with --cp or --fsdp. Use it with --dp alone.")
    from maskwright.apps import TaskOptions, find_app
    from maskwright.apps.checkpoint import load_model
    from maskwright.apps.distributed import start
    from maskwright.apps.trainer import train as run
    from maskwright.tracing import trace as trace_calls

    cls = find_app(name)
    folder = output_dir or default_folder(cls, version)
    strategy = start(dp, cp, fsdp=fsdp, device=hyperparameters.device)
    options = TaskOptions(
        version, mask, **vars(corpus), batch_size=batch_size, seed=hyperparameters.seed
    )
    task = cls(options)
    config = _config(cls, options, **vars(hyperparameters), save_interval=save_interval)
    with _display(config.max_steps, enabled=strategy.is_main) as (log, on_step):
        count = sum(weight.numel() for weight in task.model.parameters())
        log(f"{name} {task.version}: {count:,} parameters, mask {task.describe_mask():.60}")
        if trace and strategy.is_main:
            log(str(trace_calls(task.loss, task.batch(0, 0))))

        def on_evaluate(state: TrainingState) -> None:
            step, loss = state.evaluations[-1]
            log(f"step {step}: loss {state.losses[-1]:.3f}, held-out loss {loss:.3f}")
            if on_step is not None:  # a terminal
                log(task.sample())

        result = run(
            task,
            config,
            folder,
            resume=resume,
            overwrite=overwrite,
            strategy=strategy,
            on_step=on_step,
            on_evaluate=on_evaluate,
        )
        if result.stopped == "interrupted":
            log(f"interrupted at step {result.state.step}; continue with --resume")
            raise typer.Exit(130)
        log(f"{result.seconds:.0f} s, {result.tokens_per_second:,.0f} tokens/s")
    strategy.close()
    if not strategy.is_main:
        return
    if strategy.is_sharded:  # the shards of the model are on ranks that have ended
        task = cls(options)
        load_model(folder / "best", task.model)
    for line in task.report():
        write(line)
    write(task.check_mask())
    if audit:
        write(str(task.audit()))
    write(f"saved in {folder}")


@command(
    'maskwright generate language "The " --max-new-tokens 200',
    'maskwright generate translation "twelve thousand" --num-beams 4',
    "maskwright generate image 3141 -o digits.png",
    "maskwright generate dialogue",
)
def generate(
    name: Name,
    text: Annotated[str | None, typer.Argument(metavar="PROMPT", help="The prompt.")] = None,
    version: Version = None,
    checkpoint: Annotated[Path | None, opt.option(FOLDER_TEXT)] = None,
    max_new_tokens: Annotated[
        int | None, opt.option("Maximum number of generated tokens.", min=1)
    ] = None,
    temperature: Annotated[float | None, opt.option("0 is greedy decoding.")] = None,
    top_k: Annotated[
        int | None, opt.option("Sample from, or list, the k most likely tokens.", min=1)
    ] = None,
    top_p: Annotated[float | None, opt.option("Nucleus sampling.")] = None,
    num_beams: Annotated[
        int | None, opt.option("Beam width (translation, summarisation).", min=1)
    ] = None,
    num_samples: Annotated[int | None, opt.option("Images per digit (image).", min=1)] = None,
    seed: Annotated[int | None, opt.option("Random seed.")] = None,
    output: Annotated[
        Path | None,
        opt.option("Output file: .txt or .json; for image also .png.", "--output", "-o"),
    ] = None,
) -> None:
    """Generate with a trained app. Without a prompt, dialogue is a chat."""
    from maskwright.apps import Prompt, find_app
    from maskwright.apps.checkpoint import checkpoint_exists, load_model, load_state

    cls = find_app(name)
    if output is not None and output.suffix.lower() not in cls.output_formats:
        suffixes = " or ".join(cls.output_formats)
        raise ArgumentError(f"--output {output}: expected a name that ends in {suffixes}.")
    if output is not None:
        opt.check_output(output)
    folder = checkpoint or default_folder(cls, version)
    checkpoints = [folder / kind for kind in ("best", "last") if checkpoint_exists(folder / kind)]
    if not checkpoints:
        command = f"maskwright train {name}" + (f" --version {version}" if version else "")
        command += f" --output-dir {checkpoint}" if checkpoint else ""
        raise ArgumentError(f"There is no checkpoint in {folder}. Run: {command}")
    state = load_state(checkpoints[0], name)
    if checkpoints[0].name == "last":
        note = f"{folder} has no best checkpoint: these are the last weights, of step {state.step}."
        typer.echo(note, err=True)
    task = cls.from_checkpoint(state)
    load_model(checkpoints[0], task.model)
    chat = task.chat(_typed_lines()) if text is None and output is None else None
    prompt = Prompt(
        *(text, max_new_tokens, temperature, top_k, top_p, num_beams, num_samples, seed)
    )
    lines = task.predict(prompt) if chat is None else chat
    if output is None:
        for line in lines:
            write(line)
        return
    with writing(output):
        task.save_prediction(output, list(lines))
    typer.echo(f"saved {output}", err=True)


@command(
    "maskwright compare-masks language",
    'maskwright compare-masks language --mask "window(back=3)" --max-steps 200',
    "maskwright compare-masks translation -o curves.svg",
    name="compare-masks",
)
def compare_masks(
    name: Name,
    *,
    mask: Annotated[
        str, model_opt("The other mask.", autocompletion=opt.complete_expression)
    ] = "everything()",
    version: Version = None,
    corpus: Corpus,
    max_steps: MaxSteps = None,
    seed: Seed = 0,
    device: Device = "auto",
    form: opt.TextFormat = None,
    output: opt.CurvesFile = None,
) -> None:
    """Train an app twice, with its own mask and with another, and compare losses and samples."""
    chosen = opt.choose_format(form, output, opt.CURVES)
    from maskwright.apps import TaskOptions, find_app
    from maskwright.apps.mask_ablation import compare_masks as run

    cls = find_app(name)
    options = TaskOptions(version, **vars(corpus), seed=seed)
    config = _config(cls, options, max_steps=max_steps, device=device)
    with _display(config.max_steps, to_stderr=True) as (log, on_step):
        result = run(cls, options, mask, config, log, on_step)
    if chosen == "json":
        write_json(result.as_dict(), output)
        if result.warning():
            typer.echo(result.warning(), err=True)
    elif chosen == "text":
        write(str(result), output)
    else:
        write(str(result))
        write(result.plot(chosen), output)


def default_folder(cls: type[Task], version: str | None) -> Path:
    """runs/APP-VERSION."""
    from maskwright.apps import TaskOptions

    return RUNS / f"{cls.name}-{cls.resolve_version(TaskOptions(version))}"


def _config(
    cls: type[Task], options: TaskOptions, *, max_steps: int | None, **settings: Any
) -> TrainingConfig:
    """The app's hyperparameters with those that are set."""
    config = cls.training_config(options)
    if max_steps is not None:
        interval = min(config.eval_interval, max_steps)
        config = replace(config, max_steps=max_steps, eval_interval=interval)
    return replace(config, **{name: x for name, x in settings.items() if x is not None})


@contextlib.contextmanager
def _display(
    max_steps: int, *, enabled: bool = True, to_stderr: bool = False
) -> Iterator[tuple[Callable[[str], object], Callable[[int, float, float], None] | None]]:
    """A function that prints a line, and one that updates the progress bar below the lines.

    Both use one rich console, so lines and bar do not overwrite each other. Without a terminal
    there is no bar.
    """
    stdout_is_terminal = sys.stdout is not None and sys.stdout.isatty()
    stream = sys.stdout if stdout_is_terminal and not to_stderr else sys.stderr
    if not enabled or stream is None or not stream.isatty():
        yield write if enabled and not to_stderr else lambda _: None, None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.completed}/{task.total}"),
        BarColumn(),
        TextColumn("loss {task.fields[loss]:.3f}"),
        TextColumn("{task.fields[speed]:,.0f} tokens/s"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(file=stream), transient=True) as bar:
        row = bar.add_task("", total=max_steps, loss=math.nan, speed=0.0)

        def log(line: str) -> None:
            if stream is sys.stderr and not to_stderr:  # standard output is a file
                write(line)
            else:
                bar.console.print(line, markup=False, highlight=False, soft_wrap=True)

        def on_step(step: int, loss: float, speed: float) -> None:
            bar.update(row, completed=step, loss=loss, speed=speed)

        yield log, on_step


def _typed_lines() -> Iterator[str]:
    """What the user types, line by line, up to the end of the input."""
    with contextlib.suppress(EOFError, typer.Abort):
        while True:
            yield str(typer.prompt("you", prompt_suffix="> "))
