"""The files that -o names: every command writes to them, or says in one sentence why it does not."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from maskwright.cli.main import app

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import RunCli

COMMANDS = {
    "show": ["causal()"],
    "diff": ["causal()", "everything()"],
    "explain": ["causal()"],
    "recipes": [],
    "targets": [],
    "recognize": ["mask.npy"],
    "lint": ["causal()"],
    "plan": ["causal()"],
    "bench": ["causal()"],
    "doctor": [],
    "audit": ["models:build"],
    "trace": ["models:build"],
    "generate": ["language", "The "],
    "compare-masks": ["language"],
    "tour": [],
}
HAVE_FORMAT = sorted(COMMANDS.keys() - {"generate", "tour"})


def test_every_command_with_an_output_file_is_here() -> None:
    import typer.main

    group = typer.main.get_command(app)
    with_output = {
        name
        for name, command in group.commands.items()  # type: ignore[attr-defined]
        if any("-o" in option.opts for option in command.params)
    }
    assert with_output == set(COMMANDS)


def refused(cli: RunCli, *words: str) -> str:
    code, out, err = cli(*words)
    assert (code, out) == (2, ""), err
    assert err.startswith("maskwright: ")
    assert len(err.splitlines()) == 1
    return err


@pytest.mark.parametrize("name", COMMANDS)
def test_file_that_cannot_be_written_is_refused_before_the_work(
    cli: RunCli, tmp_path: Path, name: str
) -> None:
    words = [name, *COMMANDS[name]]
    suffix = "html" if name == "tour" else "json"
    (tmp_path / f"folder.{suffix}").mkdir()
    (tmp_path / f"loop.{suffix}").symlink_to(f"loop.{suffix}")
    (tmp_path / "file").touch()
    for output, reason in {
        f"folder.{suffix}": "Is a directory",
        f"missing/x.{suffix}": "No such file or directory",
        f"file/x.{suffix}": "Not a directory",
        f"loop.{suffix}": "Too many levels of symbolic links",
        f"{'n' * 256}.{suffix}": "File name too long",
    }.items():
        error = refused(cli, *words, "-o", output)
        assert output in error
        assert f"cannot be written: {reason}. " in error
    assert "expected a name that ends in" in refused(cli, *words, "-o", "x.bin")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        *("file", f"folder.{suffix}", f"loop.{suffix}")
    ]


@pytest.mark.parametrize("name", HAVE_FORMAT)
def test_format_that_contradicts_the_suffix_is_refused(
    cli: RunCli, tmp_path: Path, name: str
) -> None:
    for form, output in (("json", "x.png"), ("json", "x.TXT"), ("text", "x.svg")):
        error = refused(cli, name, *COMMANDS[name], "-f", form, "-o", output)
        assert error == (
            f"maskwright: --format {form} does not write {output[1:]} files, and --output is "
            f"{output}. Omit --format, or pass another file.\n"
        )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("output", ["x.svg", "x.SVG", "x", "x.drawing"])
def test_format_decides_where_the_suffix_does_not(cli: RunCli, tmp_path: Path, output: str) -> None:
    assert cli("show", "causal()", "-f", "svg", "-o", output).code == 0
    assert (tmp_path / output).read_text().startswith("<svg")


def test_link_and_permissions_of_a_file_are_kept(cli: RunCli, tmp_path: Path) -> None:
    private, link = tmp_path / "private", tmp_path / "link.svg"
    private.touch(mode=0o600)
    link.symlink_to("private")
    for size in "48":
        assert cli("show", "causal()", "--size", size, "-o", "link.svg").code == 0
        assert f"{size} queries × {size} keys" in private.read_text()
    assert link.is_symlink()
    assert stat.S_IMODE(private.stat().st_mode) == 0o600


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/full is a device of Linux")
def test_devices_and_fifos_are_written_to(cli: RunCli, tmp_path: Path) -> None:
    (tmp_path / "null.svg").symlink_to("/dev/null")
    (tmp_path / "full.svg").symlink_to("/dev/full")
    os.mkfifo(tmp_path / "fifo.svg")
    received: list[str] = []
    reader = threading.Thread(
        target=lambda: received.append((tmp_path / "fifo.svg").read_text()), daemon=True
    )
    reader.start()
    assert cli("show", "causal()", "-o", "null.svg").code == 0
    assert cli("show", "causal()", "-o", "fifo.svg").code == 0
    reader.join(10)
    assert received[0].startswith("<svg")
    error = refused(cli, "show", "causal()", "-o", "full.svg")
    assert "full.svg cannot be written: No space left on device. " in error
    for name in ("null", "full", "fifo"):
        assert not (tmp_path / f"{name}.svg").is_file()


@pytest.mark.skipif(sys.platform != "linux", reason="/dev/stdout leads to the file")
@pytest.mark.parametrize("mode", ["w", "a"])
def test_standard_output_is_written_to_by_its_name(tmp_path: Path, mode: str) -> None:
    (tmp_path / "x").write_text("first\n")
    words = ["show", "causal()", "-f", "svg", "-o", "/dev/stdout"]
    with (tmp_path / "x").open(mode) as file:
        subprocess.run([sys.executable, "-m", "maskwright", *words], stdout=file, check=True)
    text = (tmp_path / "x").read_text()
    assert text.startswith("<svg" if mode == "w" else "first\n<svg")
    assert text.endswith("</svg>\n")


def test_suffixes_in_capitals_decide_the_format(cli: RunCli, tmp_path: Path) -> None:
    assert cli("lint", "causal()", "--size", "4", "-o", "x.JSON").code == 0
    assert (tmp_path / "x.JSON").read_text().startswith("{")
