"""Masks for checking or denoising several continuations in one pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from maskwright.core.atoms import blocks, tree
from maskwright.core.validate import parse_int
from maskwright.errors import ArgumentError, SizeError
from maskwright.recipes.local import MOST_BLOCKS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maskwright.core.expr import Mask


def medusa(choices: Sequence[Sequence[int]], past: int = 1) -> Mask:
    """A tree of drafts after `past` accepted tokens: a draft sees the past and its own branch.

    `choices` are the paths that Medusa checks, such as (0,), (1,), (0, 0): the last is the best
    guess of the second head after the best of the first. Drafts stand in the order of the paths.

    Cai et al. 2024, "Medusa: Simple LLM Inference Acceleration Framework", arXiv 2401.10774.

    >>> import maskwright as mw
    >>> mw.recipes.medusa([(0,), (1,), (0, 0)], past=2).on(5).dense().astype(int)[0, 0, 2:].tolist()
    [[1, 1, 1, 0, 0], [1, 1, 0, 1, 0], [1, 1, 1, 0, 1]]
    """
    accepted = parse_int(past, "medusa: past", minimum=1)
    try:
        paths = [tuple(int(step) for step in path) for path in choices]
    except (TypeError, ValueError):
        raise ArgumentError(
            "medusa: choices are no paths of numbers. Give a list such as [(0,), (1,), (0, 0)]."
        ) from None
    place = {path: accepted + number for number, path in enumerate(paths)}
    place[()] = accepted - 1
    for number, path in enumerate(paths):
        if not path or path[:-1] not in place:
            raise ArgumentError(
                f"medusa: the path {path!s:.40} has no parent among the choices. "
                "Give all that it begins with."
            )
        if place[path] != accepted + number:
            raise ArgumentError(f"medusa: the path {path!s:.40} comes twice. Give it once.")
    if accepted > 2**24:
        raise SizeError(f"medusa: past={accepted} is beyond 2**24. Give a shorter past.")
    parents = [place[path[:-1]] for path in paths]
    return tree(np.concatenate([np.arange(-1, accepted - 1), np.array(parents, np.int64)]))


def block_diffusion(length: int, block: int) -> Mask:
    """Training a block diffusion model: the noised text, then the clean text, 2 × `length` tokens.

    A noised block sees itself and the clean blocks before it; a clean block sees itself and the
    clean blocks before it.

    Arriola et al. 2025, "Block Diffusion", arXiv 2503.09573.

    >>> import maskwright as mw
    >>> mw.recipes.block_diffusion(2, 1).on(4).dense().astype(int)[0, 0].tolist()
    [[1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 1, 0], [0, 0, 1, 1]]
    """
    size = parse_int(block, "block_diffusion: block", minimum=1)
    tokens = parse_int(length, "block_diffusion: length", minimum=0)
    if tokens % size:
        raise ArgumentError(
            f"block_diffusion: length={tokens} is no multiple of block={size}. Pad the text."
        )
    count = tokens // size
    if count > MOST_BLOCKS // 2:
        raise SizeError(
            f"block_diffusion: {2 * count} blocks a side make too large a map. Give a larger block."
        )
    own, earlier = np.eye(count, dtype=bool), np.tri(count, k=-1, dtype=bool)
    noised = np.hstack([own, earlier])
    clean = np.hstack([np.zeros_like(own), own | earlier])
    lit = np.vstack([noised, clean])
    return blocks(lit, size, shape=lit.shape)
