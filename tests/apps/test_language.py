"""The character-level language model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from maskwright.apps import TaskOptions
from maskwright.apps.data.text import python_topics
from maskwright.apps.language import Language
from maskwright.apps.trainer import TrainingConfig, train

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_training_and_held_out_text_do_not_overlap(make_task: Callable[..., Any]) -> None:
    task = make_task("language")
    whole = task.tokenizer.decode([*task.training.tolist(), *task.held_out.tolist()])
    assert whole == python_topics()[:60_000]
    ids, labels = task.batch(3, 0)
    assert torch.equal(ids[:, 1:], labels[:, :-1])


def test_a_trained_model_scores_its_own_text_better_than_random_text(tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("The cat sat on the mat. The dog ran after it.\n" * 60)
    options = TaskOptions(version="v3", text=path, batch_size=8)
    learned, new = Language(options), Language(options)
    train(learned, TrainingConfig(40, 1e-2, warmup_steps=5, eval_interval=40, device="cpu"))
    assert learned.score_generation(learned)[1] < new.score_generation(learned)[1] - 1
    assert learned.evaluate() < new.evaluate()
    assert 0.1 < learned.bigram_loss() < new.evaluate()
