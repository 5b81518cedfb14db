"""The command line, in a process of its own or in this one, where everything is imported already."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from pathlib import Path


class Ran(NamedTuple):
    code: int
    out: str
    err: str


Here = Callable[..., Ran]


def run(*words: str, at: Path | None = None) -> Ran:
    command = [sys.executable, "-m", "maskwright", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, cwd=at)
    return Ran(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Here:
    """Runs the command line in this process, in a folder of its own."""
    from maskwright.__main__ import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")

    def go(*words: str) -> Ran:
        monkeypatch.delitem(sys.modules, "toys", raising=False)
        monkeypatch.setattr(sys, "argv", ["maskwright", *words])
        with pytest.raises(SystemExit) as stop:
            main()
        return Ran(int(stop.value.code or 0), *capsys.readouterr())

    return go
