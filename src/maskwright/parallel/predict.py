"""How long attention over ranks would take, on machines that are not here: `predict`.

What may enter here: arithmetic on a plan and on two speeds, with everything assumed told.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from maskwright.parallel.shards import Shards

GRADIENTS: Final = 2  # bytes of a gradient for one of a key: halves go back in float32
BACKWARD: Final = 2.5  # products of the backward pass, five, against two of the forward pass
PREFIXES: Final = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "p": 10**15}


@dataclass(frozen=True)
class Prediction:
    """Seconds of one attention, forwards and backwards, on the slowest rank.

    `computing` and `moving` are what each would take alone. The step takes at least the longer of
    the two, `hidden`, where all that is moved is moved meanwhile, and at most both, `bare`.

    >>> import maskwright as mw
    >>> from maskwright.parallel.balance import balance
    >>> shards = balance(mw.causal().on(2**12, heads=8), 4, key_bytes=2**12)
    >>> found = predict(shards, link=50e9, flops=400e12)
    >>> found.hidden == max(found.computing, found.moving)
    True
    >>> found.ideal <= found.hidden <= found.bare
    True
    >>> found.as_dict()["ranks"]
    4
    """

    shards: Shards
    link: float  # bytes a second, in and out at once
    flops: float  # a second, of one rank
    head_dim: int

    @property
    def computing(self) -> float:
        """Seconds that the busiest rank computes."""
        return self._seconds(float(self.shards.work.max()))

    @property
    def moving(self) -> float:
        """Seconds that the longest way there and back takes."""
        there, back = self.shards.bytes_in, self.shards.bytes_out
        busiest = max(int(there.max()), int(back.max()))
        return (1 + GRADIENTS) * busiest / self.link

    @property
    def hidden(self) -> float:
        """Seconds of a step in which everything is moved while other things are computed."""
        return max(self.computing, self.moving)

    @property
    def bare(self) -> float:
        """Seconds of a step in which nothing is moved while anything is computed."""
        return self.computing + self.moving

    @property
    def ideal(self) -> float:
        """Seconds with the same work on every rank and nothing to move."""
        return self._seconds(float(self.shards.work.mean()))

    def as_dict(self) -> dict[str, Any]:
        """All of it, for a file: seconds, and what every rank has."""
        shards = self.shards
        ranks = ("rows", "work", "keys_in", "keys_out", "bytes_in", "bytes_out")
        times = ("computing", "moving", "hidden", "bare", "ideal")
        return {
            "tokens": shards.tokens,
            "ranks": shards.ranks,
            "how": shards.how,
            "balance": shards.balance,
            "evenness": shards.evenness,
            "ring_share": shards.ring_share,
            "seconds": {name: getattr(self, name) for name in times},
            "assumed": {"link": self.link, "flops": self.flops, "head_dim": self.head_dim},
            **{name: getattr(shards, name).tolist() for name in ranks},
        }

    def _seconds(self, cells: float) -> float:
        return (1 + BACKWARD) * 4 * self.head_dim * cells / self.flops

    def __str__(self) -> str:
        lines = [
            str(self.shards),
            f"one attention, forwards and backwards: {_time(self.hidden)} where all moving is "
            f"hidden, {_time(self.bare)} where none is, {_time(self.ideal)} at best",
            f"  computing {_time(self.computing)} on the busiest rank, moving {_time(self.moving)}",
            f"assumed: {self.flops:.3g} flops a second and rank, all of them used; "
            f"{self.link:.3g} bytes a second into and out of each rank at once, no latency; "
            f"4 × {self.head_dim} flops a cell, and {BACKWARD} times that backwards; "
            f"{self.shards.key_bytes} bytes of key and value a token, in half precision, "
            "and gradients in float32",
        ]
        return "\n".join(lines)


def predict(shards: Shards, link: float, flops: float, head_dim: int = 128) -> Prediction:
    """What one attention under a plan would take, by the speed of ranks and of their links.

    >>> import maskwright as mw
    >>> from maskwright.parallel.balance import balance
    >>> shards = balance(mw.causal().on(2**16, heads=32), 8, key_bytes=2**14)
    >>> found = predict(shards, link=50e9, flops=400e12)
    >>> round(found.computing * 1e3, 1), round(found.moving * 1e3, 1)
    (38.5, 56.4)
    """
    for name, speed in (("link", link), ("flops", flops)):
        if not speed > 0:
            raise ArgumentError(f"predict: {name}={speed} is no speed. Give a number above 0.")
    return Prediction(shards, float(link), float(flops), head_dim)


def read_amount(text: str, what: str) -> float:
    """A number with a prefix and a unit: "50GB/s", "400T", "4m".

    >>> read_amount("50GB/s", "--link"), read_amount("400T", "--flops")
    (50000000000.0, 400000000000000.0)
    """
    found = re.fullmatch(r"\s*([0-9.]+)\s*([kmgtp]?)(?:b|flops?)?(?:/s)?\s*", text.lower())
    try:
        return float(found[1]) * PREFIXES[found[2]] if found else _refuse(text, what)
    except ValueError:
        return _refuse(text, what)


def _refuse(text: str, what: str) -> float:
    raise ArgumentError(
        f"{what} {text!r} is no amount. Give a number with k, m, g, t or p behind it, as in 50G."
    )


def _time(seconds: float) -> str:
    for size, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e9:.3g} ns"
