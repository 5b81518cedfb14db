from __future__ import annotations

import multiprocessing
import os
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from maskwright import _atomic_write
from maskwright._atomic_write import (
    check_writable,
    complete_folder,
    create_folder,
    replace_folder,
    write_atomic,
)

if TYPE_CHECKING:
    from collections.abc import Callable


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_half_written_file_replaces_nothing(tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_atomic(path, "good")
    with pytest.raises(UnicodeEncodeError):
        write_atomic(path, "half\ud800")
    assert path.read_text() == "good"
    assert names(tmp_path) == ["report.html"]
    write_atomic(path, "better")
    assert path.read_text() == "better"


def test_bytes_are_written_unchanged(tmp_path: Path) -> None:
    write_atomic(tmp_path / "x", b"\x00\n")
    assert (tmp_path / "x").read_bytes() == b"\x00\n"


def test_folder_is_replaced_when_it_is_complete(tmp_path: Path) -> None:
    folder = tmp_path / "last"
    for text in ("first", "second"):
        with replace_folder(folder) as fresh:
            (fresh / "x").write_text(text)
        assert (folder / "x").read_text() == text
    with pytest.raises(UnicodeEncodeError), replace_folder(folder) as fresh:
        (fresh / "x").write_text("half\ud800")
    assert (folder / "x").read_text() == "second"
    assert names(tmp_path) == ["last"]


def test_previous_folder_is_found_when_replacement_was_interrupted(tmp_path: Path) -> None:
    folder = tmp_path / "last"
    assert complete_folder(folder) is None
    (tmp_path / "last.old").mkdir()
    assert complete_folder(folder) == tmp_path / "last.old"
    with replace_folder(folder):
        pass
    assert complete_folder(folder) == folder
    assert names(tmp_path) == ["last"]


# ── power loss ────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls that matter for a power loss, in order; a temporary name is called NEW."""
    recorded: list[str] = []

    def name(path: str | Path) -> str:
        folder, _, last = str(path).rpartition("/")
        if last.startswith(".maskwright-"):
            return "NEW"
        return f"NEW/{last}" if "/.maskwright-" in folder else last

    def record(module: str, call: str, label: Callable[..., str]) -> None:
        original = getattr(sys.modules[module], call)

        def recording(*args: object, **options: object) -> object:
            recorded.append(f"{call} {label(*args)}")
            return original(*args, **options)

        monkeypatch.setattr(sys.modules[module], call, recording)

    record("os", "fsync", lambda descriptor: name(Path(f"/proc/self/fd/{descriptor}").readlink()))
    for call in ("rename", "replace"):
        record("os", call, lambda source, target: f"{name(source)} {name(target)}")
    record("shutil", "rmtree", name)
    return recorded


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors are named in /proc")
def test_file_is_on_the_disk_before_it_replaces_another(tmp_path: Path, calls: list[str]) -> None:
    for _ in range(2):
        calls.clear()
        write_atomic(tmp_path / "x", "content")
        assert calls == ["fsync NEW", "replace NEW x", f"fsync {tmp_path.name}"]


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors are named in /proc")
def test_folder_is_on_the_disk_before_the_previous_one_is_deleted(
    tmp_path: Path, calls: list[str]
) -> None:
    for _ in range(2):
        calls.clear()
        with replace_folder(tmp_path / "last") as fresh:
            (fresh / "a").write_text("a")
            (fresh / "parts").mkdir()
            (fresh / "parts" / "b").write_text("b")
        renamed = calls.index("rename NEW last")
        for path in ("NEW/a", "NEW/b", "NEW/parts", "NEW"):
            assert calls.index(f"fsync {path}") < renamed
    assert calls[renamed - 1 :][:4] == [
        "rename last last.old",
        "rename NEW last",
        f"fsync {tmp_path.name}",
        "rmtree last.old",
    ]


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors are named in /proc")
def test_new_folders_are_on_the_disk(tmp_path: Path, calls: list[str]) -> None:
    create_folder(tmp_path / "a" / "b")
    assert sorted(calls) == sorted([f"fsync {tmp_path.name}", "fsync a"])


def test_disk_error_is_reported_and_keeps_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_atomic(tmp_path / "x", "first")

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="Input/output error") as error:
        write_atomic(tmp_path / "x", "second")
    assert error.value.filename == str(tmp_path / "x")
    assert (tmp_path / "x").read_text() == "first"
    with pytest.raises(OSError, match="Input/output error"), replace_folder(tmp_path / "last"):
        pass
    assert names(tmp_path) == ["x"]


# ── several writers ───────────────────────────────────────────────────────────────────────────


def run_threads(*functions: Callable[[], None]) -> list[str]:
    """The errors of functions that run at the same time."""
    errors: list[str] = []

    def run(function: Callable[[], None]) -> None:
        try:
            function()
        except Exception as error:
            errors.append(repr(error))

    threads = [threading.Thread(target=run, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return errors


def test_threads_write_the_same_file(tmp_path: Path) -> None:
    path = tmp_path / "x"
    write_atomic(path, "a" * 20_000)

    def writer(letter: str) -> Callable[[], None]:
        def write() -> None:
            for _ in range(60):
                write_atomic(path, letter * 20_000)
                text = path.read_text()
                assert len(text) == 20_000
                assert len(set(text)) == 1

        return write

    assert run_threads(*map(writer, "abc")) == []
    assert names(tmp_path) == ["x"]


def fill_folder(folder: Path, letter: str, times: int = 25) -> None:
    for _ in range(times):
        with replace_folder(folder) as fresh:
            (fresh / "a").write_text(letter)
            (fresh / "b").write_text(letter)


def test_threads_replace_the_same_folder(tmp_path: Path) -> None:
    folder = tmp_path / "last"
    assert run_threads(*(lambda x=x: fill_folder(folder, x) for x in "abc")) == []  # type: ignore[misc]
    assert (folder / "a").read_text() == (folder / "b").read_text()
    assert names(tmp_path) == ["last"]


def test_processes_replace_the_same_folder(tmp_path: Path) -> None:
    folder, context = tmp_path / "last", multiprocessing.get_context("spawn")
    writers = [context.Process(target=fill_folder, args=(folder, x)) for x in "ab"]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert (folder / "a").read_text() == (folder / "b").read_text()
    assert names(tmp_path) == ["last"]


def after_stat(path: Path, action: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets another writer act right after somebody has looked at `path` for the first time."""
    actions, stat_path = [action], Path.stat

    def stat_and_act(self: Path, **options: bool) -> os.stat_result:
        try:
            return stat_path(self, **options)
        finally:
            if self == path and not options and actions:  # lstat passes an option
                actions.pop()()

    monkeypatch.setattr(Path, "stat", stat_and_act)


def test_a_folder_that_another_writer_renames_is_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "last"
    folder.mkdir()
    after_stat(folder, lambda: os.rename(folder, tmp_path / "last.old"), monkeypatch)  # noqa: PTH104
    with replace_folder(folder) as fresh:
        (fresh / "a").write_text("a")
    assert names(folder) == ["a"]


def test_a_folder_is_found_while_another_writer_replaces_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, old = tmp_path / "last", tmp_path / "last.old"
    old.mkdir()
    after_stat(folder, lambda: os.rename(old, folder), monkeypatch)  # noqa: PTH104
    assert complete_folder(folder) == folder


def test_nested_replacements_of_a_folder_do_not_mix(tmp_path: Path) -> None:
    folder = tmp_path / "last"
    with replace_folder(folder) as outer:
        (outer / "a").write_text("outer")
        with replace_folder(folder) as inner:
            (inner / "b").write_text("inner")
        assert names(folder) == ["b"]
        (outer / "c").write_text("outer")
    assert names(folder) == ["a", "c"]


WRITERS = {
    "file": """
        def content():
            print("writing", flush=True)
            signal.pause()
        os.fsync = lambda descriptor: content()
        write_atomic(folder / "x", "content")
        """,
    "folder": """
        with replace_folder(folder / "last") as fresh:
            (fresh / "x").write_text("content")
            print("writing", flush=True)
            signal.pause()
        """,
}


@pytest.mark.skipif(sys.platform == "win32", reason="needs the locks of POSIX")
@pytest.mark.parametrize("writer", WRITERS)
def test_only_leftovers_of_dead_writers_are_deleted(tmp_path: Path, writer: str) -> None:
    code = (
        "import os, signal, sys, textwrap\nfrom pathlib import Path\nfolder = Path(sys.argv[1])\n"
        "from maskwright._atomic_write import replace_folder, write_atomic\n"
        "exec(textwrap.dedent(sys.argv[2]))"
    )
    command = [sys.executable, "-c", code, str(tmp_path), WRITERS[writer]]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"writing\n"
        write_atomic(tmp_path / "y", "other")
        assert len(names(tmp_path)) == 2, "the file of a living writer was deleted"
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert len(names(tmp_path)) == 2
    write_atomic(tmp_path / "y", "other")
    assert names(tmp_path) == ["y"]


def test_writers_that_delete_leftovers_do_not_disturb_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file is not yet locked when another writer takes it for a leftover."""
    lock, taken = _atomic_write._lock, []

    def lock_late(path: Path, *, wait: bool) -> int | None:
        if wait and path.is_file() and not taken:
            taken.append(path)
            path.unlink()
        return lock(path, wait=wait)

    monkeypatch.setattr(_atomic_write, "_lock", lock_late)
    write_atomic(tmp_path / "x", "content")
    assert taken
    assert (tmp_path / "x").read_text() == "content"
    assert names(tmp_path) == ["x"]


def test_filesystem_without_locks_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leftover = tmp_path / ".maskwright-0.new"
    leftover.touch()

    def unsupported(descriptor: int, operation: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", unsupported)
    write_atomic(tmp_path / "x", "content")
    with replace_folder(tmp_path / "last"):
        pass
    assert names(tmp_path) == [leftover.name, "last", "x"]


# ── what a path leads to ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("length", [250, 251, 255])
def test_file_name_may_be_as_long_as_the_filesystem_allows(tmp_path: Path, length: int) -> None:
    path = tmp_path / ("n" * (length - 5) + ".json")
    for text in "ab":
        write_atomic(path, text)
        assert path.read_text() == text


def test_symbolic_links_stay_and_their_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "first").symlink_to("second")
    (tmp_path / "second").symlink_to("folder/target")
    for text in ("created", "replaced"):
        write_atomic(tmp_path / "first", text)
        assert (tmp_path / "folder" / "target").read_text() == text
        assert names(tmp_path / "folder") == ["target"]
    assert (tmp_path / "first").is_symlink()
    assert (tmp_path / "second").is_symlink()


def test_link_to_a_folder_stays_and_its_target_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    link = tmp_path / "last"
    link.symlink_to("disk/target")
    for text in "ab":
        with replace_folder(link) as fresh:
            (fresh / "x").write_text(text)
        assert link.is_symlink()
        assert (link / "x").read_text() == text
    assert names(tmp_path / "disk") == ["target"]
    (tmp_path / "disk" / "target").rename(tmp_path / "disk" / "target.old")
    complete = complete_folder(link)
    assert complete is not None
    assert (complete / "x").read_text() == "b"


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755, 0o200])
def test_permissions_are_kept(tmp_path: Path, mode: int) -> None:
    path, folder = tmp_path / "x", tmp_path / "last"
    path.touch()
    folder.mkdir()
    path.chmod(mode)
    folder.chmod(mode | 0o700)
    write_atomic(path, "content")
    assert stat.S_IMODE(path.stat().st_mode) == mode
    with replace_folder(folder):
        pass
    assert stat.S_IMODE(folder.stat().st_mode) == mode | 0o700


def test_new_file_has_the_permissions_of_the_umask(tmp_path: Path) -> None:
    previous = os.umask(0o027)
    try:
        write_atomic(tmp_path / "x", "content")
    finally:
        os.umask(previous)
    assert stat.S_IMODE((tmp_path / "x").stat().st_mode) == 0o640


def test_private_file_is_never_readable_by_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, modes = tmp_path / "x", []
    path.touch(mode=0o600)
    open_file = Path.open

    def recording(self: Path, *args: str) -> object:
        modes.append(stat.S_IMODE(self.stat().st_mode))
        return open_file(self, *args)

    monkeypatch.setattr(Path, "open", recording)
    write_atomic(path, "content")
    assert modes == [0o600]


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs FIFOs")
@pytest.mark.parametrize("link", [False, True])
def test_fifo_is_written_to(tmp_path: Path, link: bool) -> None:
    fifo, path = tmp_path / "fifo", tmp_path / "link"
    os.mkfifo(fifo)
    path.symlink_to("fifo")
    received: list[bytes] = []
    reader = threading.Thread(target=lambda: received.append(fifo.read_bytes()))
    reader.start()
    write_atomic(path if link else fifo, "content")
    reader.join()
    assert received == [b"content"]
    assert stat.S_ISFIFO(fifo.stat().st_mode)
    assert names(tmp_path) == ["fifo", "link"]


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is a device of Linux")
def test_device_is_written_to(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.symlink_to("/dev/null")
    write_atomic(path, "content")
    assert path.is_char_device()
    path.unlink()
    path.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left on device") as error:
        write_atomic(path, "content")
    assert error.value.filename == str(path)
    assert path.is_char_device()


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/stdout leads to the file")
def test_file_behind_standard_output_is_written_to(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path\nfrom maskwright._atomic_write import write_atomic\n"
        "print('first', flush=True)\nwrite_atomic(Path('/dev/stdout'), 'second\\n')\nprint('third')"
    )
    with (tmp_path / "x").open("w") as file:
        subprocess.run([sys.executable, "-c", code], stdout=file, check=True)
    assert (tmp_path / "x").read_text() == "first\nsecond\nthird\n"


def folder_here(path: Path) -> None:
    path.mkdir()


def loop(path: Path) -> None:
    path.symlink_to(path.name)


def link_to_missing_folder(path: Path) -> None:
    path.symlink_to("missing/x")


UNWRITABLE = {
    "Is a directory": folder_here,
    "Too many levels of symbolic links": loop,
    "No such file or directory": link_to_missing_folder,
}


@pytest.mark.parametrize(("reason", "create"), UNWRITABLE.items(), ids=UNWRITABLE.keys())
def test_unwritable_path_is_reported_before_and_by_a_write(
    tmp_path: Path, reason: str, create: Callable[[Path], None]
) -> None:
    create(tmp_path / "x")
    for check in (check_writable, lambda path: write_atomic(path, "content")):
        with pytest.raises(OSError, match=reason) as error:
            check(tmp_path / "x")
        assert error.value.filename == str(tmp_path / "x")
    assert names(tmp_path) == ["x"]


@pytest.mark.parametrize("read_only", ["file", "folder"])
def test_read_only_file_or_folder_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, read_only: str
) -> None:
    path = tmp_path / "x"
    path.write_text("first")
    denied = path if read_only == "file" else tmp_path
    # os.access, because root can write everything
    monkeypatch.setattr(os, "access", lambda candidate, mode: Path(candidate) != denied)
    for check in (check_writable, lambda path: write_atomic(path, "second")):
        with pytest.raises(PermissionError):
            check(path)
    assert path.read_text() == "first"


def test_file_is_no_folder_to_replace(tmp_path: Path) -> None:
    (tmp_path / "last").write_text("a file")
    with pytest.raises(NotADirectoryError), replace_folder(tmp_path / "last"):
        pass
    assert (tmp_path / "last").read_text() == "a file"
