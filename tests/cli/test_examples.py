"""The examples of `--help`: each is parsed, and the short ones run."""

from __future__ import annotations

import csv
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import typer
from safetensors.numpy import save_file

import maskwright as mw
from maskwright.cli import app

if TYPE_CHECKING:
    from tests.cli.conftest import RunCli

COMMANDS: dict[str, Any] = typer.main.get_command(app).commands
EXAMPLES = [
    line.strip()
    for command in COMMANDS.values()
    for line in (command.epilog or "").splitlines()
    if line.strip().startswith("maskwright ")
]
# These train, measure, serve, need transformers or a GPU; other tests run smaller ones.
LONG = ("train ", "generate ", "compare-masks ", "bench ", "explore", "tour", "hf:", "cuda")


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """A directory with the files that the examples name."""
    causal = mw.causal().on(128).dense()[0, 0]
    np.save(tmp_path / "mask.npy", causal)
    with (tmp_path / "mask.csv").open("w", newline="") as file:
        csv.writer(file).writerows(causal[:8, :8].astype(int).tolist())
    kept = {"attention_mask": np.array([[1, 1, 0], [1, 1, 1]])}
    save_file(kept, tmp_path / "batch.safetensors")
    shutil.copy(Path(__file__).parents[1] / "_helpers/cli_models.py", tmp_path / "models.py")
    (tmp_path / "report.json").write_text(
        mw.audit(lambda x: x, np.ones((1, 4, 2)), probes=["leak"]).to_json()
    )
    return tmp_path


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_an_example(command: str) -> None:
    assert any(example.startswith(f"maskwright {command}") for example in EXAMPLES)


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_is_parsed(example: str) -> None:
    _, command, *words = shlex.split(example)
    assert COMMANDS[command].make_context(command, words).params  # raises for an unknown option


@pytest.mark.parametrize(
    "example", [one for one in EXAMPLES if not any(long in f"{one} " for long in LONG)]
)
@pytest.mark.usefixtures("files")
def test_an_example_runs(example: str, cli: RunCli) -> None:
    ran = cli(*shlex.split(example)[1:])
    assert ran.code in (0, 1), ran.err  # 1: the masks differ, or there are findings
    assert ran.err == "" or "-o" in example
