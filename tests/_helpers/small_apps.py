"""Applications with narrow models and a part of their data, for speed."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from maskwright.apps import dialogue, graph, image, language, masked_lm, summarisation, translation
from maskwright.apps.data import corpora

if TYPE_CHECKING:
    import pytest


def shrink_apps(patch: pytest.MonkeyPatch) -> None:
    """Models of two narrow layers, less data, and fewer generated samples, until `patch` is undone."""
    for task in (dialogue.Dialogue, image.Image, masked_lm.MaskedLM):
        tiny = replace(task.model_config, n_embd=32, n_head=2, n_layer=2, dropout=0.0)
        patch.setattr(task, "model_config", tiny)
    for module, name, value in (
        (masked_lm, "VOCAB_SIZE", 500),
        (graph, "NUM_SEEDS", 4),
        (translation, "ALL_BELOW", 100),
        (translation, "NUM_NUMBERS", 1000),
        (translation, "NUM_TESTED", 20),
        (corpora, "PACKAGES", ("numpy",)),
        (corpora, "MAX_FILES", 60),
        (summarisation, "VOCAB_SIZE", 600),
        (summarisation, "NUM_TESTED", 20),
        (image, "NUM_SCORED", 2),
        (language, "NUM_SCORED", 4),
        (dialogue, "NUM_SCORED", 3),
    ):
        patch.setattr(module, name, value)
