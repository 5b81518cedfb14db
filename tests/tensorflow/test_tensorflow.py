"""tensorflow: the lowered mask in every way that people use one, against the reference."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, note, settings

import maskwright as mw
from maskwright import Frame, Mask
from maskwright.core.oracle import truth
from tests._helpers.reference_attention import attention, attention_weights, random_qkv
from tests._helpers.strategies import bind, cases

tf = pytest.importorskip("tensorflow")

WIDTH = 4


def cells(mask: Mask, frame: Frame) -> np.ndarray:
    shape = (frame.batch, frame.heads, frame.q_len, frame.kv_len)
    return np.array(truth(mask, frame), np.bool_).reshape(shape)


def inputs(allowed: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    q, k, v = random_qkv(allowed.shape, WIDTH)
    return q, k, v, q @ np.swapaxes(k, 2, 3) / np.sqrt(WIDTH)


@settings(max_examples=150)
@given(cases())
def test_bools_and_floats_give_references_output(case: tuple[Mask, Frame]) -> None:
    mask, frame = case
    note(f"{mask!r}\n{frame}")
    right = cells(mask, frame)
    q, k, v, scores = inputs(right)
    bools = mw.lower(bind(mask, frame), "tensorflow")
    floats = mw.lower(bind(mask, frame), "tensorflow", dtype="float64")
    assert bools.dtype == tf.bool
    assert floats.dtype == tf.float64
    assert np.array_equal(np.broadcast_to(bools.numpy(), right.shape), right)
    assert np.array_equal(np.broadcast_to(floats.numpy() == 0, right.shape), right)
    hidden = tf.where(bools, tf.constant(scores), tf.constant(-np.inf, tf.float64))
    for masked in (hidden, scores + floats):
        weights = tf.nn.softmax(masked, axis=-1)
        weights = tf.where(tf.math.is_nan(weights), tf.zeros_like(weights), weights)
        assert np.allclose(weights @ v, attention(q, k, v, right), atol=1e-12)


@cache
def layer_of(heads: int, dropout: float) -> Any:
    """tf.keras.layers.MultiHeadAttention whose projections change nothing."""
    size = heads * WIDTH
    layer = tf.keras.layers.MultiHeadAttention(heads, WIDTH, use_bias=False, dropout=dropout)
    layer.build((None, None, size), (None, None, size))
    same = np.eye(size).reshape(size, heads, WIDTH)
    layer.set_weights([same, same, same, np.eye(size).reshape(heads, WIDTH, size)])
    return layer


@pytest.mark.filterwarnings("ignore:Exception encountered when calling Softmax:UserWarning")
@pytest.mark.filterwarnings("ignore:You are using a softmax over axis 3:UserWarning")
@settings(max_examples=60)
@given(cases())
def test_keras_layer_gives_references_output(case: tuple[Mask, Frame]) -> None:
    mask, frame = case
    note(f"{mask!r}\n{frame}")
    right = cells(mask, frame)
    b, h, t, _ = right.shape
    q, k, v, _ = inputs(right)
    packed = [np.moveaxis(x, 1, 2).reshape(b, -1, h * WIDTH).astype("float32") for x in (q, v, k)]
    lowered = mw.lower(bind(mask, frame), "tensorflow")
    seen = right.any(axis=3)  # for other rows the layer gives what it gives
    for dropout, scores in ((0.0, False), (0.0, True), (0.5, False)):
        out = layer_of(h, dropout)(*packed, attention_mask=lowered, return_attention_scores=scores)
        out = np.asarray(out[0] if scores else out).reshape(b, t, h, WIDTH)
        assert np.allclose(np.moveaxis(out, 1, 2)[seen], attention(q, k, v, right)[seen], atol=2e-5)


@settings(max_examples=60)
@given(cases())
def test_three_ways_to_hide_give_same_weights(case: tuple[Mask, Frame]) -> None:
    """masked_fill with -inf, tf.where with -1e9, and a sum with -1e9: equal where a row sees."""
    mask, frame = case
    right = cells(mask, frame)
    _, _, _, scores = inputs(right)
    lowered = np.broadcast_to(mw.lower(bind(mask, frame), "tensorflow").numpy(), right.shape)
    filled = np.where(~lowered, -np.inf, scores)  # torch: scores.masked_fill(~mask, -inf)
    ones = tf.cast(lowered, tf.float64)
    chosen = tf.where(ones == 0, tf.constant(-1e9, tf.float64), tf.constant(scores))
    summed = scores + (1 - ones.numpy()) * -1e9
    wanted = attention_weights(scores, right)
    seen = right.any(axis=3)
    for masked in (filled, chosen, summed):
        weights = tf.nn.softmax(tf.constant(masked), axis=-1).numpy()
        assert np.allclose(weights[seen], wanted[seen], atol=1e-12)


def test_row_that_is_fully_masked_is_uniform_with_finite_fill_and_nan_with_minus_infinity() -> None:
    mask = mw.causal() & ~mw.keys([0])  # row 0 is fully masked
    scores = tf.zeros((1, 1, 3, 3), tf.float32)
    for fill, value in ((-1e9, 1 / 3), ("min", 1 / 3), ("-inf", np.nan)):
        bias = mw.lower(mask, "tensorflow", q_len=3, dtype="float32", fill=fill)
        row = tf.nn.softmax(scores + bias, axis=-1)[0, 0, 0].numpy()
        assert np.allclose(row, value, equal_nan=True)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", tf.float32])
@pytest.mark.parametrize("fill", ["-inf", "min"])
def test_floats_are_of_dtype(dtype: Any, fill: str) -> None:
    bias = mw.lower(mw.causal(), "tensorflow", q_len=2, dtype=dtype, fill=fill)
    assert bias.dtype == tf.as_dtype(dtype)
    least = -np.inf if fill == "-inf" else float(tf.as_dtype(dtype).min)
    assert tf.cast(bias, tf.float64).numpy().tolist() == [[[[0, least], [0, 0]]]]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"fill": -1e9, "dtype": "float16"}, "does not fit float16"),
        ({"fill": -1e9}, "fill applies to float masks"),
        ({"dtype": "int32"}, "floating-point dtype"),
        ({"dtype": "float31"}, "dtype"),
        ({"colour": "red"}, "has no option colour"),
        ({"device": "disc"}, "device"),
    ],
    ids=repr,
)
def test_what_does_not_fit_is_rejected(options: dict[str, Any], says: str) -> None:
    with pytest.raises(mw.ArgumentError, match=says):
        mw.lower(mw.causal(), "tensorflow", q_len=4, **options)


@pytest.mark.parametrize("options", [{}, {"dtype": "float32"}, {"dtype": "float16", "fill": "min"}])
def test_snippet_gives_references_weights(options: dict[str, Any]) -> None:
    mask = mw.causal() & mw.padding(lengths=[3, 2])
    right = np.broadcast_to(mask.on(3).dense(), (2, 1, 3, 3))
    scores = (
        np.random.default_rng(0)
        .standard_normal(right.shape)
        .astype(options.get("dtype", "float32"))
    )
    names: dict[str, Any] = {"scores": tf.constant(scores)}
    exec(mw.explain_lowering(mask, "tensorflow", **options), names)
    weights = tf.nn.softmax(tf.cast(names["scores"], tf.float64), axis=-1).numpy()
    assert np.allclose(weights, attention_weights(scores, right), atol=1e-3)


def test_empty_row_is_rejected_on_request() -> None:
    for wish in ("error", "zero"):
        with pytest.raises(mw.Unsupported, match="tensorflow"):
            mw.lower(mw.nothing(), "tensorflow", q_len=2, empty_rows=wish)


def test_sequence_mask_is_the_padding_mask() -> None:
    """Some texts use the name for the causal mask."""
    padding = tf.sequence_mask([3, 4], 5).numpy()  # (batch, keys)
    assert np.array_equal(padding, mw.padding(lengths=[3, 4]).on(1, kv_len=5).dense()[:, 0, 0])
