"""Every atom, every recipe and common compositions, encode as arrays and recognized again."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

import maskwright as mw
from maskwright import Mask
from maskwright.recognition import recognize
from tests._helpers.mask_encodings import CONVENTIONS, check_exact, encode
from tests.conftest import FUZZ

ROUNDS = max(2, FUZZ // 100)  # of every kind
SHARE = 0.95  # of all round trips give text no longer than the original's
FLOOR = 0.8  # of every kind
LONGER_ON_PURPOSE = {"prefix"}  # alone, the first n keys are called padding: one letter more


class Draw:
    """A seeded source of masks of one kind, with the frame to bind them on."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.n = self.number(4, 65)
        self.batch = self.number(1, 4)

    def number(self, low: int, high: int) -> int:
        return int(self.rng.integers(low, max(high, low + 1)))

    def numbers(self, low: int, high: int, size: Any) -> np.ndarray:
        return self.rng.integers(low, max(high, low + 1), size)

    def some(self, most: int = 5) -> list[int]:
        return sorted(
            self.rng.choice(self.n, self.number(1, min(most, self.n) + 1), replace=False).tolist()
        )

    def lengths(self) -> list[int]:
        return self.numbers(1, self.n + 1, self.batch).tolist()

    def rest(self, total: int) -> list[int]:
        parts = []
        while total > 0 and len(parts) < 6:
            parts.append(min(total, self.number(1, max(2, self.n // 2))))
            total -= parts[-1]
        return parts

    def rests(self, total: int) -> list[list[int]]:
        return [self.rest(total) for _ in range(self.batch)]

    def around(self, most: int = 6) -> Mask:
        return mw.window(self.number(0, most), self.number(0, most))

    def keys(self) -> Mask:
        return mw.keys(self.some())

    def ids(self, values: int = 4) -> np.ndarray:
        change = self.rng.random((self.batch, self.n)) < 0.3
        table = self.numbers(-1, values, (self.batch, self.n + 1))
        return np.take_along_axis(table, np.cumsum(change, axis=1), axis=1)

    def left(self) -> np.ndarray:
        return np.arange(self.n) >= self.numbers(0, self.n, (self.batch, 1))

    def holes(self) -> np.ndarray:
        return self.rng.random((self.batch, self.n)) < 0.7

    def parents(self, shuffled: bool = False) -> np.ndarray:
        parents = np.array(
            [-1]
            + [self.number(-1, p) if self.rng.random() < 0.5 else p - 1 for p in range(1, self.n)]
        )
        if not shuffled:
            return parents
        place = self.rng.permutation(self.n)
        moved = np.full(self.n, -1)
        moved[place] = np.where(parents < 0, -1, place[parents])
        return moved

    def edges(self) -> np.ndarray:
        return self.numbers(0, self.n, (self.number(1, 9), 2))

    def sides(self) -> tuple[int, int]:
        height, width = self.number(2, 9), self.number(2, 9)
        self.n = height * width
        return height, width

    def blocks(self) -> Mask:
        size = self.number(2, 9)
        side = -(-self.n // size)
        return mw.blocks(self.numbers(0, 2, (side, side)), size=size)

    def atom(self) -> Mask:
        """One of few short ones, for members."""
        return [
            mw.causal(),
            mw.window(self.number(0, 9)),
            mw.chunks(self.number(2, 9)),
            mw.everything(),
        ][self.number(0, 4)]

    def paths(self) -> list[tuple[int, ...]]:
        paths: list[tuple[int, ...]] = [(0,)]
        for _ in range(self.number(2, 10)):
            stem = paths[self.number(0, len(paths))][: self.number(0, 3)]
            path = (*stem, self.number(0, 3))
            if path not in paths and (not stem or stem in paths):
                paths.append(path)
        return paths


R = mw.recipes


def medusa(d: Draw) -> Mask:
    paths, past = d.paths(), d.number(1, 10)
    d.n = past + len(paths)
    return R.medusa(paths, past)


def block_diffusion(d: Draw) -> Mask:
    block, count = d.number(1, 6), d.number(2, 6)
    d.n = 2 * block * count
    return R.block_diffusion(block * count, block)


def bigbird(d: Draw) -> Mask:
    return R.bigbird(d.n, block=d.number(2, 9), random_blocks=d.number(0, 3), seed=d.number(0, 99))


def shared_prefix(d: Draw) -> Mask:
    prompt = d.number(1, d.n)
    return R.shared_prefix(prompt, d.rest(d.n - prompt) or [0])


def stride(d: Draw) -> Mask:
    step = d.number(2, 9)
    return mw.stride(step, d.number(0, step))


def image(d: Draw) -> Mask:
    height, width = d.sides()
    return mw.image(
        height,
        width,
        d.number(0, 4),
        raster=d.rng.random() < 0.5,
        border=["cut", "shift"][d.number(0, 2)],
    )


def graph(d: Draw) -> Mask:
    return mw.graph(d.edges(), directed=d.rng.random() < 0.5, loops=d.rng.random() < 0.5)


def padded(d: Draw) -> Mask:
    return mw.padding(keep=d.left()) if d.rng.random() < 0.5 else mw.padding(lengths=d.lengths())


ATOMS = {
    "everything": lambda d: mw.everything(),
    "nothing": lambda d: mw.nothing(),
    "causal": lambda d: mw.causal(),
    "window": lambda d: mw.window(d.number(0, d.n), d.number(0, d.n)),
    "window back": lambda d: mw.window(d.number(0, d.n)),
    "window no limit": lambda d: mw.window(d.number(0, d.n), None),
    "padding lengths": lambda d: mw.padding(lengths=d.lengths()),
    "padding left": lambda d: mw.padding(keep=d.left()),
    "padding holes": lambda d: mw.padding(keep=d.holes()),
    "documents lengths": lambda d: mw.documents(lengths=d.rests(d.n - d.number(0, 3))),
    "documents ids": lambda d: mw.documents(ids=d.ids()),
    "documents torn": lambda d: mw.documents(ids=d.numbers(-1, 4, (d.batch, d.n))),
    "prefix": lambda d: mw.prefix(d.lengths()),
    "chunks": lambda d: mw.chunks(d.number(2, d.n)),
    "stride": stride,
    "keys": lambda d: mw.keys(d.some()),
    "keys by token": lambda d: mw.keys(d.holes()),
    "queries": lambda d: mw.queries(d.some()),
    "queries by token": lambda d: mw.queries(d.holes()),
    "tree": lambda d: mw.tree(d.parents()),
    "tree shuffled": lambda d: mw.tree(d.parents(shuffled=True)),
    "tree per batch": lambda d: mw.tree([d.parents() for _ in range(d.batch)]),
    "graph": graph,
    "image": image,
    "blocks": Draw.blocks,
    "dense": lambda d: mw.dense(d.numbers(0, 2, (d.n, d.n))),
    "where": lambda d: mw.where(lambda b, h, q, k: (q * 7 + k * 3) % 5 != 0),
    "by_head": lambda d: mw.by_head([d.atom() for _ in range(d.number(2, 5))]),
    "by_batch": lambda d: mw.by_batch([d.atom() for _ in range(d.number(2, 5))]),
}  # fmt: skip
RECIPES = {
    "bert": lambda d: R.bert(d.numbers(0, 5, (d.batch, d.n))),
    "gpt": lambda d: R.gpt(d.numbers(0, 5, (d.batch, d.n))),
    "translation encoder": lambda d: R.translation(d.left() * 7, d.left() * 5).encoder,
    "translation decoder": lambda d: R.translation(d.left() * 7, d.left() * 5).decoder,
    "prefix_lm": lambda d: R.prefix_lm(d.lengths()),
    "packed": lambda d: R.packed(lengths=d.rests(d.n)),
    "packed ids": lambda d: R.packed(ids=d.ids()),
    "shared_prefix": shared_prefix,
    "sliding": lambda d: R.sliding(d.number(1, d.n + 1)),
    "sinks": lambda d: R.sinks(d.number(1, d.n), sinks=d.number(1, 5)),
    "longformer": lambda d: R.longformer(d.number(0, d.n // 2), d.some(3)),
    "bigbird": bigbird,
    "strided": lambda d: R.sparse_transformer(d.number(2, 9)),
    "fixed": lambda d: R.sparse_transformer(d.number(2, 9), "fixed", length=d.n, summary=d.number(1, 3)),
    "chunked": lambda d: R.chunked(d.number(2, d.n)),
    "local_global": lambda d: R.local_global(6, size=d.number(1, d.n))[d.number(0, 6)],
    "natten": lambda d: R.natten(*d.sides(), 2 * d.number(0, 3) + 1),
    "image_text": lambda d: R.image_text(d.ids(3)),
    "medusa": medusa,
    "block_diffusion": block_diffusion,
}  # fmt: skip
COMPOSED = {
    "causal & padding": lambda d: mw.causal() & padded(d),
    "causal & padding & padding.T": lambda d: (lambda p: mw.causal() & p & p.T)(padded(d)),
    "window & documents": lambda d: d.around(9) & mw.documents(lengths=[d.rest(d.n)]),
    "causal & documents & window": lambda d: mw.window(d.number(1, 9)) & mw.documents(ids=d.ids()),
    "causal | prefix": lambda d: mw.causal() | mw.prefix(d.number(1, d.n)),
    "window | keys | queries": lambda d: d.around() | mw.keys(d.some()) | mw.queries(d.some()),
    "causal & chunks & padding": lambda d: mw.causal() & mw.chunks(d.number(2, 9)) & padded(d),
    "causal & padding & (window | keys)": lambda d: mw.causal() & padded(d) & (d.around() | d.keys()),
    "negated": lambda d: ~d.atom(),
    "minus": lambda d: mw.causal() - mw.keys(d.some(3)),
    "not documents": lambda d: ~mw.documents(lengths=[d.rest(d.n)]),
    "tree.T": lambda d: mw.tree(d.parents()).T,
    "(window | keys).T": lambda d: (mw.window(d.number(0, 9)) | mw.keys(d.some())).T,
    "by_head & padding": lambda d: mw.by_head([d.atom(), mw.window(2), mw.causal()]) & padded(d),
}  # fmt: skip
# What makes sense for a part of the queries, or for more queries than keys.
ANY_FRAME = (
    "everything", "nothing", "causal", "window", "window back", "window no limit", "padding lengths",
    "padding left", "padding holes", "chunks", "stride", "keys", "keys by token", "by_head",
    "bert", "gpt", "prefix_lm", "sliding", "sinks", "chunked", "strided", "causal & padding",
)  # fmt: skip
LAST_QUERIES = (
    "documents lengths", "documents ids", "documents torn", "tree", "queries", "image", "packed",
    "packed ids", "medusa", "natten", "image_text", "causal & documents & window", "longformer",
)  # fmt: skip
KINDS = {**ATOMS, **RECIPES, **COMPOSED}


def round_trips() -> list[tuple[str, Mask, mw.BoundMask, str]]:
    trips = []
    for number, (kind, make) in enumerate(KINDS.items()):
        for turn in range(ROUNDS):
            d = Draw(1000 * number + turn)
            mask = make(d)
            q_len, q_start = d.n, None
            if turn % 2 and kind in ANY_FRAME + LAST_QUERIES:
                q_len = d.number(2, d.n)
                q_start = [None, 0][d.number(0, 2)] if kind in ANY_FRAME else None
            elif turn % 3 == 2 and kind in ANY_FRAME:
                q_len = d.n + d.number(1, 9)
            batch = d.batch if kind == "where" else None
            trips.append(
                (
                    kind,
                    mask,
                    mask.on(q_len, d.n, batch, q_start=q_start),
                    CONVENTIONS[(turn + number) % len(CONVENTIONS)],
                )
            )
    return trips


def test_round_trips() -> None:
    good: dict[str, list[bool]] = defaultdict(list)
    longer: list[str] = []
    for kind, mask, bound, convention in round_trips():
        cells = bound.dense()
        array, polarity = encode(cells, convention)
        found = recognize(array, polarity=polarity, q_start=bound.frame.q_start)
        check_exact(found, cells)
        assert not found.ambiguous
        if kind != "where":
            good[kind].append(len(repr(found.mask)) <= len(repr(mask)))
            if not good[kind][-1]:
                longer.append(f"{kind}: {mask!r:.150} -> {found.mask!r:.150} on {bound.frame}")
    table = "\n".join(
        f"{kind:36}{np.mean(hits):6.0%} of {len(hits)}" for kind, hits in good.items()
    )
    shares = [hit for hits in good.values() for hit in hits]
    assert np.mean(shares) >= SHARE, "\n".join([table, *longer])
    low = {kind for kind, hits in good.items() if np.mean(hits) < FLOOR}
    assert low <= LONGER_ON_PURPOSE, "\n".join([table, *longer])
