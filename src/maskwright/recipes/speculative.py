"""Masks for verifying or denoising several continuations in one forward pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from maskwright.core.atoms import blocks, tree
from maskwright.core.validate import parse_int
from maskwright.errors import ArgumentError, SizeError
from maskwright.recipes.sparse import MAX_BLOCKS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maskwright.core.expr import Mask


def medusa(choices: Sequence[Sequence[int]], past: int = 1) -> Mask:
    """Medusa: a tree of draft tokens after `past` tokens, each attending to the past and its path.

    Args:
        choices: The paths of the tree, such as (0,), (1,), (0, 0): the last one is the first
            choice of the second head after the first choice of the first head. Draft tokens are
            in the order of the paths.
        past: Number of accepted tokens.

    Raises:
        ArgumentError: If a path has no parent among the choices, or is passed twice.
        SizeError: If `past` is beyond 2**24.

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
            "medusa: choices are not paths of integers. Pass a list like [(0,), (1,), (0, 0)]."
        ) from None
    position = {path: accepted + number for number, path in enumerate(paths)}
    position[()] = accepted - 1
    for number, path in enumerate(paths):
        if not path or path[:-1] not in position:
            raise ArgumentError(
                f"medusa: the path {path!s:.40} has no parent among the choices. "
                "Pass its parents too."
            )
        if position[path] != accepted + number:
            raise ArgumentError(f"medusa: the path {path!s:.40} is passed twice. Pass it once.")
    if accepted > 2**24:
        raise SizeError(f"medusa: past={accepted} is beyond 2**24. Pass a smaller past.")
    parents = [position[path[:-1]] for path in paths]
    return tree(np.concatenate([np.arange(-1, accepted - 1), np.array(parents, np.int64)]))


def block_diffusion(length: int, block: int) -> Mask:
    """Block diffusion training: `length` noised tokens followed by the same tokens without noise.

    A noised block attends to itself and to the clean blocks before it; a clean block attends to
    itself and to the clean blocks before it.

    Args:
        length: Number of tokens of the text; the mask is for twice as many.
        block: Block size, a divisor of `length`.

    Raises:
        ArgumentError: If `length` is not a multiple of `block`.
        SizeError: If there are more than 8192 blocks.

    Arriola et al. 2025, "Block Diffusion", arXiv 2503.09573.

    >>> import maskwright as mw
    >>> mw.recipes.block_diffusion(2, 1).on(4).dense().astype(int)[0, 0].tolist()
    [[1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 1, 0], [0, 0, 1, 1]]
    """
    size = parse_int(block, "block_diffusion: block", minimum=1)
    tokens = parse_int(length, "block_diffusion: length", minimum=0)
    if tokens % size:
        raise ArgumentError(
            f"block_diffusion: length={tokens} is not a multiple of block={size}. Pad the text."
        )
    count = tokens // size
    if count > MAX_BLOCKS // 2:
        raise SizeError(
            f"block_diffusion: {count} blocks, expected at most {MAX_BLOCKS // 2}. "
            "Pass a larger block."
        )
    own, earlier = np.eye(count, dtype=bool), np.tri(count, k=-1, dtype=bool)
    noised = np.hstack([own, earlier])
    clean = np.hstack([np.zeros_like(own), own | earlier])
    visible = np.vstack([noised, clean])
    return blocks(visible, size, shape=visible.shape)
