from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import maskwright as mw
from maskwright.apps import docstrings, summarisation
from maskwright.apps.app import Prompt, Wishes
from maskwright.apps.checkpoints import Progress
from maskwright.apps.summarisation import Summarisation, lead, rouge
from maskwright.apps.training import Course, Outcome, train

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from maskwright.apps.pairs import PairTask

APP = Summarisation()


@pytest.fixture(scope="module")
def learned() -> Iterator[tuple[PairTask, Outcome]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(docstrings, "PACKAGES", ("numpy",))
        patch.setattr(docstrings, "MOST_FILES", 60)  # of each, for speed
        patch.setattr(summarisation, "PIECES", 600)
        task = APP.task(Wishes(batch=8))
        course = Course(steps=20, rate=3e-3, warmup=3, evaluate_every=10, device="cpu")
        yield task, train(task, course)


def test_it_learns_docstrings(learned: tuple[PairTask, Outcome]) -> None:
    task, outcome = learned
    assert outcome.progress.best < outcome.progress.losses[0] - 0.3
    assert len(task.training) > 100
    assert max(len(source) for source, _ in task.training) == summarisation.CONTEXT


def test_no_body_is_on_both_sides(learned: tuple[PairTask, Outcome]) -> None:
    task, _ = learned
    known = {tuple(source) for source, _ in task.training}
    assert not known & {tuple(source) for source, _ in task.held_out}


def test_a_share_of_the_sources_is_hidden_while_it_learns(
    learned: tuple[PairTask, Outcome],
) -> None:
    task, _ = learned
    sources = [row for step in range(40) for row in task.batch(step, 0).source.tolist()]
    share = sum(not any(row[1:]) for row in sources) / len(sources)
    assert share == pytest.approx(summarisation.HIDDEN, abs=0.07)


def test_the_report_compares_and_ends_with_the_audit(learned: tuple[PairTask, Outcome]) -> None:
    lines = list(APP.report(learned[0]))
    assert "with it hidden" in lines[0]
    assert "of the model" in lines[1]
    assert "of the body's first words" in lines[2]
    assert "ROUGE-L" in lines[2]
    assert lines[-1].startswith("Seq2Seq respects source: padding(...); target: causal()")


def test_what_it_writes_is_judged_by_rouge(learned: tuple[PairTask, Outcome]) -> None:
    told, figure = APP.judged(learned[0], learned[0])
    assert told.startswith("ROUGE-1")
    assert f"ROUGE-1 {figure:.3f}" in list(APP.report(learned[0]))[1]


def test_it_sums_a_text_up(learned: tuple[PairTask, Outcome]) -> None:
    task, _ = learned
    again = APP.again(Progress("summarisation", task.config()))
    again.model.load_state_dict(task.model.state_dict())
    prompt = Prompt(text="All values are added.\nThe sum is given back.", beams=2)
    assert list(APP.use(again, prompt)) == list(APP.use(task, prompt))
    assert "its author" in APP.sample(task)
    with pytest.raises(mw.ArgumentError, match="to sum up is empty"):
        list(APP.use(again, Prompt()))
    with pytest.raises(mw.ArgumentError, match="Give a shorter one"):
        list(APP.use(again, Prompt(text="word " * 200)))


def test_the_lead_and_its_score() -> None:
    pairs = [("The cat sat on the mat.", "The cat sat."), ("Dogs bark a lot.", "Dogs are loud.")]
    assert lead(pairs) == ["The cat sat", "Dogs bark a"]
    found = rouge(lead(pairs), [summary for _, summary in pairs])
    assert found["rouge1"] == pytest.approx((1 + 1 / 3) / 2)
    assert found["rouge2"] == pytest.approx(1 / 2)


def test_own_pairs(tmp_path: Path) -> None:
    own = tmp_path / "pairs.tsv"
    own.write_text("".join(f"a long text of {n}\t{n}\n" for n in range(40)), encoding="utf-8")
    assert len(APP.task(Wishes(pairs=own)).held_out) == 4
    own.write_text("no tab\n", encoding="utf-8")
    with pytest.raises(mw.ArgumentError, match="Put a tab between"):
        APP.task(Wishes(pairs=own))
    with pytest.raises(mw.ArgumentError, match="There is no version poems"):
        APP.task(Wishes(version="poems"))
