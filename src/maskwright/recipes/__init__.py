"""Named masks of the literature, each a short composition of atoms with the paper it is from.

What may enter: functions that return a mask (or a few), made of atoms and nothing else. A recipe
adds no new kind of mask; reading its body is the best way to learn the atoms.
"""

from __future__ import annotations

from maskwright.recipes.drafts import block_diffusion, medusa
from maskwright.recipes.local import (
    bigbird,
    chunked,
    local_global,
    longformer,
    sinks,
    sliding,
    sparse_transformer,
)
from maskwright.recipes.models import (
    TranslationMasks,
    bert,
    gpt,
    packed,
    prefix_lm,
    shared_prefix,
    translation,
)
from maskwright.recipes.vision import image_text, natten

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
