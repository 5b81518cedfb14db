"""Verbs about the apps, as a person calls them: a few steps on a small text."""

from __future__ import annotations

import io
import json
import sys
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Here

pytest.importorskip("tokenizers")

SMALL = ("language", "--version", "v3", "--text", "notes.txt", "--batch", "4", "--device", "cpu")


@pytest.fixture(autouse=True)
def notes(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("The cat sat on the mat. The dog ran after it.\n" * 60)


def test_apps_are_listed_with_their_versions(here: Here) -> None:
    listed = here("apps").out
    assert "masked-words" in listed
    assert "(gpt, v4, v3)" in listed
    data = json.loads(here("apps", "--format", "json").out)
    assert [one["name"] for one in data][:2] == ["language", "translation"]


def test_train_tells_its_losses_and_the_audit_and_generate_uses_what_is_kept(
    here: Here, tmp_path: Path
) -> None:
    ran = here("train", *SMALL, "--steps", "2")
    assert ran.code == 0, ran.err
    first, *_, report, kept = ran.out.splitlines()
    assert first.startswith("language v3: ")
    assert first.endswith("weights under causal()")
    assert "step 2: loss" in ran.out
    assert report.startswith("BabyGPT respects causal()")
    assert kept == "kept in runs/language-v3"
    assert (tmp_path / "runs/language-v3/best").is_dir()
    words = ("generate", "language", "The c", "--version", "v3", "--count", "12", "--seed", "1")
    said = here(*words).out
    assert said.startswith("The c")
    assert len(said.rstrip("\n")) <= len("The c") + 12
    assert here(*words).out == said


def test_a_training_goes_on_where_it_stopped(here: Here, tmp_path: Path) -> None:
    here("train", *SMALL, "--steps", "4", "--to", "whole")
    here("train", *SMALL, "--steps", "2", "--to", "parts")
    resumed = here("train", *SMALL, "--steps", "4", "--to", "parts", "--resume")
    assert "step 4" in resumed.out
    whole, parts = (
        json.loads(next((tmp_path / name / "last").glob("*.json")).read_text())
        for name in ("whole", "parts")
    )
    assert len(parts["losses"]) == 4
    assert whole["losses"][:2] == parts["losses"][:2]


def test_another_mask_is_trained_and_told(here: Here) -> None:
    ran = here("train", *SMALL, "--steps", "1", "--mask", "everything", "--to", "cheat")
    assert "weights under everything()" in ran.out
    assert "BabyGPT respects everything()" in ran.out


def test_trace_shows_the_shapes_of_a_real_batch(here: Here) -> None:
    ran = here("train", *SMALL, "--steps", "1", "--trace")
    assert "(4, 128, 128) → (4, 1, 128, 128)" in ran.out


def test_two_masks_are_compared_in_words_numbers_and_a_picture(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maskwright.apps.language.JUDGED", 4)
    words = ("compare-masks", *SMALL[:5], "--steps", "3", "--device", "cpu")
    told = here(*words, "-o", "curves.svg").out
    assert told.index("causal()") < told.index("everything()")
    assert "nats a letter of what it writes" in told
    data = json.loads(here(*words[:-2], "--steps", "2", "--format", "json").out)
    assert [len(data[name]["losses"]) for name in ("causal()", "everything()")] == [2, 2]
    assert "training loss" in (tmp_path / "curves.svg").read_text()


def test_a_dialogue_without_a_prompt_is_a_chat(here: Here, monkeypatch: pytest.MonkeyPatch) -> None:
    ran = here("train", "dialogue", "--version", "french", "--steps", "1", "--batch", "2")
    assert "weights under the mask of each batch" in ran.out
    monkeypatch.setattr(sys, "stdin", io.StringIO("Bonjour\n\nSalut\n"))
    chat = here("generate", "dialogue", "--version", "french")
    assert chat.code == 0
    assert chat.out.count("you> ") == 4  # the last one meets the end of the input


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("train", "langage"), "there is no app 'langage'. Did you mean 'language'?"),
        (
            ("train", "language", "--version", "v5"),
            "no version v5 of language. Give one of gpt, v4, v3.",
        ),
        (("train", *SMALL, "--steps", "0"), "--steps 0 is less than 1."),
        (("train", *SMALL, "--accumulate", "0"), "--accumulate 0 is less than 1."),
        (("train", *SMALL, "--rate", "-1"), "--rate -1.0 is no learning rate."),
        (("train", *SMALL, "--cp", "0"), "--cp 0 is less than 1."),
        (("train", *SMALL, "--dp", "2"), "torchrun --nproc-per-node 2 -m maskwright train"),
        (("train", *SMALL, "--fsdp"), "--fsdp shares weights out over processes"),
        (("train", *SMALL, "--cp", "2", "--compile"), "--compile is not for sequences or weights"),
        (("train", *SMALL, "--mask", "causl"), "causl"),
        (("train", *SMALL, "--resume"), "Train first, or name another."),
        (("train", "language", "--text", "nowhere.txt"), "nowhere.txt"),
        (("train", "image", "--device", "abacus"), "--device abacus is not there."),
        (("generate", "language", "--version", "v3"), "Train first, or name another."),
        (("compare-masks", *SMALL[:5], "-o", "curves.html"), "there is no page of curves"),
    ],
)
def test_what_can_not_be_done_is_told_in_one_line(
    here: Here, words: tuple[str, ...], says: str
) -> None:
    ran = here(*words)
    assert ran.code == 2
    assert says in ran.err
    assert len(ran.err.strip().splitlines()) == 1
