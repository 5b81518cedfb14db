from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
import torch

import maskwright as mw
from maskwright.apps.app import Prompt, Wishes
from maskwright.apps.checkpoints import load_progress, load_weights
from maskwright.apps.language import Language, LanguageTask, audited, bigram_loss
from maskwright.apps.registry import find_app
from maskwright.apps.training import train

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    """A text of a few thousand letters, so that a few steps are quick."""
    words = ["the", "cat", "sat", "on", "mat", "and", "slept", "mask", "hides", "what", "comes"]
    rng = random.Random(0)
    path = tmp_path / "notes.txt"
    path.write_text(" ".join(rng.choice(words) for _ in range(1500)) + "\n")
    return path


def task(notes: Path, **wishes: object) -> LanguageTask:
    given = {"version": "v3", "text": notes, "batch": 4, **wishes}
    return Language().task(Wishes(**given))  # type: ignore[arg-type]


@pytest.mark.parametrize("version", ["v3", "v4", "gpt"])
def test_a_few_steps_on_a_real_text_lower_the_loss(version: str) -> None:
    app, wishes = Language(), Wishes(version=version, batch=4)
    made = app.task(wishes)
    outcome = train(made, replace(app.course(wishes), steps=8, evaluate_every=4, warmup=2))
    (_, first), (_, last) = outcome.progress.evaluations
    assert last < first


def test_training_and_held_out_text_do_not_overlap(notes: Path) -> None:
    made = task(notes)
    whole = made.tokenizer.decode([*made.training.tolist(), *made.held_out.tolist()])
    assert whole == notes.read_text()


@pytest.mark.parametrize("version", ["v3", "v4", "gpt"])
def test_every_version_obeys_its_mask(notes: Path, version: str) -> None:
    assert audited(task(notes, version=version)).ok
    assert audited(task(notes, version=version, mask="window(back=4)")).ok


def test_a_trained_model_is_kept_and_used(notes: Path, tmp_path: Path) -> None:
    app, made = Language(), task(notes, version="gpt")
    train(made, replace(app.course(Wishes()), steps=4, evaluate_every=2), tmp_path / "run")
    best = tmp_path / "run" / "best"
    trained = app.again(load_progress(best, "language"))
    load_weights(best, trained.model)
    prompt = Prompt(text="the ", count=20, seed=1)
    (text,) = app.use(trained, prompt)
    assert text.startswith("the ")
    assert len(text) > 8
    assert [text] == list(app.use(made, prompt))


def test_counting_pairs_of_letters_is_the_judge(notes: Path) -> None:
    made = task(notes)
    text = made.tokenizer.decode(made.held_out.tolist())
    assert 0.5 < bigram_loss(made) < len(set(text))


def test_the_report_ends_with_the_audit(notes: Path) -> None:
    app, made = Language(), task(notes)
    lines = list(app.report(made))
    assert "held-out loss" in lines[0]
    assert lines[-1].startswith("BabyGPT respects causal()")


@pytest.mark.parametrize(
    ("prompt", "says"),
    [("中", "has never seen"), ("the " * 40, "160 letters but the context is 128")],
)
def test_a_bad_prompt_is_one_sentence(notes: Path, prompt: str, says: str) -> None:
    with pytest.raises(mw.ArgumentError, match=says):
        list(Language().use(task(notes), Prompt(text=prompt)))


def test_bad_texts_are_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    for content, says in (
        (b"", "has 0 letters"),
        (b"short", "5 letters"),
        (b"\xff" * 2000, "not UTF-8"),
    ):
        path.write_bytes(content)
        with pytest.raises(mw.ArgumentError, match=says):
            task(path)
    with pytest.raises(mw.ArgumentError, match="can't be read"):
        task(tmp_path / "nowhere.txt")


def test_an_unknown_app_and_version_are_named(notes: Path) -> None:
    with pytest.raises(mw.ArgumentError, match=r"Did you mean .language"):
        find_app("langauge")
    with pytest.raises(mw.ArgumentError, match="no version v9"):
        task(notes, version="v9")


def test_a_batch_depends_on_its_step_alone(notes: Path) -> None:
    made = task(notes)
    first, second = made.batch(3, 0), made.batch(3, 0)
    assert torch.equal(first[0], second[0])
    assert torch.equal(first[0][:, 1:], first[1][:, :-1])
    assert not torch.equal(first[0], made.batch(4, 0)[0])
