"""Balance and communication of masks over ranks: python -m benchmarks.ranks [MASK ...]."""

from __future__ import annotations

import itertools
import math
import sys
import time
from typing import TYPE_CHECKING

import numpy as np

import maskwright as mw
from benchmarks.core import document_lengths
from maskwright.parallel.layout import STRATEGIES, balance

if TYPE_CHECKING:
    from collections.abc import Callable

RANKS = (8, 64, 256)
SHOWN = ["causal", "window", "documents", "prefix-lm", "longformer", "bigbird"]
DRAFTS = 256
BLOCK = 64


def _documents(tokens: int) -> mw.Mask:
    return mw.recipes.packed(lengths=[document_lengths(tokens, tokens // 512)])


def _by_head(tokens: int) -> mw.Mask:
    kinds = [mw.causal(), mw.recipes.sliding(256), _documents(tokens), mw.recipes.chunked(512)]
    return mw.by_head(kinds)


def _tree(tokens: int) -> mw.Mask:
    """A long past, and drafts after it that each see it and their own branch."""
    rng, past = np.random.default_rng(0), tokens - DRAFTS
    parents = np.arange(-1, tokens - 1)
    parents[past + 1 :] = past + np.array([int(rng.integers(-1, n)) for n in range(1, DRAFTS)])
    return mw.tree(parents)


def _image(tokens: int) -> mw.Mask:
    side = math.isqrt(tokens)
    return mw.image(side, tokens // side, radius=3)


def _random_blocks(tokens: int) -> mw.Mask:
    """A tenth of the blocks, at least one per row."""
    rng, count = np.random.default_rng(0), tokens // BLOCK
    lit = np.stack([rng.random(count, np.float32) < 0.1 for _ in range(count)])
    lit[np.arange(count), rng.integers(0, count, count)] |= ~lit.any(1)
    return mw.blocks(lit, BLOCK)


# The patterns of the suite, with the sizes that they have there.
MASKS: dict[str, Callable[[int], mw.Mask]] = {
    "none": lambda _: mw.everything(),
    "causal": lambda _: mw.causal(),
    "ragged": lambda n: mw.causal() & mw.padding(lengths=[n, n // 4 + 77]),
    "window": lambda _: mw.recipes.sliding(256),
    "documents": _documents,
    "prefix-lm": lambda n: mw.recipes.prefix_lm(n // 4),
    "sinks": lambda _: mw.recipes.sinks(256, sinks=4),
    "chunked": lambda _: mw.recipes.chunked(512),
    "longformer": lambda _: mw.recipes.longformer(128, range(16)),
    "bigbird": lambda n: mw.recipes.bigbird(n, block=BLOCK, seed=0),
    "dilated": lambda _: mw.window(back=1023) & mw.stride(4),
    "tree": _tree,
    "image": _image,
    "random-blocks": _random_blocks,
    "by-head": _by_head,
}


def main(names: list[str], sizes: tuple[int, ...]) -> None:
    """Print the table of docs/parallel.md, and the planning times to stderr."""
    print(f'| mask | tokens | ranks | {" | ".join(STRATEGIES)} | `"auto"` |')
    print("|---|---|---|" + "---|" * (len(STRATEGIES) + 1))
    for name, tokens in itertools.product(names, sizes):
        bound = MASKS[name](tokens).on(tokens)
        for ranks in RANKS:
            began = time.perf_counter()
            chosen = balance(bound, ranks).strategy
            took = time.perf_counter() - began
            layouts = [balance(bound, ranks, strategy=strategy) for strategy in STRATEGIES]
            cells = [
                f"{one.cost_imbalance:.2f}, {one.row_imbalance:.2f}, {one.comm_fraction:.2%}"
                for one in layouts
            ]
            print(f"| {name} | {tokens:,} | {ranks} | {' | '.join(cells)} | {chosen} |", flush=True)
            print(f"{name}, {tokens:,} tokens, {ranks} ranks: {took:.2f} s", file=sys.stderr)


if __name__ == "__main__":
    main(sys.argv[1:] or SHOWN, (2**16, 2**20))
