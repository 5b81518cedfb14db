from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

import maskwright as mw
from maskwright.apps import masked_words
from maskwright.apps.app import Prompt, Wishes
from maskwright.apps.blanks import SKIP, blanked, sentences, split
from maskwright.apps.checkpoints import load_progress, load_weights
from maskwright.apps.masked_words import (
    MaskedWords,
    MaskedWordsTask,
    audited,
    scores,
    unigram_scores,
)
from maskwright.apps.texts import python_topics
from maskwright.apps.tokens import SPECIAL
from maskwright.apps.training import Course, train

if TYPE_CHECKING:
    from pathlib import Path

APP = MaskedWords()
TINY = replace(masked_words.SIZE, width=32, heads=2, layers=2, dropout=0.0)
HIDDEN = 500


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(masked_words, "SIZE", TINY)
    monkeypatch.setattr(masked_words, "PIECES", 500)


@pytest.fixture(scope="module")
def topics() -> str:
    return python_topics()


@pytest.fixture
def task(topics: str) -> MaskedWordsTask:
    return MaskedWordsTask(Wishes(batch=8), topics)


def rows(count: int) -> list[list[int]]:
    source = torch.Generator().manual_seed(0)
    sizes = torch.randint(1, 40, (count,), generator=source).tolist()
    return [torch.randint(4, HIDDEN, (n,), generator=source).tolist() for n in sizes]


def test_blanks_are_as_many_and_of_the_kinds_that_they_should_be() -> None:
    given = rows(2000)
    made = blanked(given, HIDDEN, torch.Generator().manual_seed(1))
    asked = made.targets != SKIP
    assert asked.any(1).all()  # one in each, at the least
    assert not asked[~made.keep].any()
    long = torch.tensor([len(row) > 20 for row in given])
    assert float(asked[long].sum() / made.keep[long].sum()) == pytest.approx(0.3, abs=0.01)
    hidden = made.ids[asked] == HIDDEN
    kept = made.ids[asked] == made.targets[asked]
    assert float(hidden.double().mean()) == pytest.approx(0.8, abs=0.02)
    assert float(kept.double().mean()) == pytest.approx(0.1, abs=0.02)
    assert not (made.ids[made.keep] < len(SPECIAL)).any()


def test_what_is_not_blanked_stays() -> None:
    given = rows(50)
    made = blanked(given, HIDDEN, torch.Generator().manual_seed(1))
    for n, row in enumerate(given):
        before = torch.where(made.targets[n] == SKIP, made.ids[n], made.targets[n])
        assert before[made.keep[n]].tolist() == row


def test_sentences_are_prose_and_none_is_on_both_sides(topics: str) -> None:
    found = sentences(topics)
    assert len(found) > 2000
    assert not any(one.startswith(">>>") for one in found)
    training, held_out = split(found)
    assert not set(training) & set(held_out)
    assert sorted([*training, *held_out]) == sorted(found)


def test_a_text_without_sentences_is_taken_by_lines() -> None:
    verses = [f"verse {n} has no stop at its end" for n in range(25)]
    assert sentences("\n".join(verses)) == verses


def test_batches_depend_on_seed_step_and_part_only(task: MaskedWordsTask, topics: str) -> None:
    other = MaskedWordsTask(Wishes(batch=8), topics)
    assert task.config() == other.config()
    for one, two in zip(task.batch(7, 1), other.batch(7, 1), strict=True):
        assert torch.equal(one, two)
    assert not torch.equal(task.batch(7, 1).ids[:, :4], task.batch(8, 1).ids[:, :4])
    assert not torch.equal(task.batch(7, 1).ids[:, :4], task.batch(7, 0).ids[:, :4])


def test_padding_changes_nothing(task: MaskedWordsTask) -> None:
    task.model.double().eval()
    made = task.held_out_blanks()
    short = int(made.keep.sum(1).argmin())
    length = int(made.keep[short].sum())
    assert length < made.ids.shape[1]
    alone = task.padded(made.ids[short : short + 1, :length], made.keep[short : short + 1, :length])
    among = task.padded(made.ids, made.keep)[short, :length]
    torch.testing.assert_close(alone[0], among)


def test_it_learns_reports_and_comes_back(task: MaskedWordsTask, tmp_path: Path) -> None:
    course = Course(steps=30, rate=1e-2, warmup=3, evaluate_every=30, device="cpu")
    outcome = train(task, course, tmp_path)
    losses = outcome.progress.losses
    assert sum(losses[-5:]) < 0.95 * sum(losses[:5])
    lines = list(APP.report(task))
    assert re.match(r"held-out loss \d\.\d+ nats a blank, \d+\.\d% right; counting", lines[0])
    assert len(lines) == 5
    assert all("___" in line and "it was" in line for line in lines[1:4])
    assert lines[-1].startswith("Padded respects everything() & padding(")
    assert "___" in APP.sample(task)
    again = APP.again(load_progress(tmp_path / "best", "masked-words"))
    load_weights(tmp_path / "best", again.model)
    asked = Prompt(text="The ___ of the list is <mask>.")
    assert list(APP.use(again, asked)) == list(APP.use(task, asked))


def test_scores_are_those_of_the_blanks(task: MaskedWordsTask) -> None:
    task.model.eval()
    loss, hits = scores(task)
    counted, common = unigram_scores(task)
    assert loss == pytest.approx(task.evaluate())
    assert 0 <= hits < 0.1  # it has learnt nothing
    assert 0 < common < 0.2
    assert counted < loss


def test_the_model_obeys_its_mask_and_sees_no_padding(task: MaskedWordsTask) -> None:
    audited(task).assert_ok()


def test_another_mask_is_taken_and_does_not_see_both_ways(topics: str) -> None:
    made = MaskedWordsTask(Wishes(mask="causal"), topics)
    audited(made).assert_ok()
    made.mask = mw.everything()  # now both ways are expected, and the model still looks back only
    assert not audited(made).ok


def test_blanks_of_a_prompt_are_filled_and_guessed(task: MaskedWordsTask) -> None:
    filled, *guesses = APP.use(task, Prompt(text="The ___ of a list is <mask>.", count=3))
    assert filled.startswith("The")
    assert filled.endswith(".")
    assert "of a list is" in filled
    assert "___" not in filled
    assert "<mask>" not in filled
    assert [line.split(":")[0] for line in guesses] == ["blank 1", "blank 2"]
    assert all(line.count("%") == 3 for line in guesses)
    same = list(APP.use(task, Prompt(text="The <mask> of a list is ____.", count=3)))
    assert same == [filled, *guesses]


def test_marks_of_the_model_are_plain_letters_in_a_text(task: MaskedWordsTask) -> None:
    filled = next(APP.use(task, Prompt(text="a <pad> and ___ <end>")))
    assert filled.startswith("a <pad> and")
    assert filled.endswith("<end>")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("no gap", "no blank in 'no gap'. Write ___ or <mask>"),
        (None, "no blank in ''"),
        ("___ " * 65, "65 tokens but the context is 64. Give a shorter one"),
    ],
)
def test_bad_prompts_are_told(task: MaskedWordsTask, text: str | None, said: str) -> None:
    with pytest.raises(mw.ArgumentError, match=said):
        next(APP.use(task, Prompt(text=text)))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"short", "has 5 letters, and 1,000 are the least"),
        (b"the same line over and over\n" * 90, "has 1 different sentences or lines of 20 letters"),
        (b"\xff" * 2000, "is not UTF-8"),
    ],
)
def test_bad_texts_are_told(tmp_path: Path, text: bytes, said: str) -> None:
    path = tmp_path / "text.txt"
    path.write_bytes(text)
    with pytest.raises(mw.ArgumentError, match=said):
        APP.task(Wishes(text=path))


def test_an_unknown_version_is_told() -> None:
    with pytest.raises(
        mw.ArgumentError, match=r"no version large of masked-words. Give one of bert"
    ):
        APP.task(Wishes(version="large"))
