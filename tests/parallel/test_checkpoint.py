"""Checkpoints of ranks together: read by another number of them, and written whole or not at all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from maskwright.errors import ArgumentError
from maskwright.parallel import checkpoint
from tests.parallel import training
from tests.parallel.pool import JobError

if TYPE_CHECKING:
    from pathlib import Path

    from tests.parallel.pool import Pool


def made() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    return model, optimizer


def saved(group: Any, folder: str) -> None:
    checkpoint.save(folder, *made(), 7, group, texts={"note.txt": "seven"})


def test_it_goes_on_with_another_number_of_ranks(pool: Pool, tmp_path: Path) -> None:
    alone, folder = training.alone("gpt"), str(tmp_path / "last")
    begun = pool.run(training.cut_short, 4, folder, 0, 8)
    gone_on = pool.run(training.cut_short, 3, folder, 8, 14)
    ended = pool.run(training.cut_short, 2, folder, 14, training.STEPS)
    np.testing.assert_allclose(begun[0] + gone_on[0] + ended[0], alone, atol=1e-4)
    assert [path.name for path in tmp_path.iterdir()] == ["last"]


@pytest.mark.parametrize("swapped", [True, False], ids=["whole", "swap cut short"])
def test_one_process_reads_it_without_any_ranks(pool: Pool, tmp_path: Path, swapped: bool) -> None:
    folder = tmp_path / "last"
    pool.run(saved, 2, str(folder))
    assert (folder / "note.txt").read_text() == "seven"
    if not swapped:
        folder.rename(tmp_path / "last.old")
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    assert checkpoint.load(folder, model, optimizer) == 7
    right, moments = made()
    assert torch.equal(model.weight, right.weight)
    mine, theirs = (x.state_dict()["state"][0]["exp_avg"] for x in (optimizer, moments))
    assert torch.equal(mine, theirs)


def test_one_that_can_not_be_written_is_one_sentence_on_all_ranks(
    pool: Pool, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(JobError) as error:
        pool.run(saved, 2, str(tmp_path / "file" / "last"))
    for said in error.value.said:
        assert said is not None
        assert "last.new can't be written by rank" in said.splitlines()[0]


def test_one_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="There is no checkpoint"):
        checkpoint.load(tmp_path / "last", *made())
