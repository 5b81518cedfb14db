"""Mask ablation: one task trained twice, with its own mask and with another, and compared.

A model that attends to the future copies it: its training loss is much lower, but what it generates
is worthless, because there is no future to copy from when it generates.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from maskwright._optional_deps import require
from maskwright.apps.trainer import TrainingConfig, TrainingResult, train

if TYPE_CHECKING:
    from collections.abc import Callable

    from maskwright.apps import Task, TaskOptions

BARS = "▁▂▃▄▅▆▇█"
TEXT_COLUMNS, PLOT_POINTS = 60, 50  # losses are averaged into at most about twice as many
COLORS = ("#2a6f97", "#c1440e")
MIN_STEPS = 100  # fewer steps do not tell the masks apart


@dataclass(frozen=True)
class MaskAblation:
    """Two training runs of one task: with its own mask first, then with the other."""

    names: tuple[str, str]
    results: tuple[TrainingResult, TrainingResult]
    samples: tuple[str, str]
    metric: str  # of free generation
    scores: tuple[float, float]

    @property
    def final_losses(self) -> tuple[float, float]:
        """The mean training loss over the last tenth of the steps."""
        losses = [result.state.losses for result in self.results]
        first, second = (_mean(x[-max(1, len(x) // 10) :]) for x in losses)
        return first, second

    def as_dict(self) -> dict[str, Any]:
        """All losses, samples and scores as plain data."""
        return {
            name: {
                "losses": result.state.losses,
                "evaluations": result.state.evaluations,
                "sample": sample,
                "score": {"metric": self.metric, "value": score},
            }
            for name, result, sample, score in zip(
                self.names, self.results, self.samples, self.scores, strict=True
            )
        }

    def __str__(self) -> str:
        top = max(max(result.state.losses) for result in self.results)
        lines = []
        for name, result, loss, sample, score in zip(
            self.names, self.results, self.final_losses, self.samples, self.scores, strict=True
        ):
            shown = sample.splitlines() if sample.strip() else ["(only white space)"]
            lines += [name, f"  {sparkline(result.state.losses, top)}  {loss:.3f}"]
            lines += [f"  {self.metric}: {score:.3f}", "  sample:"]
            lines += [*(f"    {line}" for line in shown), ""]
        return "\n".join([*lines, self.conclusion()])

    def conclusion(self) -> str:
        """One sentence on the training losses."""
        steps = min(len(result.state.losses) for result in self.results)
        if steps < MIN_STEPS:
            return (
                f"{steps} steps are too few to tell the masks apart. Pass --max-steps of at least "
                f"{MIN_STEPS}."
            )
        own, other = (max(loss, 1e-9) for loss in self.final_losses)
        ratio = (
            f"{own / other:.1f} times lower" if other <= own else f"{other / own:.1f} times higher"
        )
        return f"The training loss with {self.names[1]} is {ratio}."

    def plot(self, file_format: str) -> bytes:
        """Both loss curves as "svg" or "png"."""
        with require("compare-masks"):
            from matplotlib.backends.backend_agg import FigureCanvasAgg
            from matplotlib.figure import Figure
        figure = Figure(figsize=(7, 3.6), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        for name, result, score, color in zip(
            self.names, self.results, self.scores, COLORS, strict=True
        ):
            size, means = averaged(result.state.losses, PLOT_POINTS)
            steps = [size * (n + 0.5) for n in range(len(means))]
            axes.plot(steps, means, color=color, label=f"{name:.40} ({score:.2f})")
        axes.set(xlabel="step", ylabel="training loss", ylim=(0, None))
        axes.legend(title=f"in brackets: {self.metric}", title_fontsize="small", frameon=False)
        axes.spines[["top", "right"]].set_visible(False)
        file = io.BytesIO()
        figure.savefig(file, format=file_format, dpi=160)
        return file.getvalue()


def compare_masks(
    app: type[Task],
    options: TaskOptions,
    mask: str,
    config: TrainingConfig,
    log: Callable[[str], object] = lambda _: None,
    on_step: Callable[[int, float, float], None] | None = None,
) -> MaskAblation:
    """Trains an app with its own mask, then with another one, and compares the two."""
    tasks = app(options), app(replace(options, mask=mask))
    results, samples, scores = [], [], []
    for task in tasks:
        log(f"training with {task.describe_mask()}")
        results.append(train(task, config, on_step=on_step))
        samples.append(task.sample())
        scores.append(task.score_generation(tasks[0]))
    return MaskAblation(
        (tasks[0].describe_mask(), tasks[1].describe_mask()),
        (results[0], results[1]),
        (samples[0], samples[1]),
        scores[0][0],
        (scores[0][1], scores[1][1]),
    )


def sparkline(losses: list[float], top: float) -> str:
    """Losses as a line of bars.

    >>> from maskwright.apps.mask_ablation import sparkline
    >>> sparkline([4.0, 2.0, 1.0, 0.0], top=4.0)
    '█▅▃▁'
    """
    _, means = averaged(losses, TEXT_COLUMNS)
    return "".join(BARS[min(7, int(8 * mean / top))] if top else BARS[0] for mean in means)


def averaged(losses: list[float], points: int) -> tuple[int, list[float]]:
    """Means over groups of steps: the size of a group, and the means.

    >>> from maskwright.apps.mask_ablation import averaged
    >>> averaged([4.0, 2.0, 1.0, 3.0], points=2)
    (2, [3.0, 2.0])
    """
    size = max(1, len(losses) // points)
    return size, [_mean(losses[n : n + size]) for n in range(0, len(losses), size)]


def _mean(values: list[float]) -> float:
    return sum(values) / len(values)
