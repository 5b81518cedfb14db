"""Hypothesis strategies: a frame first, then any composition of biases that fits it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from hypothesis import strategies as st

import maskwright as mw
from maskwright import Frame

if TYPE_CHECKING:
    from maskwright.bias import Bias

SIZES = st.one_of(st.integers(0, 9), st.sampled_from([0, 1, 2, 15, 16, 17]))
FACTORS = st.sampled_from([-1.0, 0.0, 0.5, -2.25, 3.0])


@st.composite
def frames(draw: st.DrawFn) -> Frame:
    q_len = draw(SIZES)
    kv_len = draw(st.one_of(st.just(q_len), SIZES))
    batch = draw(st.integers(1, 3))
    heads = draw(st.one_of(st.just(batch), st.integers(1, 6)))
    q_start = draw(st.one_of(st.sampled_from([kv_len - q_len, 0]), st.integers(-5, kv_len + 5)))
    return Frame(q_len, kv_len, batch, heads, q_start)


@st.composite
def biases(draw: st.DrawFn, frame: Frame, depth: int = 3) -> Bias:
    """Any composition, at most `depth` deep."""
    kind = draw(st.sampled_from(["atom", "sum", "difference", "multiple", "negative"]))
    if depth == 1 or kind == "atom":
        return draw(atoms(frame))
    term = draw(biases(frame, depth - 1))
    if kind in ("sum", "difference"):
        other = draw(biases(frame, depth - 1))
        return term + other if kind == "sum" else term - other
    return -term if kind == "negative" else draw(FACTORS) * term


def numbers(shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    """float32 numbers: exact in float64, in text and in JSON."""
    kinds = st.sampled_from([np.float32, np.float64])
    return st.builds(
        lambda seed, kind: np.random.default_rng(seed).normal(size=shape).astype(kind),
        st.integers(0, 2**32 - 1),
        kinds,
    )


@st.composite
def atoms(draw: st.DrawFn, frame: Frame) -> Bias:
    kinds = ["alibi", "slopes", "t5", "relative", "per_key", "tensor"]
    inside = frame.q_start >= 0 or not frame.q_len
    kind = draw(st.sampled_from(kinds + ["grid"] * inside))
    heads = draw(st.sampled_from([1, frame.heads]))
    batch = draw(st.sampled_from([1, frame.batch]))
    if kind == "alibi":
        variant = draw(st.sampled_from(["bloom", "geometric"]))
        return mw.bias.alibi(heads, variant=variant, max_bias=draw(st.sampled_from([8.0, 4.0])))
    if kind == "slopes":
        return mw.bias.alibi(draw(numbers((heads,))))
    if kind == "t5":
        table = draw(numbers((draw(st.sampled_from([4, 7, 8, 32])), heads)))
        longest = draw(st.sampled_from([17, 20, 128]))
        return mw.bias.t5(table, bidirectional=draw(st.booleans()), max_distance=longest)
    if kind == "relative":
        return mw.bias.relative(draw(numbers((heads, 2 * draw(st.integers(0, 6)) + 1))))
    if kind == "grid":
        tokens = max(frame.tokens, 1)
        width = draw(st.integers(1, tokens))
        height = -(-tokens // width)
        table = draw(numbers(((2 * height - 1) * (2 * width - 1), heads)))
        return mw.bias.grid(table, height, width)
    if kind == "per_key":
        shapes = [(frame.kv_len,), (batch, frame.kv_len), (batch, heads, frame.kv_len)]
        return mw.bias.per_key(draw(numbers(draw(st.sampled_from(shapes)))))
    rows, keys = (draw(st.sampled_from([1, n])) for n in (frame.q_len, frame.kv_len))
    shape = (batch, heads, rows, keys)
    return mw.bias.tensor(draw(numbers(shape[draw(st.integers(0, 4)) :])))


@st.composite
def cases(draw: st.DrawFn) -> tuple[Bias, Frame]:
    """A frame, and a bias that fits it."""
    frame = draw(frames())
    return draw(biases(frame)), frame
