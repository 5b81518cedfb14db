"""Checkpoints over ranks: other numbers of ranks, interrupted replacement, hostile folders."""

from __future__ import annotations

import json
import os
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from maskwright.errors import ArgumentError
from maskwright.parallel import checkpoint
from tests._helpers import parallel_training
from tests._helpers.process_pool import JobError

if TYPE_CHECKING:
    from pathlib import Path

    from tests._helpers.process_pool import Pool


def trained(lr: float = 0.1) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    return model, optimizer


def fresh() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Linear(3, 2)
    return model, torch.optim.AdamW(model.parameters(), lr=0.5)


def save(group: Any, folder: str) -> None:
    checkpoint.save(folder, *trained(), {"step": 7}, group)


def save_repeatedly(group: Any, folder: str, times: int) -> None:
    for step in range(times):
        checkpoint.save(folder, *trained(), {"step": step}, group)


def test_training_continues_with_another_number_of_ranks(pool: Pool, tmp_path: Path) -> None:
    alone, folder = parallel_training.one_process("gpt"), str(tmp_path / "last")
    losses = pool.run(parallel_training.interrupted, 4, folder, 0, 8)[0]
    losses += pool.run(parallel_training.interrupted, 3, folder, 8, 14)[0]
    losses += pool.run(parallel_training.interrupted, 2, folder, 14, parallel_training.STEPS)[0]
    np.testing.assert_allclose(losses, alone, atol=1e-4)
    assert [path.name for path in tmp_path.iterdir()] == ["last"]


@pytest.mark.parametrize("interrupted", [False, True])
def test_one_process_loads_it_without_a_process_group(
    pool: Pool, tmp_path: Path, interrupted: bool
) -> None:
    folder = tmp_path / "last"
    pool.run(save, 2, str(folder))
    if interrupted:
        folder.rename(tmp_path / "last.old")
    model, optimizer = fresh()
    assert checkpoint.load(folder, model, optimizer) == {"step": 7}
    expected, expected_optimizer = trained()
    assert torch.equal(model.weight, expected.weight)
    loaded, stored = (x.state_dict() for x in (optimizer, expected_optimizer))
    assert torch.equal(loaded["state"][0]["exp_avg"], stored["state"][0]["exp_avg"])
    assert loaded["param_groups"][0]["lr"] == 0.1


def test_ranks_do_not_race_for_the_folder(pool: Pool, tmp_path: Path) -> None:
    leftover = tmp_path / ".maskwright-0.new"  # of a save that was interrupted
    leftover.mkdir()
    (leftover / "stale.safetensors").write_bytes(b"")
    pool.run(save_repeatedly, 4, str(tmp_path / "last"), 30)
    assert checkpoint.load(tmp_path / "last", *fresh()) == {"step": 29}
    assert not (tmp_path / "last" / "stale.safetensors").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["last"]


def save_with_a_full_disk(group: Any, folder: str) -> None:
    def fail(path: object, content: str) -> None:
        raise OSError(28, "No space left on device")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "write_atomic", fail)
        with pytest.raises(ArgumentError, match="No space left on device"):
            save(group, folder)


def test_a_full_disk_keeps_the_previous_checkpoint(pool: Pool, tmp_path: Path) -> None:
    pool.run(save, 2, str(tmp_path / "last"))
    pool.run(save_with_a_full_disk, 2, str(tmp_path / "last"))
    assert checkpoint.load(tmp_path / "last", *fresh()) == {"step": 7}
    assert [path.name for path in tmp_path.iterdir()] == ["last"]


def test_a_folder_that_cannot_be_written_is_reported_on_all_ranks(
    pool: Pool, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    with pytest.raises(JobError) as error:
        pool.run(save, 2, str(tmp_path / "file" / "last"))
    for message in error.value.first_lines():
        assert message.startswith("ArgumentError: ")
        assert str(tmp_path / "file" / "last") in message


class Exploit:
    """A pickle that creates a file when it is loaded."""

    def __init__(self, path: Path) -> None:
        self.path = str(path)

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.path,)


def test_a_pickle_in_the_folder_is_never_loaded(pool: Pool, tmp_path: Path) -> None:
    folder, marker = tmp_path / "last", tmp_path / "executed"
    pool.run(save, 2, str(folder))
    shard = next(folder.glob("*.safetensors"))
    for name in (".metadata", "__0_0.distcp", "model.bin"):
        (folder / name).write_bytes(pickle.dumps(Exploit(marker)))
    assert checkpoint.load(folder, *fresh()) == {"step": 7}
    shard.write_bytes(pickle.dumps(Exploit(marker)))
    with pytest.raises(ArgumentError):
        checkpoint.load(folder, *fresh())
    (folder / checkpoint.INDEX).unlink()
    with pytest.raises(ArgumentError):
        checkpoint.load(folder, *fresh())
    assert not marker.exists()


@pytest.mark.parametrize(
    "index",
    [
        b"{",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"format": "pickle"}',
        json.dumps({"format": checkpoint.FORMAT, "param_groups": [1], "metadata": {}}).encode(),
    ],
    ids=["truncated", "list", "binary", "deeply nested", "other format", "param_groups"],
)
def test_a_damaged_index_is_refused(pool: Pool, tmp_path: Path, index: bytes) -> None:
    pool.run(save, 1, str(tmp_path / "last"))
    (tmp_path / "last" / checkpoint.INDEX).write_bytes(index)
    with pytest.raises(ArgumentError, match="last"):
        checkpoint.load(tmp_path / "last", *fresh())


def test_a_checkpoint_of_another_model_or_none_is_refused(pool: Pool, tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match="no checkpoint"):
        checkpoint.load(tmp_path / "last", *fresh())
    pool.run(save, 1, str(tmp_path / "last"))
    for model in (torch.nn.Linear(4, 2), torch.nn.Sequential(torch.nn.Linear(3, 2))):
        with pytest.raises(ArgumentError, match="does not fit"):
            checkpoint.load(tmp_path / "last", model, torch.optim.AdamW(model.parameters()))
