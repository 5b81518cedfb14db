"""The cheat, shown: one app trained twice, with its own mask and with another.

A model that may see the future copies it. Its loss falls far below the honest one, and what it
writes is worthless, because when it writes there is no future to copy from.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from maskwright.apps.app import named_mask
from maskwright.apps.training import Course, Outcome, train

if TYPE_CHECKING:
    from collections.abc import Callable

    from maskwright.apps.app import App, Wishes

BARS = "▁▂▃▄▅▆▇█"
COLUMNS = 60


@dataclass(frozen=True)
class Compared:
    """Two trainings of one app, the honest one first."""

    names: tuple[str, str]
    outcomes: tuple[Outcome, Outcome]
    samples: tuple[str, str]
    measured: str  # what tells how good their own writing is
    figures: tuple[float, float]

    @property
    def last_losses(self) -> tuple[float, float]:
        """The mean training loss of the last tenth of the steps."""
        first, second = (_end(outcome.progress.losses) for outcome in self.outcomes)
        return first, second

    def as_dict(self) -> dict[str, Any]:
        """Plain data."""
        return {
            name: {
                "losses": outcome.progress.losses,
                "evaluations": outcome.progress.evaluations,
                "sample": sample,
                "judged": {"by": self.measured, "figure": figure},
            }
            for name, outcome, sample, figure in zip(
                self.names, self.outcomes, self.samples, self.figures, strict=True
            )
        }

    def __str__(self) -> str:
        top = max(max(outcome.progress.losses) for outcome in self.outcomes)
        lines = []
        for name, outcome, last, sample, figure in zip(
            self.names, self.outcomes, self.last_losses, self.samples, self.figures, strict=True
        ):
            lines += [name, f"  {curve(outcome.progress.losses, top)}  {last:.3f}"]
            lines += [f"  {self.measured}: {figure:.3f}", "  it gives:"]
            shown = sample.splitlines() if sample.strip() else ["(nothing but blanks)"]
            lines += [*(f"    {line}" for line in shown), ""]
        honest, other = self.last_losses
        if other <= honest:
            told = f"{honest / max(other, 1e-9):.1f} times lower"
        else:
            told = f"{other / max(honest, 1e-9):.1f} times higher"
        lines.append(f"The training loss under {self.names[1]} is {told}.")
        return "\n".join(lines)


def compare_masks(
    app: App,
    wishes: Wishes,
    mask: str,
    course: Course,
    say: Callable[[str], object] = lambda _: None,
) -> Compared:
    """Train the app with its own mask, then the same with another one."""
    honest, other = app.task(wishes), app.task(replace(wishes, mask=mask))
    names, outcomes, samples, judged = [], [], [], []
    for task in (honest, other):
        names.append(named_mask(task))
        say(f"training under {names[-1]}")
        outcomes.append(train(task, course))
        samples.append(app.sample(task))
        judged.append(app.judged(task, honest))
    return Compared(
        (names[0], names[1]),
        (outcomes[0], outcomes[1]),
        (samples[0], samples[1]),
        judged[0][0],
        (judged[0][1], judged[1][1]),
    )


def curve(losses: list[float], top: float) -> str:
    """Losses as a line of bars.

    >>> from maskwright.apps.cheat import curve
    >>> curve([4.0, 2.0, 1.0, 0.0], top=4.0)
    '█▅▃▁'
    """
    step = max(1, len(losses) // COLUMNS)
    means = [
        sum(part) / len(part) for n in range(0, len(losses), step) if (part := losses[n : n + step])
    ]
    return "".join(BARS[min(7, int(8 * mean / top))] if top else BARS[0] for mean in means)


def _end(losses: list[float]) -> float:
    part = losses[-max(1, len(losses) // 10) :]
    return sum(part) / len(part)
