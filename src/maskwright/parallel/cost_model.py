"""`predict`: the time of attention over ranks, from a layout and the speeds of ranks and links."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from maskwright.errors import ArgumentError
from maskwright.parallel.layout import PER_RANK, ShardLayout

GRADIENT_BYTES: Final = 2  # per byte of the keys; half-precision keys have float32 gradients
BACKWARD_FLOPS: Final = 2.5  # per flop of the forward pass: five matrix products instead of two
PREFIXES: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "p": 10**15}


@dataclass(frozen=True)
class Prediction:
    """Seconds of one attention, forward and backward, on the slowest rank.

    A step takes between `overlapped` and `sequential`, depending on how much of the communication
    happens during computation.

    Attributes:
        layout: The shards of the sequence.
        link: Bytes per second into and out of each rank, at the same time.
        flops: Floating-point operations per second of each rank.
        head_dim: Head size.

    >>> import maskwright as mw
    >>> from maskwright.parallel.layout import balance
    >>> layout = balance(mw.causal().on(2**12, heads=8), 4, key_bytes=2**12)
    >>> found = predict(layout, link=50e9, flops=400e12)
    >>> found.overlapped == max(found.compute, found.communication)
    True
    >>> found.ideal <= found.overlapped <= found.sequential
    True
    >>> found.as_dict()["ranks"]
    4
    """

    layout: ShardLayout
    link: float
    flops: float
    head_dim: int

    @property
    def compute(self) -> float:
        """Seconds of computation on the rank with the largest cost."""
        return self._seconds(float(self.layout.cost.max()))

    @property
    def communication(self) -> float:
        """Seconds of the largest transfer of keys and of their gradients."""
        largest = max(int(self.layout.bytes_in.max()), int(self.layout.bytes_out.max()))
        return (1 + GRADIENT_BYTES) * largest / self.link

    @property
    def overlapped(self) -> float:
        """Seconds if all communication happens during computation."""
        return max(self.compute, self.communication)

    @property
    def sequential(self) -> float:
        """Seconds if no communication happens during computation."""
        return self.compute + self.communication

    @property
    def ideal(self) -> float:
        """Seconds with equal cost on all ranks and no communication."""
        return self._seconds(float(self.layout.cost.mean()))

    def as_dict(self) -> dict[str, Any]:
        """All results and assumptions, as JSON values."""
        layout = self.layout
        sizes = ("tokens", "ranks", "strategy")
        ratios = ("cost_imbalance", "row_imbalance", "comm_fraction")
        times = ("compute", "communication", "overlapped", "sequential", "ideal")
        return {
            **{name: getattr(layout, name) for name in sizes + ratios},
            "seconds": {name: getattr(self, name) for name in times},
            "assumed": {"link": self.link, "flops": self.flops, "head_dim": self.head_dim},
            **{name: getattr(layout, name).tolist() for name in PER_RANK},
        }

    def _seconds(self, cells: float) -> float:
        return (1 + BACKWARD_FLOPS) * 4 * self.head_dim * cells / self.flops

    def __str__(self) -> str:
        lines = [
            str(self.layout),
            f"one attention, forward and backward: {_format_time(self.overlapped)} with all "
            f"communication overlapped, {_format_time(self.sequential)} with none, "
            f"{_format_time(self.ideal)} ideal",
            f"  compute {_format_time(self.compute)} on the slowest rank, "
            f"communication {_format_time(self.communication)}",
            f"assumed: {self.flops:.3g} flops/s per rank, fully used; {self.link:.3g} bytes/s into "
            f"and out of each rank at the same time, no latency; 4 × {self.head_dim} flops per "
            f"cell, and {BACKWARD_FLOPS} times that in the backward pass; {self.layout.key_bytes} "
            "bytes of key and value per token in half precision, gradients in float32",
        ]
        return "\n".join(lines)


def predict(layout: ShardLayout, link: float, flops: float, head_dim: int = 128) -> Prediction:
    """Predict the time of one attention with a layout.

    Args:
        layout: The shards, from `balance` with `key_bytes`.
        link: Bytes per second into and out of each rank.
        flops: Floating-point operations per second of each rank.
        head_dim: Head size.

    Returns:
        The predicted times, bytes and memory.

    Raises:
        ArgumentError: A speed is not positive.

    >>> import maskwright as mw
    >>> from maskwright.parallel.layout import balance
    >>> layout = balance(mw.causal().on(2**16, heads=32), 8, key_bytes=2**14)
    >>> found = predict(layout, link=50e9, flops=400e12)
    >>> round(found.compute * 1e3, 1), round(found.communication * 1e3, 1)
    (38.5, 56.4)
    """
    for name, speed in (("link", link), ("flops", flops)):
        if not speed > 0:
            raise ArgumentError(f"predict: {name}={speed}, expected more than 0.")
    return Prediction(layout, float(link), float(flops), head_dim)


def parse_quantity(text: str, what: str) -> float:
    """A number with a prefix and a unit, such as "50GB/s", "400T" or "4m".

    >>> parse_quantity("50GB/s", "--link"), parse_quantity("400T", "--flops")
    (50000000000.0, 400000000000000.0)
    """
    number = r"(\d+\.?\d*|\.\d+)"
    match = re.fullmatch(rf"\s*{number}\s*([kmgtp]?)(?:b|flops?)?(?:/s)?\s*", text.lower())
    if match is None:
        raise ArgumentError(
            f"{what}: {text!r} is not a quantity, expected a number and k, m, g, t or p, as in 50G."
        )
    return float(match[1]) * PREFIXES[match[2]]


def _format_time(seconds: float) -> str:
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
