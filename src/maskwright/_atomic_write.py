"""Atomic replacement of files and folders, which also survives a power loss.

All files that maskwright writes are written here. The new content goes to a temporary name in the
same folder, is flushed to the disk and then renamed, so a reader finds the previous content or the
new one. A writer holds a lock of its temporary file: one that nobody locks is of a writer that died,
and the next writer in that folder deletes it. Windows has no such locks, and these files stay there.
"""

from __future__ import annotations

import errno
import os
import secrets
import shutil
import stat
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

PREFIX, SUFFIX = ".maskwright-", ".new"  # of temporary names; they are short for any file name
CANNOT_SYNC: Final = (errno.EINVAL, errno.ENOTSUP, errno.EBADF)  # of folders, on some filesystems
STANDARD_STREAMS: Final = (1, 2)


def write_atomic(path: Path, content: str | bytes) -> None:
    """Writes a file and replaces an existing one atomically.

    A symbolic link stays, and its target is replaced. An existing file keeps its permissions. A
    device, a FIFO and what standard output is redirected to are written to.

    Raises:
        OSError: If the file cannot be written; its `filename` is the path.
    """
    data = content if isinstance(content, bytes) else content.encode()
    with _errors_of(path):
        status = _writable_status(path)
        stream = None if status is None else _standard_stream(status)
        if stream is None and (status is None or stat.S_ISREG(status.st_mode)):
            _replace_file(_follow(path), data, status)
            return
        target = path if stream is None else os.dup(stream)
        with open(target, "wb") as file:  # noqa: PTH123 - a path or a descriptor
            file.write(data)


def check_writable(path: Path) -> None:
    """Checks that `write_atomic` can write a file, before its content is computed.

    Raises:
        OSError: If it cannot; its `filename` is the path.
    """
    with _errors_of(path):
        _writable_status(path)


@contextmanager
def replace_folder(folder: Path) -> Iterator[Path]:
    """Yields an empty folder that replaces `folder` when the block ends without an error.

    A reader finds the previous folder, or the new one: see `complete_folder`. If there are several
    writers, the last one to finish decides.

    Raises:
        OSError: If the folder cannot be written, or is a file.

    >>> import tempfile
    >>> from pathlib import Path
    >>> folder = Path(tempfile.mkdtemp()) / "last"
    >>> with replace_folder(folder) as fresh:
    ...     _ = (fresh / "step.txt").write_text("7")
    >>> (folder / "step.txt").read_text(), complete_folder(folder) == folder
    ('7', True)
    """
    folder = _follow(folder)
    with suppress(FileNotFoundError):
        if not stat.S_ISDIR(folder.stat().st_mode):
            raise _os_error(errno.ENOTDIR, folder)
    create_folder(folder.parent)
    with _temporary(folder.parent, Path.mkdir) as fresh:
        yield fresh
        _sync_tree(fresh)
        _exchange(fresh, folder)


def complete_folder(folder: Path) -> Path | None:
    """Returns `folder`, or `….old` if its replacement was interrupted, or None if neither exists."""
    folder = _follow(folder)
    # A writer may finish between two looks: then `folder` exists again.
    candidates = (folder, _previous(folder), folder)
    return next((path for path in candidates if path.is_dir()), None)


def create_folder(folder: Path) -> None:
    """Creates a folder, and those above it that do not exist."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        _sync_folder(path.parent)


# ── files ─────────────────────────────────────────────────────────────────────────────────────


def _replace_file(path: Path, data: bytes, status: os.stat_result | None) -> None:
    """Replaces a file. `status` is that of the existing one, which may be private."""
    mode = 0o666 if status is None else 0o600  # less the umask

    def create(fresh: Path) -> None:
        os.close(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_WRONLY, mode))

    with _temporary(path.parent, create) as fresh:
        with fresh.open("wb") as file:
            if status is not None:
                if hasattr(os, "chown"):
                    with suppress(PermissionError):  # only root can give a file to its owner
                        os.chown(fresh, status.st_uid, status.st_gid)
                fresh.chmod(stat.S_IMODE(status.st_mode))
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)
        _sync_folder(path.parent)


def _writable_status(path: Path) -> os.stat_result | None:
    """What `path` leads to, None if there is no such file; an OSError if it cannot be written."""
    try:
        status = path.stat()
    except FileNotFoundError:
        status = None
    if status is not None:
        if stat.S_ISDIR(status.st_mode):
            raise _os_error(errno.EISDIR, path)
        if not os.access(path, os.W_OK):
            raise _os_error(errno.EACCES, path)
        if not stat.S_ISREG(status.st_mode) or _standard_stream(status) is not None:
            return status
    folder = _follow(path).parent
    if not folder.is_dir():
        raise _os_error(errno.ENOENT, path)
    if not os.access(folder, os.W_OK | os.X_OK):
        raise _os_error(errno.EACCES, path)
    return status


def _standard_stream(status: os.stat_result) -> int | None:
    """The standard stream that is redirected to this file, as in `-o /dev/stdout > FILE`."""
    for stream in STANDARD_STREAMS:
        with suppress(OSError):  # a closed one
            if os.path.samestat(status, os.fstat(stream)):
                return stream
    return None


def _follow(path: Path) -> Path:
    """The path that a symbolic link leads to."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


# ── folders ───────────────────────────────────────────────────────────────────────────────────


def _previous(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.old")


def _exchange(fresh: Path, folder: Path) -> None:
    """Replaces `folder` by `fresh`. In between, the previous one is called `….old`."""
    old = _previous(folder)
    parent = folder.parent.resolve()
    lock = _lock(parent, wait=True)  # against another writer, which would delete `old`
    try:
        if folder.exists():
            shutil.copymode(folder, fresh)
            shutil.rmtree(old, ignore_errors=True)
            folder.rename(old)
        fresh.rename(folder)
        _sync_folder(parent)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        _unlock(lock)


def _sync_tree(folder: Path) -> None:
    """Flushes a folder to the disk, with all that it contains."""
    for path in folder.iterdir():
        if path.is_dir():
            _sync_tree(path)
        else:
            with path.open("rb+") as file:
                os.fsync(file.fileno())
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    """Flushes the names in a folder to the disk, where the system can."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except PermissionError:  # Windows, or a folder that cannot be listed
        return
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in CANNOT_SYNC:
            raise
    finally:
        os.close(descriptor)


# ── temporary names ───────────────────────────────────────────────────────────────────────────


@contextmanager
def _temporary(folder: Path, create: Callable[[Path], None]) -> Iterator[Path]:
    """Yields a new file or folder with a unique name; it is deleted unless it was renamed."""
    _delete_leftovers(folder)
    path, lock = _create_locked(folder, create)
    try:
        yield path
    finally:
        _delete(path)
        _unlock(lock)


def _create_locked(folder: Path, create: Callable[[Path], None]) -> tuple[Path, int | None]:
    while True:
        path = folder / f"{PREFIX}{secrets.token_hex(8)}{SUFFIX}"
        create(path)
        with suppress(FileNotFoundError):
            lock = _lock(path, wait=True)
            if path.exists():
                return path, lock
            _unlock(lock)
        # Another writer took it for a leftover before it was locked.


def _delete_leftovers(folder: Path) -> None:
    """Deletes temporary files and folders of writers that died: nobody holds their locks."""
    with suppress(OSError):  # a folder that cannot be listed
        for path in folder.glob(f"{PREFIX}*{SUFFIX}"):
            with suppress(OSError):  # another writer has renamed or deleted it, or owns it
                lock = _lock(path, wait=False)
                if lock is not None:
                    _delete(path)
                    _unlock(lock)


def _delete(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _lock(path: Path, *, wait: bool) -> int | None:
    """Locks a file or folder until `_unlock`, or until the process dies.

    Returns:
        The descriptor; None if another writer has the lock, or the filesystem has no locks.
    """
    if sys.platform == "win32":
        return None
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _unlock(descriptor: int | None) -> None:
    if descriptor is not None:
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # a child that was forked may have a copy of it
        os.close(descriptor)


# ── errors ────────────────────────────────────────────────────────────────────────────────────


def _os_error(code: int, path: Path) -> OSError:
    return OSError(code, os.strerror(code), str(path))


@contextmanager
def _errors_of(path: Path) -> Iterator[None]:
    """Names the path in errors, not a temporary file."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from error
