"""A folder that is made once for all workers of a run."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from filelock import FileLock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import pytest


def shared_folder(factory: pytest.TempPathFactory, name: str, fill: Callable[[Path], None]) -> Path:
    """The folder of that name; `fill` writes it in the worker that asks first."""
    base = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        base = base.parent
    folder, partial = base / name, base / f"{name}.partial"
    with FileLock(base / f"{name}.lock"):
        if not folder.exists():
            fill(partial)
            partial.rename(folder)
    return folder
