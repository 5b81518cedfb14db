"""Recipes: masks from the literature, each composed of atoms, with the paper it is from.

A recipe is a function that returns a mask, or several; it adds no new kind of mask. All recipes
are registered in `maskwright.recipes.registry`.
"""

from __future__ import annotations

from maskwright.recipes.models import (
    TranslationMasks,
    bert,
    block_diffusion,
    gpt,
    image_text,
    medusa,
    natten,
    packed,
    prefix_lm,
    shared_prefix,
    translation,
)
from maskwright.recipes.sparse import (
    bigbird,
    chunked,
    local_global,
    longformer,
    sinks,
    sliding,
    sparse_transformer,
)

__all__ = [
    "TranslationMasks",
    "bert",
    "bigbird",
    "block_diffusion",
    "chunked",
    "gpt",
    "image_text",
    "local_global",
    "longformer",
    "medusa",
    "natten",
    "packed",
    "prefix_lm",
    "shared_prefix",
    "sinks",
    "sliding",
    "sparse_transformer",
    "translation",
]
