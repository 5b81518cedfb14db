"""Strategies for masks to lower: any composition, and often those that restricted targets support."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

import maskwright as mw
from maskwright import Frame, Mask
from tests._helpers.strategies import atom, cases, frames, masks

# jax and Keras on jax compile for every new shape, so these draw from a few.
SHAPES = [(4, 4, 2, 2), (3, 5, 2, 1), (5, 3, 2, 2), (0, 2, 1, 1)]
FEW_SHAPES = ("jax", "jax.splash", "keras")

USUAL = ("causal", "window", "packed", "padding", "chunks", "prefix", "everything")


@st.composite
def few_frames(draw: st.DrawFn) -> Frame:
    q_len, kv_len, batch, heads = draw(st.sampled_from(SHAPES))
    return Frame(q_len, kv_len, batch, heads, draw(st.sampled_from([kv_len - q_len, 0, 1])))


@st.composite
def frames_with_room(draw: st.DrawFn) -> Frame:
    """At least some queries, keys and heads, so that there is something to differ in."""
    q_len, kv_len = draw(st.integers(4, 9)), draw(st.integers(4, 9))
    return Frame(q_len, kv_len, draw(st.integers(1, 2)), draw(st.integers(2, 3)), kv_len - q_len)


@st.composite
def plain_frames(draw: st.DrawFn) -> Frame:
    """As many queries as keys, mostly one sequence: where restricted targets support most."""
    length = draw(st.integers(2, 8))
    return Frame(length, length, draw(st.sampled_from([1, 1, 2])), draw(st.sampled_from([1, 1, 2])))


@st.composite
def for_target(draw: st.DrawFn, target: str) -> tuple[Mask, Frame]:
    """Any composition; what people use; not quite that; and pieces of that, put side by side."""
    frame = draw(few_frames() if target in FEW_SHAPES else frames())
    kind = draw(st.sampled_from(["usual", "unusual", "pieced", "pieced", "any"]))
    if kind == "pieced":
        if target not in FEW_SHAPES:
            frame = draw(plain_frames())
        return draw(pieced(frame)), frame
    if kind == "usual":
        return draw(usual(frame)), frame
    if kind == "unusual":
        if target not in FEW_SHAPES:
            frame = draw(frames_with_room())
        return draw(unusual(frame)), frame
    if target in FEW_SHAPES:
        return draw(masks(frame, depth=draw(st.integers(1, 4)))), frame
    return draw(cases())


@st.composite
def usual(draw: st.DrawFn, frame: Frame) -> Mask:
    """One to three of the usual masks, all of which must hold."""
    kinds = draw(st.lists(st.sampled_from(USUAL), min_size=1, max_size=3, unique=True))
    terms = [draw(usual_atom(frame, kind)) for kind in kinds]
    mask = terms[0]
    for term in terms[1:]:
        mask = mask & term
    if draw(st.integers(0, 7)) == 0:  # written per head or per sequence, but equal
        by_head = draw(st.booleans())
        return mw.by_head([mask] * frame.heads) if by_head else mw.by_batch([mask] * frame.batch)
    return mask


@st.composite
def unusual(draw: st.DrawFn, frame: Frame) -> Mask:
    """The usual, except that heads differ, or some cells are masked, or more are visible."""
    mask = draw(usual(frame))
    but = draw(st.sampled_from(["heads", "hidden", "more", "striped", "noisy", "noisy"]))
    if but == "heads":
        return mw.by_head([mask, *(draw(usual(frame)) for _ in range(frame.heads - 1))])
    if but == "hidden":
        return mask & ~mw.keys(
            draw(st.lists(st.integers(0, 3), min_size=1, max_size=3, unique=True))
        )
    if but == "more":
        return mask | draw(usual(frame))
    return mask & draw(atom(frame, "stride" if but == "striped" else "dense"))


@st.composite
def pieced(draw: st.DrawFn, frame: Frame) -> Mask:
    """Usual masks that nearly fit together: one cell off, or another one from some row on."""
    mask = draw(usual(frame))
    if not frame.q_len or not frame.kv_len:
        return mask
    how = draw(st.sampled_from(["as it is", "one cell", "rows", "documents", "sequences", "heads"]))
    if how == "one cell":
        row, key = draw(st.integers(0, frame.q_len - 1)), draw(st.integers(0, frame.kv_len - 1))
        cell = np.zeros((frame.q_len, frame.kv_len), np.bool_)
        cell[row, key] = True
        return mask | mw.dense(cell) if draw(st.booleans()) else mask & mw.dense(~cell)
    if how == "rows":
        first = mw.queries(range(max(frame.q_start, 0), frame.q_start + frame.q_len // 2 + 1))
        return (mask & first) | (draw(usual(frame)) - first)
    if how == "documents" and frame.q_start >= 0:
        near = draw(st.sampled_from([mw.causal(), mw.window(1), mw.window(2), mw.window(1, 1)]))
        mask = draw(packed(frame)) & near
        return mask & draw(usual(frame)) if draw(st.integers(0, 3)) == 0 else mask
    if how == "heads":
        return mw.by_head([mask, *(draw(usual(frame)) for _ in range(frame.heads - 1))])
    if how == "sequences":
        return mw.by_batch([mask, *(draw(usual(frame)) for _ in range(frame.batch - 1))])
    return mask


def usual_atom(frame: Frame, kind: str) -> st.SearchStrategy[Mask]:
    inside = not frame.q_len or frame.q_start >= 0
    if kind == "padding" and frame.kv_len:
        lengths = st.lists(st.integers(1, frame.kv_len), min_size=frame.batch, max_size=frame.batch)
        right = lengths.map(lambda each: mw.padding(lengths=each))
        left = lengths.map(
            lambda each: mw.padding(
                keep=np.arange(frame.kv_len) >= frame.kv_len - np.array([each]).T
            )
        )
        return st.one_of(right, left)
    if kind == "packed" and inside and frame.tokens:
        return packed(frame)
    if kind == "window":
        near = st.one_of(st.none(), st.integers(0, 4))
        return st.builds(mw.window, near, near)
    if kind in ("causal", "chunks", "prefix"):
        return atom(frame, kind)
    return st.just(mw.everything())


def packed(frame: Frame) -> st.SearchStrategy[Mask]:
    """Documents end to end in every sequence, the last one perhaps of padding."""

    def build(cuts: list[list[int]], padded: bool) -> Mask:
        place = np.arange(frame.tokens)
        ids = np.stack([np.searchsorted(sorted(row), place, side="right") for row in cuts])
        if padded:
            ids[ids == ids.max(axis=1, keepdims=True)] = -1
        return mw.documents(ids=ids)

    row = st.lists(st.integers(1, max(frame.tokens - 1, 1)), max_size=3)
    rows = st.sampled_from([1, frame.batch]).flatmap(
        lambda n: st.lists(row, min_size=n, max_size=n)
    )
    return st.builds(build, rows, st.sampled_from([False, False, True]))


@st.composite
def encoder_decoder(draw: st.DrawFn) -> tuple[tuple[Mask, Frame], ...]:
    """Masks of an encoder, of a decoder, and of cross-attention."""
    source, target = draw(st.integers(0, 6)), draw(st.integers(0, 6))
    batch, heads = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    sizes = ((source, source), (target, target), (target, source))
    parts = []
    for q_len, kv_len in sizes:
        frame = Frame(q_len, kv_len, batch, heads, draw(st.sampled_from([kv_len - q_len, 0])))
        common = draw(st.sampled_from(["usual", "usual", "padding", "free"]))
        if common == "free":
            mask = draw(masks(frame, depth=draw(st.integers(1, 3))))
        elif common == "padding":
            mask = draw(usual_atom(frame, "padding"))
        else:
            mask = draw(usual(frame))
        parts.append((mask, frame))
    return tuple(parts)
