"""Trainings over ranks: the losses of one process, other numbers of ranks, and a rank that is lost."""

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

from maskwright.apps.ranks import Ranks, start
from maskwright.apps.training import train
from maskwright.errors import ArgumentError
from maskwright.models.gpt import GPT, GPTConfig
from tests.parallel import tiny_task
from tests.parallel.pool import ROOT, launch, own_path
from tests.parallel.tiny_task import COURSE, Tiny
from tests.thinned import thinned

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

STEPS = 20
TRAINED = ("train", "language", "--steps", str(STEPS), "--batch", "1", "--device", "cpu")


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Something to learn, that a model gets better at soon."""
    path = tmp_path_factory.mktemp("text") / "rhyme.txt"
    lines = (f"{n} green bottles hanging on the wall\n" for n in range(99, 40, -1))
    path.write_text("".join(lines))
    return path


@pytest.fixture(scope="module")
def alone(text: Path, tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    """The losses of the command in one process, with two batches a step."""
    folder = tmp_path_factory.mktemp("alone")
    words = [*TRAINED, "--text", str(text), "--accumulate", "2", "--to", str(folder)]
    assert f"kept in {folder}" in launch(1, tiny_task.commanded, words)[0]
    return losses_in(folder)


def losses_in(folder: Path) -> list[float]:
    losses: list[float] = json.loads((folder / "last" / "state.json").read_text())["losses"]
    return losses


@pytest.mark.parametrize("flags", ["--dp 2 --cp 2", "--dp 2 --fsdp"])
def test_the_command_trains_as_in_one_process(
    text: Path, alone: list[float], tmp_path: Path, flags: str
) -> None:
    words = [*TRAINED, "--text", str(text), "--to", str(tmp_path), *flags.split()]
    first, *others = launch(4 if "--cp" in flags else 2, tiny_task.commanded, words)
    assert len(alone) == STEPS
    np.testing.assert_allclose(losses_in(tmp_path), alone, atol=1e-4)
    assert f"kept in {tmp_path}" in first
    assert "held-out loss" in first  # with all weights, though ranks had parts of them
    assert not any(others)


@pytest.mark.parametrize(("dp", "cp"), [(1, 4), (2, 2)])
def test_a_training_on_a_mesh_is_that_of_one_process(dp: int, cp: int) -> None:
    lone = train(Tiny(), COURSE).progress
    for rank, (losses, evaluations, told) in enumerate(launch(4, tiny_task.trained, dp, cp)):
        np.testing.assert_allclose(losses, lone.losses, atol=1e-4)
        np.testing.assert_allclose(evaluations, lone.evaluations, atol=1e-4)
        assert told == ([4, 8, 12, 16, 20] if rank == 0 else [])


def test_a_training_goes_on_with_another_number_of_ranks(tmp_path: Path) -> None:
    lone = train(Tiny(), COURSE).progress
    go_on: list[Any] = [tmp_path, None, True]
    train(Tiny(cut=4), COURSE, tmp_path)
    for count, dp, cp, fsdp, cut in (
        (4, 2, 2, True, 9),  # from one process to four, which have parts of the weights
        (2, 1, 2, False, 13),  # to two, which have all of them
        (3, 1, 3, True, 17),
    ):
        go_on[1] = cut
        launch(count, tiny_task.trained, dp, cp, fsdp, *go_on)
        assert (tmp_path / "last" / ".metadata").exists()
    ended = train(Tiny(), COURSE, tmp_path, resume=True).progress  # and back to one
    np.testing.assert_allclose(ended.losses, lone.losses, atol=1e-4)
    np.testing.assert_allclose(ended.evaluations, lone.evaluations, atol=1e-4)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["best", "last"]


def by_agent(words: list[str]) -> str:
    """What ranks print that torchrun's agent starts; it forks them, so that none imports anything."""
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
        with own_path():
            printed = elastic_launch(config, tiny_task.lost_and_commanded)(*words)
    finally:  # it has set some of them
        for number, handler in before.items():
            if signal.getsignal(number) is not handler:
                signal.signal(number, handler)
    return "".join(printed.values())


def by_torchrun(words: list[str]) -> str:
    """What ranks print that torchrun itself starts."""
    path = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    run += ["--max-restarts", "1", "--monitor-interval", "0.2", "--standalone"]
    ran = subprocess.run(
        [*run, "-m", "tests.parallel.tiny_task", *words],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.mark.parametrize("launched", thinned([by_agent, by_torchrun], 2))
def test_a_job_that_lost_a_rank_goes_on_from_its_last_checkpoint(
    text: Path, alone: list[float], tmp_path: Path, launched: Callable[[list[str]], str]
) -> None:
    """And after that, in the same processes, the command is run."""
    kept = tmp_path / "command"
    words = [*TRAINED, "--text", str(text), "--to", str(kept), "--accumulate", "2", "--cp", "2"]
    printed = launched([str(tmp_path), *words])
    lone = train(Tiny(), replace(COURSE, evaluate_every=2)).progress
    np.testing.assert_allclose(losses_in(tmp_path), lone.losses, atol=1e-4)
    np.testing.assert_allclose(losses_in(kept), alone, atol=1e-4)
    assert printed.count("kept in") == 1


@pytest.mark.parametrize(
    ("processes", "dp", "cp", "fsdp", "says"),
    [
        (1, 2, 2, False, "take 4 processes but there are 1.*torchrun --nproc-per-node 4"),
        (4, 1, 1, False, "take 1 processes but there are 4"),
        (1, 1, 1, True, "--fsdp shares weights out over processes, and there is but one"),
    ],
)
def test_flags_that_do_not_fit_the_processes_are_refused(
    monkeypatch: pytest.MonkeyPatch, processes: int, dp: int, cp: int, fsdp: bool, says: str
) -> None:
    monkeypatch.setenv("WORLD_SIZE", str(processes))
    with pytest.raises(ArgumentError, match=says):
        start(dp, cp, fsdp=fsdp)


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (torch.nn.Linear(1, 1), "this app's model is a Linear"),
        (GPT(GPTConfig(5, width=4, heads=1, layers=1, dropout=0.2)), "model has 0.2"),
    ],
    ids=["no GPT", "dropout"],
)
def test_sequences_that_can_not_be_shared_out_are_refused(
    model: torch.nn.Module, says: str
) -> None:
    with pytest.raises(ArgumentError, match=f"--cp 2 .* {says}"), Ranks(1, 2).sharing(model):
        pass
