"""Atomic replacement of files."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def write_atomic(path: Path, content: str | bytes) -> None:
    """Writes a file and replaces an existing one atomically."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        fresh.write_bytes(content if isinstance(content, bytes) else content.encode())
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
