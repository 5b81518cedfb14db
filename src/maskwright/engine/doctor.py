"""What attention is computed by on this machine, and why."""

from __future__ import annotations

import platform
from importlib.util import find_spec

import numpy as np

from maskwright.engine.native.bindings import borrow_threads, loaded


def facts() -> dict[str, str]:
    """In words, by name.

    >>> sorted(facts())
    ['kernel', 'library', 'other instructions', 'python', 'threads', 'torch']
    """
    torch = find_spec("torch")
    threads = _threads(torch is not None)
    library = loaded()
    others = [name for name in library.isas if name != library.isa]
    return {
        "python": f"{platform.python_version()} on {platform.machine()}, numpy {np.__version__}",
        "torch": _torch_version() if torch else "not installed: attention takes numpy arrays only",
        "kernel": f"{library.isa}: {library.reason}" if library.isa else f"none: {library.reason}",
        "library": str(library.path or "none"),
        "other instructions": ", ".join(others) or "none",
        "threads": threads,
    }


def _torch_version() -> str:
    import torch

    return str(torch.__version__)


def _threads(with_torch: bool) -> str:
    if not with_torch:
        from maskwright.engine.native.bindings import thread_count

        return f"{thread_count()}, started for each call"
    import torch

    borrow_threads()
    whose = "PyTorch's own" if loaded().borrows_threads else "started for each call"
    return f"{torch.get_num_threads()}, {whose}"
