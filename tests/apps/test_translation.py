from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import maskwright as mw
from maskwright.apps import translation
from maskwright.apps.answers import audited
from maskwright.apps.app import Prompt, Wishes
from maskwright.apps.checkpoints import Progress
from maskwright.apps.training import Course, Outcome, train
from maskwright.apps.translation import FORMS, Translation, date_pairs, number_pairs

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from maskwright.apps.pairs import PairTask

APP = Translation()


@pytest.fixture(scope="module")
def learned() -> Iterator[tuple[PairTask, Outcome]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(translation, "ALL_UP_TO", 100)
        patch.setattr(translation, "NUMBERS", 1000)  # of the 10,000, for speed
        made = APP.task(Wishes(batch=16))
        course = Course(steps=12, rate=3e-3, warmup=3, evaluate_every=4, device="cpu")
        yield made, train(made, course)


@pytest.fixture
def task(learned: tuple[PairTask, Outcome]) -> PairTask:
    return learned[0]


def test_it_learns_numbers(learned: tuple[PairTask, Outcome]) -> None:
    task, outcome = learned
    assert (task.name, task.version) == ("translation", "numbers")
    assert task.evaluate() == outcome.progress.best < outcome.progress.losses[0] - 0.5


def test_no_number_and_no_day_is_on_both_sides(task: PairTask) -> None:
    known = {tuple(pair[0]) for pair in task.training}
    assert not known & {tuple(pair[0]) for pair in task.held_out}
    days = APP.task(Wishes(version="dates"))
    held = {source.split(", ", 1)[-1] for source, _ in days.held_out_texts if "day, " in source}
    plain = {source for source, _ in days.held_out_texts if "day, " not in source}
    assert held == plain  # both forms of a day are held out together
    assert len(days.training) == 9 * len(days.held_out)


def test_the_report_ends_with_the_audit(task: PairTask) -> None:
    lines = list(APP.report(task))
    assert "exact match" in lines[0]
    assert "BLEU" in lines[0]
    assert sum("→" in line for line in lines) == translation.SHOWN
    assert lines[-1].startswith("Seq2Seq respects source: padding(...); target: causal()")


def test_a_wrong_mask_is_learned_with_and_told(task: PairTask) -> None:
    config = {**task.config(), "mask": "everything()"}
    again = APP.again(Progress("translation", config))
    again.model.load_state_dict(task.model.state_dict())
    assert audited(again).ok  # it does what was asked, and that is not causal
    again.model.mask = mw.causal()
    assert not audited(again).ok


def test_it_translates_line_by_line_greedily_and_by_beams(task: PairTask) -> None:
    again = APP.again(Progress("translation", task.config()))
    again.model.load_state_dict(task.model.state_dict())
    text = "forty-two\n\none thousand"
    greedy = list(APP.use(again, Prompt(text=text)))
    assert len(greedy) == 2
    assert list(APP.use(task, Prompt(text=text, beams=1))) == greedy
    assert len(list(APP.use(again, Prompt(text=text, beams=3)))) == 2
    assert APP.sample(task).startswith(task.held_out_texts[0][0])


def test_other_languages() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(translation, "ALL_UP_TO", 20)
        patch.setattr(translation, "NUMBERS", 20)
        patch.setattr(translation, "DATES", 20)
        assert number_pairs("fr", "es")[16] == [("seize", "dieciséis")]
        assert [len(group) for group in date_pairs("de", "fr")] == [len(FORMS)] * 20
        for make, library in ((number_pairs, "num2words"), (date_pairs, "babel")):
            with pytest.raises(mw.ArgumentError, match=f"{library} does not know both"):
                make("en", "xx")


def test_own_pairs(tmp_path: Path) -> None:
    own = tmp_path / "pairs.tsv"
    own.write_text("".join(f"word {n}\tWort {n}\n" for n in range(60)), encoding="utf-8")
    made = APP.task(Wishes(pairs=own))
    assert (made.version, len(made.training), len(made.held_out)) == ("own", 54, 6)
    assert made.config()["pairs"] == str(own)


@pytest.mark.parametrize(
    ("wishes", "message"),
    [
        (Wishes(version="poems"), "There is no version poems of translation"),
        (Wishes(data="english"), "translation has no data 'english'"),
    ],
)
def test_unknown_wishes(wishes: Wishes, message: str) -> None:
    with pytest.raises(mw.ArgumentError, match=message):
        APP.task(wishes)


def test_bad_prompts(task: PairTask) -> None:
    with pytest.raises(mw.ArgumentError, match="to translate is empty"):
        list(APP.use(task, Prompt(text=" \n")))
    with pytest.raises(mw.ArgumentError, match="Give a shorter one"):
        list(APP.use(task, Prompt(text="one " * 60)))
