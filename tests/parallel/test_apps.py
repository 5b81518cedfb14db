"""Distributed training: the losses of one process, other numbers of ranks, and a lost rank."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import numpy as np
import pytest
import torch
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from maskwright.apps.distributed import check_context_parallel, start
from maskwright.apps.trainer import train
from maskwright.errors import ArgumentError
from maskwright.models.gpt import GPT, GPTConfig
from tests._helpers import tiny_training
from tests._helpers.process_pool import ROOT, import_path, launch
from tests._helpers.sampling import subset_of_cases
from tests._helpers.tiny_training import CONFIG, Tiny

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

STEPS = 20
TRAIN = ("train", "language", "--max-steps", str(STEPS), "--batch-size", "1", "--device", "cpu")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text that is learnt within a few steps."""
    path = tmp_path_factory.mktemp("text") / "rhyme.txt"
    lines = (f"{n} green bottles hanging on the wall\n" for n in range(99, 40, -1))
    path.write_text("".join(lines))
    return path


@pytest.fixture(scope="module")
def alone(text: Path, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of the command in one process, with two gradient accumulation steps."""
    folder = tmp_path_factory.mktemp("alone")
    words = [*TRAIN, "--text", str(text), "--gradient-accumulation-steps", "2"]
    words += ["--output-dir", str(folder)]
    assert f"saved in {folder}" in launch(1, tiny_training.run_command, words)[0]
    return losses_in(folder)


def losses_in(folder: Path) -> list[float]:
    losses: list[float] = json.loads((folder / "last" / "state.json").read_text())["losses"]
    return losses


@pytest.mark.parametrize("flags", ["--dp 2 --cp 2", "--dp 2 --fsdp"])
def test_the_command_equals_one_process(
    text: Path, alone: list[float], tmp_path: Path, flags: str
) -> None:
    words = [*TRAIN, "--text", str(text), "--output-dir", str(tmp_path), *flags.split()]
    first, *others = launch(4 if "--cp" in flags else 2, tiny_training.run_command, words)
    assert len(alone) == STEPS
    np.testing.assert_allclose(losses_in(tmp_path), alone, atol=1e-4)
    assert f"saved in {tmp_path}" in first
    assert "held-out loss" in first  # of all weights, also where they were sharded
    assert not any(others)


@pytest.mark.parametrize(("dp", "cp"), subset_of_cases([(1, 4), (2, 2)], 2, first=1))
def test_training_on_a_mesh_equals_one_process(dp: int, cp: int) -> None:
    lone = train(Tiny(), CONFIG).state
    for rank, (losses, evaluations, evaluated) in enumerate(
        launch(4, tiny_training.run_training, dp, cp)
    ):
        np.testing.assert_allclose(losses, lone.losses, atol=1e-4)
        np.testing.assert_allclose(evaluations, lone.evaluations, atol=1e-4)
        assert evaluated == ([4, 8, 12, 16, 20] if rank == 0 else [])


def test_a_run_resumes_with_another_number_of_ranks(tmp_path: Path) -> None:
    lone = train(Tiny(), CONFIG).state
    arguments: list[Any] = [tmp_path, None, True]
    train(Tiny(cut=4), CONFIG, tmp_path)
    for count, dp, cp, fsdp, cut in (
        (4, 2, 2, True, 9),  # from one process to four with sharded weights
        (2, 1, 2, False, 13),  # to two with all weights
        (3, 1, 3, True, 17),
    ):
        arguments[1] = cut
        launch(count, tiny_training.run_training, dp, cp, fsdp, *arguments)
    ended = train(Tiny(), CONFIG, tmp_path, resume=True).state  # and back to one
    np.testing.assert_allclose(ended.losses, lone.losses, atol=1e-4)
    np.testing.assert_allclose(ended.evaluations, lone.evaluations, atol=1e-4)
    assert {path.name for path in tmp_path.iterdir()} - {"train.lock"} == {"best", "last"}


def by_agent(words: list[str]) -> str:
    """The output of ranks started by torchrun's agent from a fork server, which saves imports."""
    config = LaunchConfig(
        *(1, 1, 2),
        rdzv_backend="c10d",
        rdzv_endpoint="localhost:0",
        run_id=uuid4().hex,
        max_restarts=1,
        monitor_interval=0.2,
        start_method="forkserver",
    )
    before = {number: signal.getsignal(number) for number in signal.valid_signals()}
    try:
        with import_path():
            printed = elastic_launch(config, tiny_training.recover_then_run_command)(*words)
    finally:  # the agent has changed some handlers
        for number, handler in before.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)
    return "".join(printed.values())


def by_torchrun(words: list[str]) -> str:
    """The output of ranks started by torchrun."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    run += ["--max-restarts", "1", "--monitor-interval", "0.2", "--standalone"]
    ran = subprocess.run(
        [*run, "-m", "tests._helpers.tiny_training", *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.parametrize("launched", subset_of_cases([by_agent, by_torchrun], 2))
def test_a_job_that_lost_a_rank_continues_from_its_last_checkpoint(
    text: Path, alone: list[float], tmp_path: Path, launched: Callable[[list[str]], str]
) -> None:
    """Then the same processes run the command."""
    folder = tmp_path / "command"
    words = [*TRAIN, "--text", str(text), "--output-dir", str(folder), "--cp", "2"]
    words += ["--gradient-accumulation-steps", "2"]
    printed = launched([str(tmp_path), *words])
    lone = train(Tiny(), replace(CONFIG, eval_interval=2)).state
    np.testing.assert_allclose(losses_in(tmp_path), lone.losses, atol=1e-4)
    np.testing.assert_allclose(losses_in(folder), alone, atol=1e-4)
    assert printed.count("saved in") == 1


@pytest.mark.parametrize(
    ("processes", "dp", "cp", "fsdp", "says"),
    [
        (1, 2, 2, False, "need 4 processes, got 1.*torchrun --nproc-per-node 4"),
        (4, 1, 1, False, "need 1 processes, got 4"),
        (1, 1, 1, True, "--fsdp shards weights over several processes, got one"),
    ],
)
def test_options_that_do_not_fit_the_processes_are_refused(
    monkeypatch: pytest.MonkeyPatch, processes: int, dp: int, cp: int, fsdp: bool, says: str
) -> None:
    monkeypatch.setenv("WORLD_SIZE", str(processes))
    with pytest.raises(ArgumentError, match=says):
        start(dp, cp, fsdp=fsdp)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (torch.nn.Linear(1, 1), "a Linear"),
        (GPT(GPTConfig(5, n_embd=4, n_head=1, n_layer=1, dropout=0.2)), "dropout=0.2"),
    ],
    ids=["no GPT", "dropout"],
)
def test_models_without_context_parallelism_are_refused(model: torch.nn.Module, says: str) -> None:
    with pytest.raises(ArgumentError, match=f"--cp 2 .* {says}"):
        check_context_parallel(model, 2)
