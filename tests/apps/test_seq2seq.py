"""Tasks on pairs of texts: the dataset, translation and summarisation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import maskwright as mw
from maskwright.apps import TaskOptions, summarisation, translation
from maskwright.apps.data.text import (
    BEGIN_ID,
    END_ID,
    IGNORE_INDEX,
    PAD_ID,
    character_tokenizer,
)
from maskwright.apps.seq2seq import PairDataset, Seq2SeqTask, collate, split_pairs
from maskwright.apps.summarisation import lead, rouge
from maskwright.apps.trainer import TrainingConfig, train
from maskwright.apps.translation import DATE_FORMATS, Translation, date_pairs, number_pairs
from maskwright.models.seq2seq import Seq2SeqConfig

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DIGITS = character_tokenizer(["0123456789"])
PAIRS = [(str(n), str(n)[::-1]) for n in range(100, 1400)]
SHORT, LONG = ([BEGIN_ID, 5, END_ID], [5]), ([BEGIN_ID, 5, 6, 7, END_ID], [7, 6, 5])


class Reverse(Seq2SeqTask):
    """Writes numbers backwards."""

    name, versions, default_batch_size, drop_source = "reverse", ("digits",), 32, 0.0

    def make_dataset(self) -> PairDataset:
        halves = split_pairs([[pair] for pair in PAIRS])
        return PairDataset(*halves, DIGITS, DIGITS, 16, drop_source=self.drop_source)

    def make_config(self) -> Seq2SeqConfig:
        return Seq2SeqConfig(14, 14, block_size=16, n_embd=32, n_head=2, n_layer=1)


def loss(task: Reverse, *pairs: tuple[list[int], list[int]]) -> float:
    with torch.no_grad():
        return float(task.loss(collate(pairs)))


@pytest.mark.parametrize("mask", [None, "everything"])
def test_padding_counts_neither_in_the_loss_nor_in_attention(mask: str | None) -> None:
    task = Reverse(TaskOptions(mask=mask))
    task.model.double()
    assert (collate([SHORT, LONG]).labels[0] != IGNORE_INDEX).sum() == 2
    mean = (loss(task, SHORT) * 2 + loss(task, LONG) * 4) / 6
    assert loss(task, SHORT, LONG) == pytest.approx(mean, rel=1e-9)


def test_no_source_is_both_in_training_and_held_out() -> None:
    training, held_out = split_pairs([[pair] for pair in PAIRS])
    assert not {source for source, _ in training} & {source for source, _ in held_out}
    assert len(training) + len(held_out) == len(PAIRS)
    training, held_out = split_pairs([[("a", "b"), ("c", str(n))] for n in range(30)])
    assert training
    assert held_out == []  # all sources are in the training data


@pytest.mark.parametrize("share", [0.5, 1.0])
def test_a_share_of_the_sources_is_dropped(share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Reverse, "drop_source", share)
    source = Reverse().batch(0, 0).source
    dropped = int((source[:, 1:] == PAD_ID).all(1).sum())
    assert dropped == 32 if share == 1 else 0 < dropped < 32


def test_the_loss_with_the_source_becomes_lower_than_without(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Reverse, "drop_source", 0.2)
    task = Reverse()
    done = train(task, TrainingConfig(60, 1e-2, warmup_steps=10, eval_interval=30, device="cpu"))
    assert done.state.best_loss < 0.8 * done.state.losses[0]
    assert task.evaluate() < task.evaluate(drop_source=True)


def test_batched_generation_equals_one_by_one() -> None:
    task, texts = Reverse(), ["123", "12", "987654", "5", "31"]
    for beams in (1, 3):
        together = task.generate_from_texts(texts, beams)
        assert together == [task.generate_from_texts([text], beams)[0] for text in texts]
    assert task.decode([5, 6]) == task.decode([5, 6, END_ID, 5])


def test_the_audit_finds_attention_to_padding() -> None:
    task = Reverse()
    task.audit().assert_ok()
    encode = task.model.encode
    task.model.encode = lambda src, _=None: encode(src)  # type: ignore[method-assign]
    assert "FAILED" in task.check_mask()
    assert not task.audit().ok


def test_long_pairs_are_left_out_or_truncated() -> None:
    pairs = [(str(n) * 8, "1") for n in range(10, 60)]
    with pytest.raises(mw.ArgumentError, match="Only 0 pairs"):
        PairDataset(pairs[:40], pairs[40:], DIGITS, DIGITS, 12)
    cut = PairDataset(pairs[:40], pairs[40:], DIGITS, DIGITS, 12, truncate=True)
    assert len(cut.training[0][0]) == 12


@pytest.mark.parametrize(("text", "says"), [("12x", "'x'"), ("1" * 15, "15 tokens.*14")])
def test_a_bad_prompt_is_one_sentence(text: str, says: str) -> None:
    with pytest.raises(mw.ArgumentError, match=says):
        Reverse().generate_from_texts([text], 1)


@pytest.mark.parametrize("name", ["translation", "summarisation"])
def test_own_pairs(make_task: Callable[..., Any], name: str, tmp_path: Path) -> None:
    own = tmp_path / "pairs.tsv"
    own.write_text("".join(f"word {n}\tWort {n}\n" for n in range(60)), encoding="utf-8")
    dataset = make_task(name, pairs=own).dataset
    assert (len(dataset.training), len(dataset.held_out)) == (54, 6)


def test_both_formats_of_a_date_are_held_out_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(translation, "NUM_DATES", 400)
    dataset = Translation(TaskOptions(version="dates")).dataset
    sources = [source for source, _ in dataset.held_out_texts]
    with_weekday = {source.split(", ", 1)[-1] for source in sources if "day, " in source}
    assert with_weekday == {source for source in sources if "day, " not in source}


def test_other_languages(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ALL_BELOW", "NUM_NUMBERS", "NUM_DATES"):
        monkeypatch.setattr(translation, name, 20)
    assert number_pairs("fr", "es")[16] == [("seize", "dieciséis")]
    assert [len(group) for group in date_pairs("de", "fr")] == [len(DATE_FORMATS)] * 20
    for make in (number_pairs, date_pairs):
        with pytest.raises(mw.ArgumentError, match="'en' and 'xx'"):
            make("en", "xx")
    with pytest.raises(mw.ArgumentError, match="'english'"):
        Translation(TaskOptions(data="english"))


def test_docstrings_are_truncated_and_some_sources_dropped(make_task: Callable[..., Any]) -> None:
    task = make_task("summarisation")
    assert max(len(source) for source, _ in task.dataset.training) == summarisation.BLOCK_SIZE
    sources = [row for step in range(60) for row in task.batch(step, 0).source.tolist()]
    share = sum(not any(row[1:]) for row in sources) / len(sources)
    assert share == pytest.approx(summarisation.DROP_SOURCE, abs=0.08)


def test_the_lead_and_its_rouge() -> None:
    pairs = [("The cat sat on the mat.", "The cat sat."), ("Dogs bark a lot.", "Dogs are loud.")]
    assert lead(pairs) == ["The cat sat", "Dogs bark a"]
    found = rouge(lead(pairs), [summary for _, summary in pairs])
    assert found["rouge1"] == pytest.approx((1 + 1 / 3) / 2)
    assert found["rouge2"] == pytest.approx(1 / 2)
