"""Cycles of each phase of the C kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maskwright.engine.native.kernel import loaded

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
    kernel = loaded().module
    if kernel is None:
        run()
        return {}
    kernel.profile(True)
    try:
        run()
    finally:
        kernel.profile(False)
    cycles: dict[str, int] = kernel.phases()
    return cycles
