"""Cycles of each phase of the C kernel."""

from __future__ import annotations

from ctypes import c_int64
from typing import TYPE_CHECKING

from maskwright.engine.native import loaded

if TYPE_CHECKING:
    from collections.abc import Callable


def phase_cycles(run: Callable[[], object]) -> dict[str, int]:
    """Counts the cycles that the kernel spends in each phase while `run` runs.

    The counters are those of the time stamp counter, of all threads, and of all calls in the
    process. Counting is off otherwise.

    Args:
        run: Calls attention.

    Returns:
        The cycles by phase; empty without a kernel. A phase that did not run has 0. On processors
        other than x86 they are nanoseconds.

    >>> import numpy as np, maskwright as mw
    >>> x = np.ones((1, 1, 64, 8), np.float32)
    >>> found = phase_cycles(lambda: mw.attention(x, x, x, mw.causal()))
    >>> not found or found["scores"] > 0
    True
    """
    library = loaded().library
    if library is None:
        run()
        return {}
    library.maskwright_profile(1)
    try:
        run()
    finally:
        library.maskwright_profile(0)
    found: dict[str, int] = {}
    cycles = c_int64()
    while name := library.maskwright_phase(len(found), cycles):
        found[name.decode()] = cycles.value
    return found
