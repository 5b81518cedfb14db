"""Runs the command line, in a process of its own or in this one."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests._helpers.run_python import run_python

if TYPE_CHECKING:
    from pathlib import Path


class Ran(NamedTuple):
    code: int
    out: str
    err: str


RunCli = Callable[..., Ran]


def run(*words: str, at: Path | None = None, **env: str) -> Ran:
    """Runs the command line in a directory, with these environment variables."""
    done = subprocess.run(
        [sys.executable, "-m", "maskwright", *words],
        env={**os.environ, **env},
        cwd=at,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


def run_without(module: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Runs the command line in a process in which a module cannot be imported."""
    code = (
        f"import sys; sys.modules[{module!r}] = None; sys.argv[0] = 'maskwright'\n"
        "from maskwright.__main__ import main; main()"
    )
    return run_python(code, *words)


def in_terminal(folder: Path, *words: str) -> tuple[subprocess.Popen[bytes], int]:
    """Starts the command line with a pseudo-terminal as standard output and error."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "maskwright", *words],
        stdout=theirs,
        stderr=theirs,
        stdin=subprocess.DEVNULL,
        cwd=folder,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100", "OMP_NUM_THREADS": "1"},
    )
    os.close(theirs)
    return process, ours


def read_until(terminal: int, text: str) -> str:
    """What a terminal shows, up to this text."""
    shown = b""
    while text.encode() not in shown:
        shown += os.read(terminal, 65536)
    return shown.decode(errors="replace")


def read_terminal(terminal: int) -> str:
    """What a terminal shows, up to the end of the process."""
    shown = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while part := os.read(terminal, 65536):
            shown += part
    os.close(terminal)
    return shown.decode(errors="replace")


@pytest.fixture
def cli(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> RunCli:
    """Runs the command line in this process, in an empty directory and 80 columns."""
    from maskwright.__main__ import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run_cli(*words: str) -> Ran:
        for module in ("toys", "models"):
            monkeypatch.delitem(sys.modules, module, raising=False)
        monkeypatch.setattr(sys, "argv", ["maskwright", *words])
        with pytest.raises(SystemExit) as stop:
            main()
        return Ran(int(stop.value.code or 0), *capsys.readouterr())

    return run_cli
