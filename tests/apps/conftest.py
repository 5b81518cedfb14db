"""Small models and data for the tests of the applications."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("tokenizers")

from maskwright.apps import (
    Task,
    TaskOptions,
    find_app,
    graph,
    masked_lm,
    summarisation,
    translation,
)
from maskwright.apps.data import corpora
from maskwright.apps.data.text import python_topics
from maskwright.apps.dialogue import Dialogue
from maskwright.apps.image import Image
from maskwright.apps.masked_lm import MaskedLM

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    MakeTask = Callable[..., Task]


@pytest.fixture(scope="session", autouse=True)
def small() -> Iterator[None]:
    """Models of two narrow layers, and a part of the data, for speed."""
    with pytest.MonkeyPatch.context() as patch:
        for task in (Dialogue, Image, MaskedLM):
            tiny = replace(task.model_config, n_embd=32, n_head=2, n_layer=2, dropout=0.0)
            patch.setattr(task, "model_config", tiny)
        patch.setattr(masked_lm, "VOCAB_SIZE", 500)
        patch.setattr(graph, "NUM_SEEDS", 4)
        patch.setattr(translation, "ALL_BELOW", 100)
        patch.setattr(translation, "NUM_NUMBERS", 1000)
        patch.setattr(translation, "NUM_TESTED", 20)
        patch.setattr(corpora, "PACKAGES", ("numpy",))
        patch.setattr(corpora, "MAX_FILES", 60)
        patch.setattr(summarisation, "VOCAB_SIZE", 600)
        patch.setattr(summarisation, "NUM_TESTED", 20)
        patch.setattr("maskwright.apps.image.NUM_SCORED", 2)
        patch.setattr("maskwright.apps.language.NUM_SCORED", 4)
        patch.setattr("maskwright.apps.dialogue.NUM_SCORED", 3)
        yield


@pytest.fixture(scope="session")
def make_task(tmp_path_factory: pytest.TempPathFactory, small: None) -> MakeTask:
    """Makes a new task of an app, with small data unless told otherwise."""
    prose = tmp_path_factory.mktemp("text") / "prose.txt"
    prose.write_text(python_topics()[:60_000], encoding="utf-8")
    defaults: dict[str, dict[str, str | Path]] = {
        "language": {"version": "v3", "text": prose},
        "dialogue": {"version": "spanish"},
        "masked-lm": {"text": prose},
    }

    def make(name: str, **options: object) -> Task:
        merged = {"batch_size": 4, **defaults.get(name, {}), **options}
        return find_app(name)(TaskOptions(**merged))  # type: ignore[arg-type]

    return make
