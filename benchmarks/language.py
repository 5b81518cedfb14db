"""Held-out losses of the app `language` during training: its models with one head and with eight.

`python -m benchmarks language` trains both with their default options on Python's help topics and
writes results/language.json. The losses are those of a seed; the seconds are those of the training.
"""

from __future__ import annotations

import argparse
import ast
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.figures import clock
from benchmarks.measure import machine, save, table
from maskwright.apps import TaskOptions, find_app
from maskwright.apps.trainer import train

if TYPE_CHECKING:
    from collections.abc import Sequence

VERSIONS = {"v3": "one head", "v4": "eight heads"}
SHOWN = (100, 200, 300, 500, 700, 1_000, 1_200, 1_500)  # steps; a run may be shorter


def measure(version: str, max_steps: int | None = None) -> dict[str, Any]:
    """Trains one version, and returns the held-out loss of each evaluation, and a bigram model's."""
    kind = find_app("language")
    options = TaskOptions(version=version)
    task = kind(options)
    config = kind.training_config(options)
    if max_steps is not None:
        config = replace(config, max_steps=max_steps)
    result = train(task, config)
    loss, sample = task.report()
    (bigram,) = re.findall(r"bigram model: ([\d.]+)", loss)
    return {
        "evaluations": result.state.evaluations,
        "best": result.state.best_loss,
        "bigram": float(bigram),
        "sample": ast.literal_eval(sample.removeprefix("sample: ")),
        "seconds": result.seconds,
    }


def losses(found: dict[str, Any], labels: dict[str, str], step: str) -> str:
    """The table of the lessons: the held-out loss by step."""
    evaluations = {version: dict(run["evaluations"]) for version, run in found["versions"].items()}
    steps = [n for n in SHOWN if all(n in losses for losses in evaluations.values())]
    rows = [
        [f"{version}{labels[version]}", *(f"{by_step[n]:.3f}" for n in steps)]
        for version, by_step in evaluations.items()
    ]
    return table([step, *(f"{n}" for n in steps)], rows)


def samples(versions: dict[str, Any]) -> str:
    """What each version generates after a line break, as a block of code."""
    lines = []
    for version, run in versions.items():
        text = [line.rstrip() for line in run["sample"].splitlines() if line.strip()]
        lines += [f"    {version}: {text[0]}", *(f"        {line}" for line in text[1:])]
    return "\n".join(lines)


def run(given: Sequence[str] = ()) -> int:
    """Train, print the table, keep the JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks language", description=__doc__)
    parser.add_argument("--max-steps", type=int, help="a part; default: all of each version")
    steps = parser.parse_args(given).max_steps
    versions = {version: measure(version, steps) for version in VERSIONS}
    found = {"threads": torch.get_num_threads(), "versions": versions}
    print(f"\n{machine()}\n")
    labels = {version: f", {heads}" for version, heads in VERSIONS.items()}
    print(losses(found, labels, "step"))
    for version, result in versions.items():
        print(f"{version}: {clock(result['seconds'])}, bigram model {result['bigram']:.3f}")
    print(f"\nwritten to {save('language' if steps is None else 'language-part', found)}")
    return 0
