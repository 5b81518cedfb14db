"""Files that are written whole or not at all."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def write_atomic(path: Path, content: str | bytes) -> None:
    """Write a file; a half-written one never takes the place of a good one."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        fresh.write_bytes(content if isinstance(content, bytes) else content.encode())
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
