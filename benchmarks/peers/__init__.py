"""The implementations that attention is compared with: each module of this package is one peer.

A peer defines `ways(case, dtype)`, which returns its implementations of a case by name. It prepares
masks and whatever else a caller can keep between calls; only the function of q, k and v is timed. A
peer whose package is not installed returns none. The tensors are torch's: a peer of another framework
converts them without a copy (`torch.utils.dlpack`) and returns a torch tensor.
"""

from __future__ import annotations

import pkgutil
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING

from benchmarks.figures import BOTH, FORWARD

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    import torch

    from benchmarks.patterns import Case

    Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Way:
    """One implementation of a case."""

    attend: Attention
    compiles: bool = False  # the first call also compiles, and is timed separately
    modes: tuple[str, ...] = (FORWARD, BOTH)
    max_cells: tuple[int | None, int | None] = (None, None)  # query × key cells, forward and both
    upcast: bool = False  # for bfloat16, also measured in float32 with casts before and after

    def is_measured(self, mode: str, cells: int) -> bool:
        """Whether this mode is measured with so many query × key cells."""
        limit = self.max_cells[mode == BOTH]
        return mode in self.modes and (limit is None or cells <= limit)


def names() -> list[str]:
    """The modules of this package."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def ways(case: Case, dtype: str, peers: Iterable[str] | None = None) -> dict[str, Way]:
    """The implementations of all peers, or of those named."""
    found: dict[str, Way] = {}
    for name in names() if peers is None else peers:
        found |= import_module(f"{__name__}.{name}").ways(case, dtype)
    return found
