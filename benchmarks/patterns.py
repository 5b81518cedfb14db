"""The masks that attention is measured under, each said twice: for maskwright, and for flex.

A pattern is made for a length. Its description holds for 1,024 tokens and more; with fewer
tokens its sizes shrink along.
"""

# ruff: noqa: ARG001, ARG005 - all mask_mods share one signature

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import maskwright as mw
from benchmarks.core import document_lengths

if TYPE_CHECKING:
    from collections.abc import Callable

    Mod = Callable[[Any, Any, Any, Any], Any]

SEED = 0
SMALL, DECODE = "small", "decode"
LENGTHS = (1_024, 4_096, 16_384)
GROUPS = (*map(str, LENGTHS), SMALL, DECODE)
HEAD_DIM = 64


@dataclass(frozen=True, eq=False)
class Case:
    """One mask with the sizes it is run on, and the mask_mod a user would write for flex."""

    pattern: str
    group: str
    mask: mw.Mask
    mod: Mod | None  # of flex's own indices: its q counts rows from 0; None where all is seen
    batch: int
    heads: int
    q_len: int
    kv_len: int
    head_dim: int = HEAD_DIM

    def bound(self) -> mw.BoundMask:
        """The mask on these sizes, the last query at the last key."""
        return self.mask.on(self.q_len, self.kv_len, self.batch, self.heads)

    @cached_property
    def visible(self) -> torch.Tensor | None:
        """The dense mask, shared by the peers; None if all cells are visible."""
        bound = self.bound()
        if bound.count() == self.batch * self.heads * self.q_len * self.kv_len:
            return None
        return torch.from_numpy(bound.dense())


@dataclass(frozen=True)
class Frame:
    """The sizes that a pattern is made for."""

    length: int  # of the keys
    q_len: int
    batch: int
    heads: int

    @property
    def start(self) -> int:
        """The position of the first query."""
        return self.length - self.q_len

    def size(self, usual: int, part: int) -> int:
        """A size, or a part of the length where that is short."""
        return usual if self.length >= LENGTHS[0] else max(1, self.length // part)


def none(_: Frame) -> tuple[mw.Mask, Mod | None]:
    """All keys."""
    return mw.everything(), None


def causal(f: Frame) -> tuple[mw.Mask, Mod]:
    """The past."""
    start = f.start
    return mw.causal(), lambda b, h, q, k: q + start >= k


def ragged(f: Frame) -> tuple[mw.Mask, Mod]:
    """The past, padded at the end: sequences of a quarter to all of the length."""
    start = f.start
    lengths = np.random.default_rng(SEED).integers(f.length // 4, f.length + 1, f.batch)
    real = torch.from_numpy(lengths)
    return (
        mw.causal() & mw.padding(lengths=lengths.tolist()),
        lambda b, h, q, k: (q + start >= k) & (k < real[b]),
    )


def window(f: Frame) -> tuple[mw.Mask, Mod]:
    """The last 256 keys."""
    start = f.start
    size = f.size(256, 2)

    def mod(b, h, q, k):
        return (q + start >= k) & (q + start - k < size)

    return mw.recipes.sliding(size), mod


def documents(f: Frame) -> tuple[mw.Mask, Mod]:
    """The past in the same document, of 512 tokens on average."""
    start = f.start
    lengths = _document_lengths(f)
    ids = _document_ids(lengths)
    return (
        mw.recipes.packed(lengths=[lengths]),
        lambda b, h, q, k: (q + start >= k) & (ids[q + start] == ids[k]),
    )


def prefix_lm(f: Frame) -> tuple[mw.Mask, Mod]:
    """A quarter of the length in both directions, then the past."""
    start = f.start
    size = f.length // 4
    return mw.recipes.prefix_lm(size), lambda b, h, q, k: (q + start >= k) | (k < size)


def sinks(f: Frame) -> tuple[mw.Mask, Mod]:
    """The first 4 keys and the last 256."""
    start = f.start
    size = f.size(256, 2)

    def mod(b, h, q, k):
        return (q + start >= k) & ((q + start - k < size) | (k < 4))

    return mw.recipes.sinks(size, sinks=4), mod


def chunked(f: Frame) -> tuple[mw.Mask, Mod]:
    """The past in the same chunk of 512."""
    start = f.start
    size = f.size(512, 4)

    def mod(b, h, q, k):
        return (q + start >= k) & ((q + start) // size == k // size)

    return mw.recipes.chunked(size), mod


def longformer(f: Frame) -> tuple[mw.Mask, Mod]:
    """128 keys on each side, and 16 global tokens."""
    start = f.start
    side, chosen = f.size(128, 4), f.size(16, 16)

    def mod(b, h, q, k):
        row = q + start
        return ((row - k <= side) & (k - row <= side)) | (k < chosen) | (row < chosen)

    return mw.recipes.longformer(side, range(chosen)), mod


def bigbird(f: Frame) -> tuple[mw.Mask, Mod]:
    """Blocks of 64: neighbours, first, last, and three at random."""
    size = f.size(64, 16)
    mask = mw.recipes.bigbird(f.length, block=size, seed=SEED)
    return mask, _in_blocks(mask.on(f.length).dense()[0, 0, ::size, ::size], size, f.start)


def dilated(f: Frame) -> tuple[mw.Mask, Mod]:
    """Every fourth of the last 1,024 keys."""
    start = f.start
    reach = min(1_024, f.length)

    def mod(b, h, q, k):
        back = q + start - k
        return (back >= 0) & (back < reach) & (back % 4 == 0)

    return mw.window(back=reach - 1) & mw.stride(4), mod


def tree(f: Frame) -> tuple[mw.Mask, Mod]:
    """A tree of 256 drafts after a long prefix: each sees the prefix and its own branch."""
    rng = np.random.default_rng(SEED)
    past, count = f.start, f.q_len
    parents = np.arange(-1, f.length - 1)
    line = np.zeros((count, count), bool)  # who is whose ancestor, or itself
    for draft in range(count):
        parent = int(rng.integers(-1, draft)) if draft else -1
        parents[past + draft] = past + parent
        line[draft] = line[parent] if parent >= 0 else False
        line[draft, draft] = True
    branch = torch.from_numpy(line)

    def mod(b, h, q, k):
        return (k < past) | branch[q, torch.clamp(k - past, min=0)]

    return mw.tree(parents), mod


def image(f: Frame) -> tuple[mw.Mask, Mod]:
    """The pixels within 3 lines and columns, in a square image."""
    start = f.start
    side = math.isqrt(f.length)
    if side * side != f.length:
        raise ValueError(f"{f.length} tokens are no square image")

    def mod(b, h, q, k):
        down, across = (q + start) // side - k // side, (q + start) % side - k % side
        return (down <= 3) & (down >= -3) & (across <= 3) & (across >= -3)

    return mw.image(side, side, radius=3), mod


def random_blocks(f: Frame) -> tuple[mw.Mask, Mod]:
    """A tenth of the blocks of 64, at least one per row."""
    size = f.size(64, 16)
    rng = np.random.default_rng(SEED)
    count = f.length // size
    lit = rng.random((count, count)) < 0.1
    lit[np.arange(count), rng.integers(0, count, count)] |= ~lit.any(1)
    return mw.blocks(lit, size), _in_blocks(lit, size, f.start)


def by_head(f: Frame) -> tuple[mw.Mask, Mod]:
    """Heads in turn: causal, window of 256, documents, chunks of 512."""
    start = f.start
    wide, size, lengths = f.size(256, 2), f.size(512, 4), _document_lengths(f)
    ids = _document_ids(lengths)
    kinds = [
        mw.causal(),
        mw.recipes.sliding(wide),
        mw.recipes.packed(lengths=[lengths]),
        mw.recipes.chunked(size),
    ]

    def mod(b, h, q, k):
        row, kind = q + start, h % 4
        return (row >= k) & (
            (kind == 0)
            | ((kind == 1) & (row - k < wide))
            | ((kind == 2) & (ids[row] == ids[k]))
            | ((kind == 3) & (row // size == k // size))
        )

    return mw.by_head([kinds[head % 4] for head in range(f.heads)]), mod


PATTERNS: dict[str, Callable[[Frame], tuple[mw.Mask, Mod | None]]] = {
    "none": none,
    "causal": causal,
    "ragged": ragged,
    "window": window,
    "documents": documents,
    "prefix-lm": prefix_lm,
    "sinks": sinks,
    "chunked": chunked,
    "longformer": longformer,
    "bigbird": bigbird,
    "dilated": dilated,
    "tree": tree,
    "image": image,
    "random-blocks": random_blocks,
    "by-head": by_head,
}
SMALL_PATTERNS = (
    *("none", "causal", "ragged", "window", "documents", "prefix-lm", "sinks", "chunked"),
    "by-head",
)
DECODE_PATTERNS = (
    *("none", "causal", "ragged", "window", "documents", "sinks", "chunked", "dilated"),
    "by-head",
)


def patterns_of(group: str) -> tuple[str, ...]:
    """The patterns that make sense in a group: a length, `small` or `decode`."""
    return {SMALL: SMALL_PATTERNS, DECODE: DECODE_PATTERNS}.get(group, tuple(PATTERNS))


def make(pattern: str, group: str) -> Case:
    """A pattern on the sizes of its group; a group that is a number is a length."""
    if group == SMALL:
        frame = Frame(length=128, q_len=128, batch=32, heads=8)
    elif group == DECODE:
        frame = Frame(length=8_192, q_len=1, batch=4 if pattern == "ragged" else 1, heads=8)
    else:
        frame = _long(pattern, int(group))
    mask, mod = PATTERNS[pattern](frame)
    return Case(pattern, group, mask, mod, frame.batch, frame.heads, frame.q_len, frame.length)


def _long(pattern: str, length: int) -> Frame:
    longest = length >= LENGTHS[-1]  # where a dense peer would take minutes on all heads
    batch = 1 if pattern != "ragged" else 2 if longest else 4
    q_len = min(256, length // 4) if pattern == "tree" else length
    return Frame(length, q_len, batch, heads=2 if longest else 8)


def _document_lengths(f: Frame) -> list[int]:
    return document_lengths(f.length, f.length // f.size(512, 4))


def _document_ids(lengths: list[int]) -> Any:
    return torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))


def _in_blocks(lit: np.ndarray, size: int, start: int) -> Mod:
    table = torch.from_numpy(np.ascontiguousarray(lit))
    return lambda b, h, q, k: table[(q + start) // size, k // size]
