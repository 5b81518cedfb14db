"""The program as a whole: help, exit codes, errors, and standard output that cannot be written."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

import maskwright as mw
from maskwright.cli.options import complete_expression
from tests.cli.conftest import RunCli, run, run_without

if TYPE_CHECKING:
    from pathlib import Path

COMMANDS = (
    *("show", "diff", "explain", "recipes", "lower", "targets", "recognize", "lint"),
    *("plan", "bench", "doctor", "audit", "trace", "apps", "train", "generate", "compare-masks"),
    *("explore", "tour"),
)
SHOW = [sys.executable, "-m", "maskwright", "show", "causal()"]
SLOW = """
import signal, time, torch
signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job may ignore it
class Slow(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = torch.nn.Embedding(9, 2)
    def forward(self, ids):
        print("started", flush=True)
        while True:
            time.sleep(0.1)
"""


def test_help_lists_the_commands_and_the_atoms(cli: RunCli) -> None:
    whole = cli("--help").out
    assert tuple(re.findall(r"^│ (\w[\w-]*) ", whole, re.MULTILINE)) == COMMANDS
    from maskwright.core.atoms import ATOMS

    words = set(re.findall(r"\w+", cli("show", "--help").out))
    assert set(ATOMS) | {"by_head", "by_batch"} <= words


def test_version() -> None:
    assert run("--version").out == f"maskwright {mw.__version__}\n"


def test_completion_of_atoms() -> None:
    assert complete_expression("causal() & pre") == ["causal() & prefix("]
    assert complete_expression("wi") == ["window("]
    assert len(complete_expression("")) == 18


@pytest.mark.parametrize(
    "words",
    [
        ["show"],
        ["nonsense"],
        ["show", "causal()", "--size", "many"],
        ["show", "causal()", "--size", "0"],
        ["show", "causal()", "--format", "gif"],
        ["lint", "causal()", "-n", "4", "--format", "svg"],
        ["plan", "causal()", "--head-dim", "0"],
    ],
)
def test_wrong_usage_is_code_2(cli: RunCli, words: list[str]) -> None:
    ran = cli(*words)
    assert (ran.code, ran.out) == (2, "")


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("show casual()", "casual causal"),
        ("show causal(", "brackets"),
        ("show padding(lengths=[9])", "lengths 9 kv_len=9"),
        ("show dense([[1,0]])", "kv_len=2"),
        ("show causal() -o mask.gif", "--output mask.gif .svg"),
        ("show causal() -o nowhere/mask.svg", "nowhere/mask.svg"),
        ("show causal() -n 3 -t a", "1 token 3"),
        ("show causal() --tokens=", "--tokens"),
        ("show stride(2) -n 1000000", "rows"),
        ("diff causal() nothing.npy", "nothing.npy"),
        ("explain causal() --cell 1", "--cell QUERY,KEY"),
        ("explain causal() --cell 1,99", "key 99"),
        ("explain causal() --cell 1,2 -o x.svg", "--output x.svg .json"),
        ("explain --scores [1", "--scores [1"),
        ("recipes longfromer", "longfromer longformer"),
        ("targets torch.mah", "torch.mah torch.mha"),
        ("lower causal() --to torch.mah -n 4", "torch.mah torch.mha"),
        ("lower causal() --to numpy", "q_len"),
        ("lower causal() causal() --to numpy -n 4", "one mask 2"),
        ("lower causal()|prefix([3]) --to flash.varlen -n 8", "prefix"),
        ("lint nothing.npy", "nothing.npy"),
        ("lint causal() -n 4 -o x.svg", "--output x.svg .json"),
        ("plan padding(lengths=[3,4]) --size 4 --batch 3", "batch=3 batch=2"),
        ("plan causal() --size many", "--size many 4k"),
        ("plan causal() --ranks 2 --size 64 --kv-len 128", "queries keys"),
        ("plan causal() --ranks 2 --flops 0", "0"),
        ("plan causal() --ranks 2 --link fast", "--link fast"),
        ("plan causal() --ranks 2 -f svg", "--format svg json"),
        ("bench causal() -o x.png", "--output x.png .json"),
        ("tour --chapter 99", "99"),
        ("tour --chapter 3 -o nowhere/tour.html", "nowhere/tour.html"),
    ],
)
def test_an_error_is_one_line_and_code_2(cli: RunCli, words: str, parts: str) -> None:
    ran = cli(*words.split())
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.startswith("maskwright: ")
    assert len(ran.err.splitlines()) == 1
    for part in parts.split():
        assert part in ran.err


@pytest.mark.parametrize(
    ("module", "words", "extra"),
    [
        ("typer", [], "cli"),
        ("torch", ["audit", "toys:Toy"], "torch"),
        ("torch", ["trace", "toys:Toy"], "torch"),
        ("starlette", ["explore"], "explore"),
    ],
)
def test_a_missing_extra_is_named(module: str, words: list[str], extra: str) -> None:
    done = run_without(module, *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert f"pip install 'maskwright[{extra}]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_ctrl_c_is_code_130(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    command = [*SHOW[:3], "trace", "slow:Slow"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, cwd=tmp_path, **pipes) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "Traceback" not in err


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")  # noqa: PTH110
@pytest.mark.parametrize("words", [["causal()"], ["causal()", "-n", "2", "-f", "json"]])
def test_a_full_standard_output_is_one_line(words: list[str]) -> None:
    with open("/dev/full", "w") as full:  # noqa: PTH123
        done = subprocess.run(
            [*SHOW[:4], *words], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("redirect", ["| true", ">&-", "| head -1 > /dev/null"])
def test_a_closed_standard_output_is_quiet(redirect: str) -> None:
    command = f"'{sys.executable}' -m maskwright show 'causal()' -n 60 {redirect}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=False)
    assert done.stderr == ""


def test_deeply_nested_input_is_one_line(cli: RunCli, tmp_path: Path) -> None:
    (tmp_path / "deep.json").write_text("[" * 200_000 + "]" * 200_000)
    deep = "[" * 100_000 + "]" * 100_000
    for words in (("recognize", "deep.json"), ("explain", "--scores", deep), ("show", deep)):
        ran = cli(*words)
        assert (ran.code, ran.out) == (2, "")
        assert len(ran.err.splitlines()) == 1


@pytest.mark.parametrize("command", ["targets", "recipes", "apps"])
def test_tables_wrap_at_80_columns_between_words(cli: RunCli, command: str) -> None:
    pytest.importorskip("torch")
    narrow = cli(command).out
    assert max(map(len, narrow.splitlines())) <= 80
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "400")
        wide = cli(command).out
    assert narrow.split() == wide.split()
    assert len(wide.splitlines()) < len(narrow.splitlines())
