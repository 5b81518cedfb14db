from __future__ import annotations

import pytest
import torch

import maskwright as mw
from maskwright.apps.answers import Trained, answers, audited, read, spelled, trained, written
from maskwright.apps.app import Wishes
from maskwright.apps.checkpoints import Progress
from maskwright.apps.pairs import (
    BEGIN_ID,
    END_ID,
    IGNORED,
    PAD_ID,
    Lessons,
    PairTask,
    hide_source,
    made_batch,
    split,
)
from maskwright.apps.tokens import by_letter
from maskwright.apps.training import Course, train
from maskwright.models.seq2seq import Seq2SeqConfig

LETTERS = by_letter(["0123456789"])
PAIRS = [(str(n), str(n)[::-1]) for n in range(100, 1400)]


def task(wishes: Wishes | None = None, *, hidden: float = 0.0, cut: bool = False) -> PairTask:
    training, held_out = split([[pair] for pair in PAIRS])
    lessons = Lessons(training, held_out, LETTERS, LETTERS, cut=cut, hidden=hidden)
    size = Seq2SeqConfig(14, 14, context=16, width=32, heads=2, layers=1)
    return PairTask("pairs", wishes or Wishes(batch=32), "digits", lessons, size)


def loss(learner: PairTask, *pairs: tuple[list[int], list[int]]) -> float:
    with torch.no_grad():
        return float(learner.loss(learner.made_batch(pairs)))


def test_a_step_has_the_same_batch_whenever_it_is_taken() -> None:
    one, other = task(), task()
    other.batch(0, 0)
    assert torch.equal(one.batch(7, 1).source, other.batch(7, 1).source)
    assert not torch.equal(one.batch(7, 1).target, one.batch(8, 1).target)
    assert not torch.equal(one.batch(7, 0).target, one.batch(7, 1).target)


def test_padding_counts_neither_in_the_loss_nor_in_what_is_read() -> None:
    learner = task()
    learner.model.double()
    short, long = ([BEGIN_ID, 5, END_ID], [5]), ([BEGIN_ID, 5, 6, 7, END_ID], [7, 6, 5])
    assert (made_batch([short, long]).wanted[0] != IGNORED).sum() == 2
    mean = (loss(learner, short) * 2 + loss(learner, long) * 4) / 6
    assert loss(learner, short, long) == pytest.approx(mean, rel=1e-9)


def test_a_mask_that_looks_ahead_is_given_the_padding_of_the_target() -> None:
    assert task().batch(0, 0).target_padding is None
    ahead = task(Wishes(batch=32, mask="everything"))
    assert ahead.batch(0, 0).target_padding is not None
    ahead.model.double()
    short, long = ([BEGIN_ID, 5, END_ID], [5]), ([BEGIN_ID, 5, 6, END_ID], [6, 5, 6])
    mean = (loss(ahead, short) * 2 + loss(ahead, long) * 4) / 6
    assert loss(ahead, short, long) == pytest.approx(mean, rel=1e-9)


def test_nothing_is_both_learned_and_held_out() -> None:
    training, held_out = split([[pair] for pair in PAIRS])
    assert not {source for source, _ in training} & {source for source, _ in held_out}
    assert len(training) + len(held_out) == len(PAIRS)
    shared = [[("a", "b"), ("c", str(n))] for n in range(30)]
    training, held_out = split(shared)
    assert training
    assert held_out == []  # their sources were all learned


def test_a_hidden_source_is_one_begin() -> None:
    batch = task(hidden=1.0).batch(0, 0)
    assert batch.source.tolist() == [[BEGIN_ID]] * 32
    assert hide_source(([1, 5, 2], [6])) == ([1], [6])
    shown = task(hidden=0.5).batch(0, 0).source
    assert 0 < int((shown[:, 1:] != PAD_ID).any(1).sum()) < 32


def test_it_learns_and_the_loss_with_the_source_falls_below_that_without() -> None:
    learner = task(hidden=0.2)
    done = train(learner, Course(steps=60, rate=1e-2, warmup=10, evaluate_every=30, device="cpu"))
    assert done.progress.best < 0.8 * done.progress.losses[0]
    assert learner.held_out_loss() < learner.held_out_loss(hidden=True)


def test_answers_of_a_batch_are_those_of_each_text() -> None:
    learner = task()
    texts = ["123", "12", "987654", "5", "31"]
    for beams in (1, 3):
        together = answers(learner, texts, beams)
        assert together == [answers(learner, [text], beams)[0] for text in texts]


def test_an_answer_is_what_one_pass_says() -> None:
    learner = task()
    learner.model.eval()
    ids = read(learner, "4711")
    source = torch.tensor([ids])
    found = learner.model.greedy(source, most=8)[0].tolist()
    begun = torch.tensor([[BEGIN_ID, *found[:-1]]])
    assert learner.model(source, begun).argmax(-1)[0].tolist() == found
    assert spelled(LETTERS, found) == spelled(LETTERS, [*found, END_ID, 5])


def test_a_checkpoint_makes_the_same_model_again() -> None:
    learner = task()
    again = trained(Progress("pairs", learner.config()))
    assert isinstance(again, Trained)
    again.model.load_state_dict(learner.model.state_dict())
    assert written(again, [[1, 5, 6, 2]]) == written(learner, [[1, 5, 6, 2]])
    assert repr(again.mask) == "causal()"


def test_the_audit_tells_a_decoder_that_looks_ahead() -> None:
    learner = task()
    audited(learner).assert_ok()
    learner.model.mask = mw.everything()
    report = audited(learner)
    assert not report.ok
    assert report.findings[0].probe == "leak"


def test_the_audit_tells_a_source_whose_padding_is_seen() -> None:
    learner = task()
    encode = learner.model.encode
    learner.model.encode = lambda source, padding=None: encode(source)  # type: ignore[method-assign]
    assert not audited(learner).ok


def test_what_does_not_fit_is_cut_or_left_out_or_refused() -> None:
    pairs = [(str(n) * 8, "1") for n in range(10, 60)]
    lessons = Lessons(pairs[:40], pairs[40:], LETTERS, LETTERS)
    size = Seq2SeqConfig(14, 14, context=12, width=32, heads=2, layers=1)
    with pytest.raises(mw.ArgumentError, match="Only 0 pairs are within 12 tokens a side"):
        PairTask("pairs", Wishes(), "digits", lessons, size)
    cut = Lessons(pairs[:40], pairs[40:], LETTERS, LETTERS, cut=True)
    assert len(PairTask("pairs", Wishes(), "digits", cut, size).training[0][0]) == 12


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("12x", "never seen 'x'"),
        (" ", "The prompt is empty"),
        ("1" * 15, "has 15 tokens but the model reads 14"),
    ],
)
def test_a_prompt_that_cannot_be_read_is_refused(text: str, message: str) -> None:
    with pytest.raises(mw.ArgumentError, match=message):
        read(task(), text)
