"""Two trainings of one app, and what each one's own writing is worth."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("tokenizers")

from maskwright.apps.app import Wishes
from maskwright.apps.cheat import Compared, compare_masks
from maskwright.apps.curves import curves
from maskwright.apps.registry import find_app

if TYPE_CHECKING:
    from pathlib import Path

APP = find_app("language")


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    text = tmp_path_factory.mktemp("text") / "notes.txt"
    text.write_text("The cat sat on the mat. The dog ran after it.\n" * 60)
    wishes = Wishes(version="v3", text=text, batch=4)
    course = replace(APP.course(wishes), steps=4, evaluate_every=4, device="cpu")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("maskwright.apps.language.JUDGED", 4)
        return compare_masks(APP, wishes, "everything()", course)


def test_two_masks_are_trained_alike_and_compared(compared: Compared) -> None:
    assert compared.names == ("causal()", "everything()")
    honest, cheat = (outcome.progress.losses for outcome in compared.outcomes)
    assert len(honest) == len(cheat) == 4
    assert honest != cheat
    assert "The training loss under everything() is" in str(compared)
    assert str(compared).count("as the honest model sees it") == 2
    data = compared.as_dict()["everything()"]
    assert data["losses"] == cheat
    assert data["judged"]["figure"] == compared.figures[1]


def test_a_higher_loss_is_told_as_such(compared: Compared) -> None:
    turned = replace(
        compared,
        outcomes=tuple(
            replace(one, progress=replace(one.progress, losses=[loss]))
            for one, loss in zip(compared.outcomes, (1.0, 2.5), strict=True)
        ),
    )
    assert "is 2.5 times higher" in str(turned)
    assert "is 2.5 times lower" in str(replace(turned, outcomes=turned.outcomes[::-1]))


@pytest.mark.parametrize(("form", "begins"), [("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_the_curves_are_a_picture(compared: Compared, form: str, begins: bytes) -> None:
    pytest.importorskip("matplotlib")
    drawn = curves(compared, form)
    assert drawn.startswith(begins)
    assert form == "png" or all(name.encode() in drawn for name in ("causal()", "everything()"))


def test_what_the_corpus_itself_says_is_less_strange_than_what_a_new_model_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The judge of a language model is a loss, so a text that it knows by heart is the least strange."""
    from maskwright.apps import language
    from maskwright.apps.training import Course, train

    text = tmp_path / "notes.txt"
    text.write_text("The cat sat on the mat. The dog ran after it.\n" * 60)
    learned, fresh = (APP.task(Wishes(version="v3", text=text, batch=8)) for _ in range(2))
    monkeypatch.setattr(language, "JUDGED", 4)
    train(learned, Course(steps=40, rate=1e-2, warmup=5, evaluate_every=40, device="cpu"))
    assert language.written_loss(learned, learned) < language.written_loss(fresh, learned) - 1


FEW = {"translation": ("TESTED", 8), "dialogue": ("JUDGED", 3), "image": ("OF_EACH", 1)}


@pytest.mark.parametrize("name", sorted(FEW))
def test_an_app_says_what_its_own_writing_is_worth(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Little, as long as it has learned nothing."""
    app = find_app(name)
    monkeypatch.setattr(import_module(f"maskwright.apps.{name}"), *FEW[name])
    task = app.task(Wishes(batch=2))
    told, figure = app.judged(task, task)
    assert told
    assert 0 <= figure < (10 if name == "dialogue" else 0.7)
