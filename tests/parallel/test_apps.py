"""Trainings over ranks: the losses of one process, and going on after a rank was lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from maskwright.apps.ranks import start
from maskwright.apps.training import train
from maskwright.errors import ArgumentError
from tests.parallel import tiny_task
from tests.parallel.pool import ROOT
from tests.parallel.tiny_task import COURSE, Tiny

if TYPE_CHECKING:
    from pathlib import Path

    from tests.parallel.pool import Pool


@pytest.mark.parametrize(("dp", "cp"), [(1, 4), (2, 2)])
def test_a_training_on_a_mesh_is_that_of_one_process(pool: Pool, dp: int, cp: int) -> None:
    alone = train(Tiny(), COURSE).progress
    for losses, evaluations in pool.run(tiny_task.on_a_mesh, 4, dp, cp):
        np.testing.assert_allclose(losses, alone.losses, atol=1e-4)
        np.testing.assert_allclose(evaluations, alone.evaluations, atol=1e-4)


def test_too_few_processes_are_refused() -> None:
    with pytest.raises(ArgumentError, match="torchrun --nproc-per-node 4"):
        start(2, 2)


def test_a_job_that_lost_a_rank_goes_on_from_its_last_checkpoint(tmp_path: Path) -> None:
    path = os.pathsep.join([str(ROOT), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    run = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    run += ["--max-restarts", "1", "--monitor-interval", "0.2", "--standalone"]
    ran = subprocess.run(
        [*run, "-m", "tests.parallel.tiny_task", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    held = json.loads((tmp_path / "last" / "state.json").read_text())
    course = replace(COURSE, evaluate_every=2)
    alone = train(Tiny(), course).progress
    np.testing.assert_allclose(held["losses"], alone.losses, atol=1e-4)
