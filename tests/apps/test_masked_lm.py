"""Masked language modelling: sentences, masked tokens, and blanks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import maskwright as mw
from maskwright.apps import Prompt
from maskwright.apps.data.text import IGNORE_INDEX, SPECIAL, python_topics
from maskwright.apps.masked_lm import MaskedLM, mask_tokens, split_held_out, split_sentences

if TYPE_CHECKING:
    from collections.abc import Callable

MASK_ID = 500


@pytest.fixture
def task(make_task: Callable[..., Any]) -> MaskedLM:
    found: MaskedLM = make_task("masked-lm")
    found.model.eval()
    return found


def rows(count: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(1, 40, (count,), generator=generator).tolist()
    return [torch.randint(4, MASK_ID, (n,), generator=generator).tolist() for n in sizes]


def test_tokens_are_masked_replaced_and_kept_in_their_shares() -> None:
    given = rows(2000)
    batch = mask_tokens(given, MASK_ID, torch.Generator().manual_seed(1))
    chosen = batch.labels != IGNORE_INDEX
    assert chosen.any(1).all()  # at least one of each sentence
    assert not chosen[~batch.keep].any()
    long = torch.tensor([len(row) > 20 for row in given])
    assert float(chosen[long].sum() / batch.keep[long].sum()) == pytest.approx(0.3, abs=0.01)
    masked = batch.ids[chosen] == MASK_ID
    kept = batch.ids[chosen] == batch.labels[chosen]
    assert float(masked.double().mean()) == pytest.approx(0.8, abs=0.02)
    assert float(kept.double().mean()) == pytest.approx(0.1, abs=0.02)
    assert not (batch.ids[batch.keep] < len(SPECIAL)).any()
    for n, row in enumerate(given):  # labels restore the sentences
        original = torch.where(chosen[n], batch.labels[n], batch.ids[n])
        assert original[batch.keep[n]].tolist() == row


def test_sentences_are_prose_and_none_is_both_in_training_and_held_out() -> None:
    found = split_sentences(python_topics())
    assert len(found) > 2000
    assert not any(sentence.startswith(">>>") for sentence in found)
    training, held_out = split_held_out(found)
    assert not set(training) & set(held_out)
    assert sorted([*training, *held_out]) == sorted(found)
    verses = [f"verse {n} has no stop at its end" for n in range(25)]
    assert split_sentences("\n".join(verses)) == verses
    with pytest.raises(mw.ArgumentError, match="1 different sentences"):
        split_sentences("the same line over and over\n" * 90)


def test_padding_changes_nothing(task: MaskedLM) -> None:
    task.model.double()
    batch = task.held_out_batch()
    row = int(batch.keep.sum(1).argmin())
    length = int(batch.keep[row].sum())
    assert length < batch.ids.shape[1]
    alone = type(batch)(*(x[row : row + 1, :length] for x in batch))
    torch.testing.assert_close(task.logits(alone)[0], task.logits(batch)[row, :length])


def test_an_untrained_model_is_worse_than_unigrams(task: MaskedLM) -> None:
    loss, accuracy = task.unigram_scores()
    assert loss < task.evaluate()
    assert 0 < accuracy < 0.2
    assert 0 <= task.accuracy() < 0.1


def test_blanks_are_filled_in(task: MaskedLM) -> None:
    filled, *guesses = task.predict(Prompt(text="The ___ of a list is <mask>.", top_k=3))
    assert filled.startswith("The")
    assert filled.endswith(".")
    assert "of a list is" in filled
    assert "___" not in filled
    assert "<mask>" not in filled
    assert [line.split(":")[0] for line in guesses] == ["blank 1", "blank 2"]
    assert all(line.count("%") == 3 for line in guesses)
    same = list(task.predict(Prompt(text="The <mask> of a list is ____.", top_k=3)))
    assert same == [filled, *guesses]
    plain = next(task.predict(Prompt(text="a <pad> and ___ <end>")))  # special tokens are text
    assert plain.startswith("a <pad> and")
    assert plain.endswith("<end>")
