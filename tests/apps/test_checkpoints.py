from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

import pytest
import torch
from torch import nn

import maskwright as mw
from maskwright.apps import checkpoints
from maskwright.apps.checkpoints import Progress, load_progress, load_weights, save

if TYPE_CHECKING:
    from pathlib import Path


def test_what_is_saved_comes_back(tmp_path: Path) -> None:
    model, other = nn.Linear(3, 2), nn.Linear(3, 2)
    save(tmp_path / "last", model, Progress("line", {"a": [1]}, step=7, losses=[0.5]))
    progress = load_progress(tmp_path / "last", "line")
    assert (progress.step, progress.config, progress.losses) == (7, {"a": [1]}, [0.5])
    load_weights(tmp_path / "last", other)
    assert torch.equal(other.weight, model.weight)
    assert [path.name for path in tmp_path.iterdir()] == ["last"]


def test_a_swap_that_was_cut_short_leaves_the_old_one(tmp_path: Path) -> None:
    save(tmp_path / "last", nn.Linear(1, 1), Progress("line", {}, step=1))
    (tmp_path / "last").rename(tmp_path / "last.old")
    assert load_progress(tmp_path / "last", "line").step == 1


def test_a_full_disk_keeps_the_last_good_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path / "last", nn.Linear(1, 1), Progress("line", {}, step=1))

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoints, "save_file", full)
    with pytest.raises(mw.ArgumentError, match=r"No space left on device\. Make room"):
        save(tmp_path / "last", nn.Linear(1, 1), Progress("line", {}, step=2))
    assert load_progress(tmp_path / "last", "line").step == 1
    assert [path.name for path in tmp_path.iterdir()] == ["last"]


def test_what_is_no_checkpoint_is_one_sentence(tmp_path: Path) -> None:
    folder = tmp_path / "last"
    with pytest.raises(mw.ArgumentError, match="There is no checkpoint"):
        load_progress(folder, "line")
    save(folder, nn.Linear(2, 2), Progress("line", {}))
    with pytest.raises(mw.ArgumentError, match="a checkpoint of line, not of language"):
        load_progress(folder, "language")
    with pytest.raises(mw.ArgumentError, match="do not fit"):
        load_weights(folder, nn.Linear(3, 2))
    (folder / "model.safetensors").write_bytes(b"half")
    with pytest.raises(mw.ArgumentError, match="do not fit"):
        load_weights(folder, nn.Linear(2, 2))
    (folder / "state.json").write_text('{"app": "line"')
    with pytest.raises(mw.ArgumentError, match="holds no whole checkpoint"):
        load_progress(folder, "line")
    (folder / "state.json").write_text(json.dumps({"other": 1}))
    with pytest.raises(mw.ArgumentError, match="holds no whole checkpoint"):
        load_progress(folder, "line")
    shutil.rmtree(folder)
