"""The memory that is free on this machine."""

from __future__ import annotations

import os
from pathlib import Path


def free_memory() -> float:
    """The free memory in bytes; infinite if it is not known.

    >>> free_memory() > 0
    True
    """
    try:  # Linux: free memory, and what the page cache can give back
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024 * next(float(x.split()[1]) for x in lines if x.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        pass
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        return float("inf")
