"""Checkpoints: what is saved is loaded, and damaged or hostile files are one sentence."""

from __future__ import annotations

import json
import math
import os
import pickle
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import maskwright as mw
from maskwright.apps import checkpoint
from maskwright.apps.checkpoint import TrainingState, load_state, optimizer_tensors, save_checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    return model, optimizer


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    model, optimizer = make()
    state = TrainingState("line", {"a": [1]}, step=7, losses=[0.5] * 7)
    save_checkpoint(tmp_path / "last", state, model.state_dict(), optimizer_tensors(optimizer))
    return tmp_path / "last"


def load(folder: Path) -> tuple[TrainingState, nn.Module, torch.optim.Optimizer]:
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    state = load_state(folder, "line")
    checkpoint.load_model(folder, model)
    checkpoint.load_optimizer(folder, optimizer)
    return state, model, optimizer


def test_what_is_saved_is_loaded(saved: Path) -> None:
    state, model, optimizer = load(saved)
    right, moments = make()
    assert (state.step, state.config, state.losses) == (7, {"a": [1]}, [0.5] * 7)
    assert torch.equal(model.weight, right.weight)
    for key, value in optimizer_tensors(moments).items():
        assert torch.equal(optimizer_tensors(optimizer)[key], value)
    assert [path.name for path in saved.parent.iterdir()] == ["last"]


def test_an_interrupted_replacement_leaves_the_old_one(saved: Path) -> None:
    saved.rename(saved.with_name("last.old"))
    assert load(saved)[0].step == 7


def test_it_is_on_the_disk_before_the_previous_one_is_deleted(
    saved: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced, rename, rmtree = set[int](), Path.rename, shutil.rmtree
    fsync = os.fsync

    def record_sync(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    def check_rename(source: Path, target: Path) -> Path:
        if target == saved:
            assert {path.stat().st_ino for path in (source, *source.iterdir())} <= synced
            synced.clear()
        return rename(source, target)

    def check_deletion(path: Path, **options: Any) -> None:
        assert not path.exists() or saved.parent.stat().st_ino in synced
        rmtree(path, **options)

    monkeypatch.setattr(os, "fsync", record_sync)
    monkeypatch.setattr(Path, "rename", check_rename)
    monkeypatch.setattr(shutil, "rmtree", check_deletion)
    model, optimizer = make()
    for step in (8, 9):
        state = TrainingState("line", {}, step=step, losses=[0.5] * step)
        save_checkpoint(saved, state, model.state_dict(), optimizer_tensors(optimizer))
        assert load(saved)[0].step == step


def test_a_full_disk_keeps_the_previous_one(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(mw.ArgumentError, match="No space left on device"):
        save_checkpoint(saved, TrainingState("line", {}), {})
    assert load(saved)[0].step == 7
    assert [path.name for path in saved.parent.iterdir()] == ["last"]


class Payload:
    """Executes code when it is unpickled."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (self.path, "w")


def test_no_pickle_is_loaded(saved: Path, tmp_path: Path) -> None:
    """A `.metadata` file is what torch.distributed.checkpoint would unpickle."""
    victim = tmp_path / "executed"
    content = pickle.dumps(Payload(str(victim)))
    for name in (".metadata", "optimizer.pt", "pytorch_model.bin", "__0_0.distcp"):
        (saved / name).write_bytes(content)
    assert load(saved)[0].step == 7
    for name in ("model.safetensors", "optimizer.safetensors", "state.json"):
        (saved / name).write_bytes(content)
        with pytest.raises(mw.ArgumentError):
            load(saved)
    assert not victim.exists()


def _edit(name: str, **values: torch.Tensor) -> Callable[[Path], Any]:
    return lambda folder: save_file({**load_file(folder / name), **values}, folder / name)


def _state(**values: Any) -> Callable[[Path], Any]:
    def edit(folder: Path) -> None:
        state = json.loads((folder / "state.json").read_text())
        (folder / "state.json").write_text(json.dumps({**state, **values}))

    return edit


def _truncate(name: str) -> Callable[[Path], Any]:
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:-9])


DAMAGES = {
    "no model": lambda folder: (folder / "model.safetensors").unlink(),
    "no optimizer": lambda folder: (folder / "optimizer.safetensors").unlink(),
    "no state": lambda folder: (folder / "state.json").unlink(),
    "truncated model": _truncate("model.safetensors"),
    "truncated optimizer": _truncate("optimizer.safetensors"),
    "truncated state": _truncate("state.json"),
    "NaN weight": _edit("model.safetensors", bias=torch.tensor([1.0, torch.nan])),
    "infinite moment": _edit("optimizer.safetensors", **{"1.exp_avg": torch.full((2,), torch.inf)}),
    "weight of another shape": _edit("model.safetensors", weight=torch.ones(4, 4)),
    "moment of another shape": _edit("optimizer.safetensors", **{"0.exp_avg": torch.ones(4, 4)}),
    "unknown parameter": _edit("optimizer.safetensors", **{"9.exp_avg": torch.ones(1)}),
    "bad parameter name": _edit("optimizer.safetensors", weight=torch.ones(1)),
    "missing moment": _edit("optimizer.safetensors", **{"0.more": torch.ones(2, 3)}),
    "unknown weight": _edit("model.safetensors", more=torch.ones(1)),
    "another format": _state(format="pickle"),
    "another task": _state(task="language"),
    "negative step": _state(step=-1),
    "losses of another type": _state(losses=["x"]),
    "evaluations of another type": _state(evaluations=[1]),
    "no list of losses": _state(losses={}, step=0),
    "NaN loss": _state(losses=[math.nan] * 7),
    "infinite loss": _state(losses=[math.inf] * 7),
    "loss beyond float": _state(losses=[10**400] * 7),
    "infinite step": _state(step=math.inf),
    "step of another type": _state(step=7.0),
    "step without losses": _state(step=10**30),
    "infinite step of an evaluation": _state(evaluations=[[math.inf, 1.0]], best_loss=1.0),
    "infinite evaluation": _state(evaluations=[[7, math.inf]]),
    "fraction of a step": _state(evaluations=[[1.5, 1.0]], best_loss=1.0),
    "evaluation after the last step": _state(evaluations=[[8, 1.0]], best_loss=1.0),
    "evaluations out of order": _state(evaluations=[[4, 1.0], [2, 2.0]], best_loss=1.0),
    "NaN best loss": _state(best_loss=math.nan),
    "best loss of no evaluation": _state(best_loss=-math.inf),
    "best loss below all evaluations": _state(evaluations=[[7, 2.0]], best_loss=1.0),
    "negative evals_since_best": _state(evals_since_best=-1),
    "more evals_since_best than evaluations": _state(evals_since_best=1),
    "evals_since_best of another evaluation": _state(
        evaluations=[[2, 1.0], [4, 2.0]], best_loss=1.0, evals_since_best=2
    ),
    "two evaluations of a step": _state(
        evaluations=[[2, 1.0], [2, 2.0]], best_loss=1.0, evals_since_best=1
    ),
    "unknown field": _state(more=1),
    "not an object": lambda folder: (folder / "state.json").write_text("[1]"),
    "deeply nested": lambda folder: (folder / "state.json").write_text("[" * 200_000),
    "not UTF-8": lambda folder: (folder / "state.json").write_bytes(b"\xff{}"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_checkpoint_is_one_sentence(saved: Path, damage: Callable[[Path], Any]) -> None:
    damage(saved)
    with pytest.raises(mw.ArgumentError) as error:
        load(saved)
    assert str(saved) in str(error.value)
    assert len(str(error.value).splitlines()) == 1
