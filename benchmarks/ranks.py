"""Balance and communication of masks over ranks, as planned: the tables of docs/parallel.md."""

from __future__ import annotations

import itertools
import math
import time
from typing import TYPE_CHECKING, Any

import numpy as np

import maskwright as mw
from benchmarks.core import document_lengths
from benchmarks.figures import clock
from benchmarks.measure import save, table
from maskwright.parallel.layout import STRATEGIES, balance

if TYPE_CHECKING:
    from collections.abc import Callable

RANKS = (8, 64, 256)
SHOWN = ["causal", "window", "documents", "prefix-lm", "longformer", "bigbird"]
TOKENS = (2**16, 2**20)
MAX_TOKENS = {"bigbird": 2**16}  # its longer layouts take most of the time, and look the same
FEW_RANKS, FEW_TOKENS = 4, (4_096, 16_384, 65_536)
LABELS = {
    "window": "sliding window of 256 keys",
    "documents": "documents of 512 tokens on average",
    "causal": "causal",
}
LARGE = 2**22, 1_024  # tokens, ranks
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


def layouts(name: str, tokens: int, num_ranks: int) -> dict[str, object]:
    """The largest cost and rows relative to the mean, and the traffic, of each strategy."""
    bound = MASKS[name](tokens).on(tokens)
    start = time.perf_counter()
    chosen = balance(bound, num_ranks)
    seconds = time.perf_counter() - start
    strategies = {
        strategy: [layout.cost_imbalance, layout.row_imbalance, layout.comm_fraction]
        for strategy in STRATEGIES
        for layout in [balance(bound, num_ranks, strategy=strategy)]
    }
    return {
        "mask": name,
        "tokens": tokens,
        "ranks": num_ranks,
        "strategies": strategies,
        "auto": chosen.strategy,
        "comm_fraction": chosen.comm_fraction,
        "seconds": seconds,
    }


def tables(found: dict[str, Any]) -> dict[str, str]:
    """The tables of docs/parallel.md: balance, traffic of few ranks, and the time of a large plan."""
    balance_rows = [
        [
            cell["mask"],
            f"{cell['tokens']:,}",
            str(cell["ranks"]),
            *(
                f"{cost:.2f}, {rows:.2f}, {comm:.2%}"
                for cost, rows, comm in cell["strategies"].values()
            ),
            cell["auto"],
        ]
        for cell in found["cells"]
    ]
    few = {(cell["mask"], cell["tokens"]): cell["comm_fraction"] for cell in found["few"]}
    lengths = list(dict.fromkeys(tokens for _, tokens in few))
    masks = list(dict.fromkeys(mask for mask, _ in few))
    traffic_rows = [[LABELS[m], *(f"{few[m, tokens]:.1%}" for tokens in lengths)] for m in masks]
    large = found["large"]
    return {
        "balance": table(["mask", "tokens", "ranks", *STRATEGIES, '`"auto"`'], balance_rows),
        "traffic": table(["mask", *(f"{tokens:,} tokens" for tokens in lengths)], traffic_rows),
        "large": (
            f"Only intervals are read, never cells: the layout of {large['tokens']:,} tokens of a causal "
            f"mask over {large['ranks']:,} ranks took {clock(large['seconds'])}."
        ),
    }


def run() -> None:
    """Compute all layouts, print the tables, keep the JSON."""
    sizes = [
        (name, tokens, ranks)
        for name, tokens, ranks in itertools.product(SHOWN, TOKENS, RANKS)
        if tokens <= MAX_TOKENS.get(name, tokens)
    ]
    found = {
        "cells": [layouts(*size) for size in sizes],
        "few": [layouts(name, tokens, FEW_RANKS) for name in LABELS for tokens in FEW_TOKENS],
        "large": layouts("causal", *LARGE),
    }
    print("\n\n".join(tables(found).values()))
    print(f"\nwritten to {save('ranks', found)}")
