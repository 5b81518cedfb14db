"""BabyGPT learns to write: version 3 with one head, version 4 with several."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
import torch

from maskwright.apps import Prompt, TaskOptions, language
from maskwright.apps.checkpoint import TrainingState
from maskwright.apps.language import Language
from maskwright.apps.trainer import TrainingConfig, TrainingResult, train
from maskwright.models.attention import Head, NaiveMultiHeadAttention
from maskwright.models.gpt import GPTConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

TEXT = "how much wood would a woodchuck chuck if a woodchuck could chuck wood? "
CONTEXT, WIDTH = 32, 32
HEADS = {"v3": 1, "v4": 4}
CONFIG = TrainingConfig(200, learning_rate=0.02, warmup_steps=5, eval_interval=200, device="cpu")

Trained = dict[str, tuple[Language, TrainingResult]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    """Both versions after 200 steps on a tongue twister, told again and again."""
    path = tmp_path_factory.mktemp("text") / "twister.txt"
    path.write_text(TEXT * 60)
    presets = {
        name: (GPTConfig(0, CONTEXT, n_embd=WIDTH, n_head=heads, n_layer=1), CONFIG)
        for name, heads in HEADS.items()
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(language, "BLOCK_SIZE", CONTEXT)  # the app's own are larger, and take minutes
        patch.setattr(language, "PRESETS", presets)
        tasks = {
            name: Language(TaskOptions(version=name, text=path, batch_size=16)) for name in HEADS
        }
        yield {name: (task, train(task, CONFIG)) for name, task in tasks.items()}


def familiar(text: str) -> float:
    """The share of pairs of letters that stand in the twister, too."""
    known = set(pairwise(TEXT * 2))
    pairs = list(pairwise(text))
    return sum(pair in known for pair in pairs) / len(pairs)


def test_e5_number_of_heads(trained: Trained) -> None:
    one, several = (trained[name][0].model.attn for name in HEADS)
    assert isinstance(one, Head)
    assert isinstance(several, NaiveMultiHeadAttention)
    assert len(several.heads) == 4


@pytest.mark.parametrize("version", HEADS)
def test_e5_loss_beats_bigrams(trained: Trained, version: str) -> None:
    """At first every letter is as likely as any other; in the end few are a surprise.

    The baseline counts which letter follows which. It looks back by one letter, attention by the whole
    context, so attention must be better.
    """
    task, outcome = trained[version]
    losses = outcome.state.losses
    letters = task.tokenizer.get_vocab_size()
    assert losses[0] == pytest.approx(torch.tensor(letters).log().item(), abs=0.3)
    assert losses[-1] < losses[0] / 3
    assert task.evaluate() < task.bigram_loss()


def test_e5_several_heads_beat_one(trained: Trained) -> None:
    one, several = (trained[name][0].evaluate() for name in HEADS)
    assert several < one / 2


@pytest.mark.parametrize("version", HEADS)
def test_e5_generated_text_resembles_training_text(trained: Trained, version: str) -> None:
    """Before training one in three pairs of letters is familiar, or fewer; afterwards nearly all."""
    task, _ = trained[version]
    prompt = Prompt(text="how ", max_new_tokens=100, temperature=0.8, seed=0)
    [after] = task.predict(prompt)

    torch.manual_seed(0)
    new = Language.from_checkpoint(TrainingState("language", task.config()))
    [before] = new.predict(prompt)

    assert after.startswith("how ")
    assert len(after) == 4 + 100
    assert familiar(before) < 0.35
    assert familiar(after) > 0.9


@pytest.mark.parametrize("version", HEADS)
def test_e5_generation_equals_one_pass(trained: Trained, version: str) -> None:
    """Training looks at all places in one pass; writing asks for the last one, again and again."""
    task, _ = trained[version]
    start = torch.tensor([task.tokenizer.encode("how ").ids])
    written = task.model.generate(start, CONTEXT - 4, temperature=0)
    with torch.no_grad():
        predicted = task.model(written[:, :-1]).argmax(-1)
    assert written[0, 4:].tolist() == predicted[0, 3:].tolist()


@pytest.mark.parametrize("version", HEADS)
def test_e5_trained_model_is_causal(trained: Trained, version: str) -> None:
    trained[version][0].audit().assert_ok()
