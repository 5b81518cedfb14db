"""Mask ablation: one task trained twice, with its own mask and with another, and compared.

A model that attends to the future copies it: its training loss is much lower, but what it generates
is worthless, because there is no future to copy from when it generates.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from statistics import fmean as mean
from typing import TYPE_CHECKING, Any

from maskwright._optional_deps import require
from maskwright.apps.trainer import TrainingConfig, TrainingResult, train

if TYPE_CHECKING:
    from collections.abc import Callable

    from maskwright.apps import Task, TaskOptions

BARS = "▁▂▃▄▅▆▇█"
TEXT_COLUMNS, PLOT_POINTS = 60, 50  # losses are averaged into at most about twice as many
COLORS = ("#2a6f97", "#c1440e")
EQUAL_RATIO = 1.1  # of two losses, below which they are called equal
CLEAR_RATIO = 2.0  # of two losses, from which a short run tells the masks apart


@dataclass(frozen=True)
class MaskRun:
    """A training run with one mask."""

    mask: str
    result: TrainingResult
    sample: str
    score: float  # of free generation

    @property
    def losses(self) -> list[float]:
        """The training loss of each step."""
        return self.result.state.losses

    @property
    def final_loss(self) -> float:
        """The mean training loss over the last tenth of the steps."""
        return mean(self.losses[-max(1, len(self.losses) // 10) :])


@dataclass(frozen=True)
class MaskAblation:
    """Two training runs of one task: with its own mask first, then with the other."""

    own: MaskRun
    other: MaskRun
    metric: str  # of the scores
    default_steps: int  # that the app is trained for

    def as_dict(self) -> dict[str, Any]:
        """All losses, samples and scores as plain data."""
        return {
            run.mask: {
                "losses": run.losses,
                "evaluations": run.result.state.evaluations,
                "sample": run.sample,
                "score": {"metric": self.metric, "value": run.score},
            }
            for run in (self.own, self.other)
        }

    def __str__(self) -> str:
        top = max(*self.own.losses, *self.other.losses)
        lines = []
        for run in (self.own, self.other):
            shown = run.sample.splitlines() if run.sample.strip() else ["(only white space)"]
            lines += [run.mask, f"  {sparkline(run.losses, top)}  {run.final_loss:.3f}"]
            lines += [f"  {self.metric}: {run.score:.3f}", "  sample:"]
            lines += [*(f"    {line}" for line in shown), ""]
        return "\n".join([*lines, self.conclusion(), *filter(None, [self.warning()])])

    def conclusion(self) -> str:
        """One sentence on the training losses."""
        if self._ratio < EQUAL_RATIO:
            return f"The training losses with both masks differ by {self._ratio - 1:.1%}."
        order = "lower" if self.other.final_loss < self.own.final_loss else "higher"
        return f"The training loss with {self.other.mask} is {self._ratio:.1f} times {order}."

    def warning(self) -> str | None:
        """A sentence if a run was too short: losses and scores may still change their order."""
        unfinished = [run for run in (self.own, self.other) if run.result.stopped != "patience"]
        steps = min((len(run.losses) for run in unfinished), default=self.default_steps)
        if steps >= self.default_steps or self._ratio >= CLEAR_RATIO:
            return None
        return (
            f"Warning: {steps} of {self.default_steps} steps are too few to tell the masks apart. "
            "Losses and generated samples may still change their order. Omit --max-steps."
        )

    @property
    def _ratio(self) -> float:
        """The higher of the two training losses, divided by the lower one."""
        low, high = sorted(max(run.final_loss, 1e-9) for run in (self.own, self.other))
        return high / low

    def plot(self, file_format: str) -> bytes:
        """Both loss curves as "svg" or "png"."""
        with require("compare-masks"):
            from matplotlib.backends.backend_agg import FigureCanvasAgg
            from matplotlib.figure import Figure
        figure = Figure(figsize=(7, 3.6), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.add_subplot()
        for run, color in zip((self.own, self.other), COLORS, strict=True):
            size, means = averaged(run.losses, PLOT_POINTS)
            steps = [size * (n + 0.5) for n in range(len(means))]
            axes.plot(steps, means, color=color, label=f"{run.mask:.40} ({run.score:.2f})")
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
    runs = []
    for task in tasks:
        log(f"training with {task.describe_mask()}")
        result = train(task, config, on_step=on_step)
        sample = task.sample()
        metric, score = task.score_generation(tasks[0])
        runs.append(MaskRun(task.describe_mask(), result, sample, score))
    default_run, other_run = runs
    return MaskAblation(default_run, other_run, metric, app.training_config(options).max_steps)


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
    return size, [mean(losses[n : n + size]) for n in range(0, len(losses), size)]
