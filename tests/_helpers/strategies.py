"""Hypothesis strategies: a frame first, then any composition of atoms that fits it."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

import maskwright as mw
from maskwright import Frame, Mask

# Sizes on both sides of tile edges, and the smallest ones, come up often.
SIZES = st.one_of(
    st.integers(0, 9), st.sampled_from([0, 1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 70])
)
FEW = st.sampled_from([1, 1, 2, 3])


@st.composite
def frames(draw: st.DrawFn) -> Frame:
    q_len = draw(SIZES)
    kv_len = draw(st.one_of(st.just(q_len), SIZES))
    batch = draw(FEW)
    heads = draw(st.one_of(st.just(batch), FEW))
    aligned = [kv_len - q_len, 0]
    q_start = draw(st.one_of(st.sampled_from(aligned), st.integers(-5, kv_len + 5)))
    if q_len * kv_len > 1200:  # the oracle is slow: large frames get few planes
        batch, heads = min(batch, 2), 1
    return Frame(q_len, kv_len, batch, heads, q_start)


def bind(mask: Mask, frame: Frame) -> mw.BoundMask:
    return mask.on(frame.q_len, frame.kv_len, frame.batch, frame.heads, frame.q_start)


@st.composite
def masks(draw: st.DrawFn, frame: Frame, depth: int = 6, code: bool = True) -> Mask:
    """Any composition, at most `depth` deep. `code=False` leaves out what text can't hold."""
    return _compose(draw, frame, depth, code)


def _compose(draw: st.DrawFn, frame: Frame, depth: int, code: bool) -> Mask:
    operators = ["and", "or", "not", "transpose", "by_head", "by_batch"]
    kind = draw(st.sampled_from(operators + ["minus"] * (depth > 2))) if depth > 1 else "atom"
    if kind == "atom":
        return draw(atom(frame, draw(st.sampled_from(fitting(frame, code)))))

    def deep(on: Frame = frame) -> Mask:
        return _compose(draw, on, depth - 1, code)

    def shallow(spent: int = 1) -> Mask:
        return _compose(draw, frame, draw(st.integers(1, depth - spent)), code)

    if kind == "and":
        return deep() & shallow()
    if kind == "or":
        return shallow() | deep()
    if kind == "minus":  # a & ~b
        return deep() - shallow(2)
    if kind == "not":
        return ~deep()
    if kind == "transpose":
        return deep(on=frame.transposed).T
    members = [shallow() for _ in range(frame.heads if kind == "by_head" else frame.batch)]
    return mw.by_head(members) if kind == "by_head" else mw.by_batch(members)


ANYWHERE = (
    "everything", "nothing", "causal", "window", "prefix", "chunks", "stride", "keys",
    "queries", "padding", "graph", "dense", "blocks",
)  # fmt: skip


def fitting(frame: Frame, code: bool) -> list[str]:
    """The kinds of atoms whose data can fit this frame."""
    kinds = [*ANYWHERE]
    if code:
        kinds.append("where")
    if frame.k_start >= 0:
        kinds += ["padding by token", "keys by token"]
    inside = (not frame.q_len or frame.q_start >= 0) and (not frame.kv_len or frame.k_start >= 0)
    if inside and frame.tokens <= 80:
        kinds += ["documents", "tree", "image"]
    if frame.q_start >= 0:
        kinds.append("queries by token")
    return kinds


def atom(frame: Frame, kind: str) -> st.SearchStrategy[Mask]:
    reach = st.one_of(st.none(), st.integers(0, 40), st.just(10**12))
    positions = st.lists(st.integers(0, 80), max_size=6, unique=True)
    if kind == "window":
        return st.builds(mw.window, reach, reach)
    if kind == "prefix":
        return per_sequence(st.integers(0, 90), frame.batch).map(mw.prefix)
    if kind == "padding":
        lengths = per_sequence(st.integers(0, max(frame.k_stop, 0)), frame.batch)
        return lengths.map(lambda n: mw.padding(lengths=n))
    if kind == "chunks":
        return st.builds(mw.chunks, st.integers(1, 20))
    if kind == "stride":
        steps = st.integers(1, 9).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n - 1)))
        return steps.map(lambda pair: mw.stride(*pair))
    if kind == "graph":
        return graphs(frame)
    if kind == "keys by token":
        return chosen(frame.k_stop, frame.batch).map(mw.keys)
    if kind == "queries by token":
        return chosen(frame.q_stop, frame.batch).map(mw.queries)
    if kind in ("keys", "queries"):
        return positions.map(getattr(mw, kind))
    if kind in ("everything", "nothing", "causal"):
        return st.just(getattr(mw, kind)())
    builders = {
        "padding by token": padding_by_token,
        "documents": documents,
        "tree": trees,
        "image": images,
        "dense": dense_masks,
        "blocks": block_masks,
        "where": predicates,
    }
    return builders[kind](frame)


def graphs(frame: Frame) -> st.SearchStrategy[Mask]:
    nodes = st.integers(0, max(frame.tokens - 1, 0))
    edges = st.lists(st.tuples(nodes, nodes), max_size=12) if frame.tokens else st.just([])
    return st.builds(mw.graph, edges, directed=st.booleans(), loops=st.booleans())


def per_sequence(values: st.SearchStrategy[int], batch: int) -> st.SearchStrategy[list[int]]:
    return st.sampled_from([1, batch]).flatmap(lambda n: st.lists(values, min_size=n, max_size=n))


def arrays(shape: tuple[int, ...], low: int, high: int) -> st.SearchStrategy[np.ndarray]:
    """Small random arrays from one drawn seed: fast to draw, fine to shrink by the shape."""
    return st.integers(0, 2**32 - 1).map(
        lambda seed: np.random.default_rng(seed).integers(low, high + 1, shape)
    )


def runs(tokens: int, batch: int, values: int) -> st.SearchStrategy[np.ndarray]:
    """(batch or 1, tokens): runs of equal values of any length, or one value per token."""

    def build(seed: int, rows: int, mean: int) -> np.ndarray:
        rng = np.random.default_rng(seed)
        change = rng.random((rows, tokens)) < 1 / mean
        number = np.cumsum(change, axis=1)
        table = rng.integers(-1, values, (rows, tokens + 1))
        return np.take_along_axis(table, number, axis=1)

    return st.builds(
        build, st.integers(0, 2**32 - 1), st.sampled_from([1, batch]), st.sampled_from([1, 2, 6])
    )


def padding_by_token(frame: Frame) -> st.SearchStrategy[Mask]:
    tokens = runs(frame.k_stop, frame.batch, 2)
    by_ids = tokens.map(lambda ids: mw.padding(ids=ids, pad_id=0))
    return st.one_of(by_ids, tokens.map(lambda ids: mw.padding(keep=ids > 0)))


def documents(frame: Frame) -> st.SearchStrategy[Mask]:
    by_ids = runs(frame.tokens, frame.batch, 4).map(lambda ids: mw.documents(ids=ids))

    def fitted(rows: list[list[int]]) -> Mask:
        for row in rows:
            while sum(row) > frame.tokens:
                row.pop()
        return mw.documents(lengths=rows)

    row = st.lists(st.integers(0, 20), max_size=5)
    by_lengths = st.sampled_from([1, frame.batch]).flatmap(
        lambda n: st.lists(row, min_size=n, max_size=n)
    )
    return st.one_of(by_ids, by_lengths.map(fitted))


def trees(frame: Frame) -> st.SearchStrategy[Mask]:
    def build(seed: int, rows: int, chain: float, shuffled: bool) -> Mask:
        rng = np.random.default_rng(seed)
        tokens = frame.tokens
        parents = np.full((rows, tokens), -1)
        for b in range(rows):
            for p in range(1, tokens):
                parents[b, p] = p - 1 if rng.random() < chain else rng.integers(-1, p)
            if shuffled:  # a parent may come after its children
                place = rng.permutation(tokens)
                moved = np.full(tokens, -1)
                for p in range(tokens):
                    moved[place[p]] = -1 if parents[b, p] < 0 else place[parents[b, p]]
                parents[b] = moved
        return mw.tree(parents)

    return st.builds(
        build,
        st.integers(0, 2**32 - 1),
        st.sampled_from([1, frame.batch]),
        st.sampled_from([0.0, 0.5, 0.9]),
        st.booleans(),
    )


def images(frame: Frame) -> st.SearchStrategy[Mask]:
    pixels = frame.tokens
    widths = [w for w in range(1, pixels + 1) if pixels % w == 0] or [1]
    return st.builds(
        lambda width, radius, raster, border: mw.image(
            pixels // width, width, radius, raster=raster, border=border
        ),
        st.sampled_from(widths),
        st.one_of(st.integers(0, 5), st.just(10**15)),
        st.booleans(),
        st.sampled_from(["cut", "shift"]),
    )


def chosen(tokens: int, batch: int) -> st.SearchStrategy[Any]:
    rows = st.sampled_from([1, batch])
    return rows.flatmap(lambda n: arrays((n, tokens), 0, 1)).map(lambda flags: flags > 0)


def dense_masks(frame: Frame) -> st.SearchStrategy[Mask]:
    size = (frame.q_len, frame.kv_len)
    shapes = [size, (frame.batch, *size), (1, 1, *size), (frame.batch, frame.heads, *size)]
    shapes += [(1, frame.heads, *size), (1, frame.kv_len), (frame.q_len, 1)]
    shapes += [(frame.batch, 1, 1, frame.kv_len), (1, frame.heads, 1, 1)]
    return st.sampled_from(shapes).flatmap(lambda s: arrays(s, 0, 1)).map(mw.dense)


def block_masks(frame: Frame) -> st.SearchStrategy[Mask]:
    def sized(tall: int, broad: int) -> st.SearchStrategy[Mask]:
        grid = (-(-frame.q_len // tall), -(-frame.kv_len // broad))
        shapes = [grid, (frame.batch, frame.heads, *grid)]
        return (
            st.sampled_from(shapes)
            .flatmap(lambda s: arrays(s, 0, 1))
            .map(lambda lit: mw.blocks(lit, size=(tall, broad)))
        )

    sides = st.integers(1, 20)
    return st.tuples(sides, sides).flatmap(lambda pair: sized(*pair))


def predicates(frame: Frame) -> st.SearchStrategy[Mask]:
    return st.sampled_from(
        [
            mw.where(lambda b, h, q, k: (q * 7 + k * 3) % 5 != 0),
            mw.where(lambda b, h, q, k: q - k > h),
            mw.where(lambda b, h, q, k: (q + k) % (b + 2) == 0),
            mw.where(lambda b, h, q, k: (q >= k) & (k % 3 != b)),
        ]
    )


@st.composite
def cases(draw: st.DrawFn, code: bool = True) -> tuple[Mask, Frame]:
    """A frame, and a mask that fits it."""
    frame = draw(frames())
    return draw(masks(frame, depth=draw(st.integers(1, 6)), code=code)), frame


@st.composite
def bound_masks(draw: st.DrawFn) -> mw.BoundMask:
    """Any mask, on a frame that it fits."""
    return bind(*draw(cases()))
