"""The losses of two trainings as one picture, for a page or a talk."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from maskwright._optional_deps import require

if TYPE_CHECKING:
    from maskwright.apps.cheat import Compared

COLOURS = ("#2a6f97", "#c1440e")
SMOOTHED = 50  # parts of a curve, each of which is a mean


def curves(compared: Compared, form: str) -> bytes:
    """Both curves, as "svg" or "png", with what tells how good each one's own writing is."""
    with require("compare-masks"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for name, outcome, judged, colour in zip(
        compared.names, compared.outcomes, compared.figures, COLOURS, strict=True
    ):
        steps, means = smoothed(outcome.progress.losses)
        axes.plot(steps, means, color=colour, label=f"{name:.40} ({judged:.2f})")
    axes.set(xlabel="step", ylabel="training loss", ylim=(0, None))
    axes.legend(title=f"in brackets: {compared.measured}", title_fontsize="small", frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    file = io.BytesIO()
    figure.savefig(file, format=form, dpi=160)
    return file.getvalue()


def smoothed(losses: list[float]) -> tuple[list[float], list[float]]:
    """The middle and the mean of each part of a curve.

    >>> from maskwright.apps.curves import smoothed
    >>> smoothed([4.0, 3.0, 2.0])
    ([0.5, 1.5, 2.5], [4.0, 3.0, 2.0])
    """
    step = max(1, len(losses) // SMOOTHED)
    parts = [losses[start : start + step] for start in range(0, len(losses), step)]
    return (
        [step * n + len(part) / 2 for n, part in enumerate(parts)],
        [sum(part) / len(part) for part in parts],
    )
