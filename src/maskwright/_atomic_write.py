"""Atomic replacement of files and folders."""

from __future__ import annotations

import os
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def write_atomic(path: Path, content: str | bytes) -> None:
    """Writes a file and replaces an existing one atomically."""
    fresh = path.with_name(f".{path.name}.{os.getpid()}.new")
    try:
        fresh.write_bytes(content if isinstance(content, bytes) else content.encode())
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)


@contextmanager
def replace_folder(folder: Path) -> Iterator[Path]:
    """Yields an empty folder that replaces `folder` when the block ends without an error.

    A reader finds the previous folder, or the new one: see `complete_folder`.

    >>> import tempfile
    >>> from pathlib import Path
    >>> folder = Path(tempfile.mkdtemp()) / "last"
    >>> with replace_folder(folder) as fresh:
    ...     _ = (fresh / "step.txt").write_text("7")
    >>> (folder / "step.txt").read_text(), complete_folder(folder) == folder
    ('7', True)
    """
    fresh = staging_folder(folder)
    try:
        yield fresh
        commit_folder(fresh, folder)
    except BaseException:
        shutil.rmtree(fresh, ignore_errors=True)
        raise


def staging_folder(folder: Path) -> Path:
    """Creates the empty folder `….new` next to `folder`, for `commit_folder`."""
    fresh = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True)
    return fresh


def commit_folder(fresh: Path, folder: Path) -> None:
    """Replaces `folder` by `fresh`. In between, the previous one is called `….old`."""
    old = folder.with_name(f"{folder.name}.old")
    if folder.exists():
        shutil.rmtree(old, ignore_errors=True)
        folder.rename(old)
    fresh.rename(folder)
    shutil.rmtree(old, ignore_errors=True)


def complete_folder(folder: Path) -> Path | None:
    """Returns `folder`, or `….old` if its replacement was interrupted, or None if neither exists."""
    old = folder.with_name(f"{folder.name}.old")
    return next((path for path in (folder, old) if path.is_dir()), None)
