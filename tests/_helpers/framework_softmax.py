"""The weights of attention as each framework's users write them.

What may enter: one short function for each way, of queries and keys (B, T, d), one head, and a mask;
each gives the weights (B, T, T) as numpy. Frameworks are imported in the functions: not all of them
are in one environment. Run as a module, it reads a case as JSON and answers with TensorFlow's.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import maskwright as mw
from tests._helpers.naive_softmax import Array, add, softmax

Way = Callable[[Array, Array, mw.Mask], Array]


def by_hand(q: Array, k: Array, mask: mw.Mask) -> Array:
    """scores + (1 - mask) * -1e9"""
    scores = q @ np.swapaxes(k, 1, 2) / np.sqrt(q.shape[2])
    return softmax(add(scores, mw.lower(mask, "numpy", q_len=q.shape[1])[:, 0], -1e9))


def masked_fill(q: Array, k: Array, mask: mw.Mask) -> Array:
    """scores.masked_fill(mask == 0, -1e9)"""
    import torch

    scores = torch.from_numpy(q @ np.swapaxes(k, 1, 2) / np.sqrt(q.shape[2]))
    keep = mw.lower(mask, "torch.bool", q_len=q.shape[1])[:, 0]
    return scores.masked_fill(keep == 0, -1e9).softmax(-1).numpy()


def torch_function(q: Array, k: Array, mask: mw.Mask) -> Array:
    """F.scaled_dot_product_attention, with values that show the weights."""
    import torch

    given = mw.lower(mask, "torch.sdpa", q_len=q.shape[1])
    size = (q.shape[0], 1, q.shape[1], q.shape[1])
    parts = [torch.from_numpy(x)[:, None] for x in (q, k)]
    shown = torch.eye(q.shape[1], dtype=parts[0].dtype).expand(size)
    found = torch.nn.functional.scaled_dot_product_attention(*parts, shown, **given)
    return found[:, 0].numpy()


def jax_where(q: Array, k: Array, mask: mw.Mask) -> Array:
    """jnp.where(mask, scores, -1e9)"""
    import jax
    import jax.numpy as jnp

    scores = jnp.asarray(q @ np.swapaxes(k, 1, 2) / np.sqrt(q.shape[2]))
    keep = jnp.asarray(mw.lower(mask, "numpy", q_len=q.shape[1])[:, 0])
    return np.asarray(jax.nn.softmax(jnp.where(keep, scores, -1e9), axis=-1))


def jax_function(q: Array, k: Array, mask: mw.Mask) -> Array:
    """jax.nn.dot_product_attention, which wants heads behind tokens."""
    import jax

    batch, tokens, width = q.shape  # the values have this width, too
    shown = np.broadcast_to(
        np.eye(tokens, width, dtype=q.dtype)[:, None], (batch, tokens, 1, width)
    )
    given = mw.lower(mask, "jax", q_len=tokens)
    found = jax.nn.dot_product_attention(q[:, :, None], k[:, :, None], shown, **given)
    return np.asarray(found)[:, :, 0, :tokens]


def keras_layer(q: Array, k: Array, mask: mw.Mask) -> Array:
    """keras.layers.MultiHeadAttention of one head, whose projections change nothing."""
    import keras

    width = q.shape[2]
    layer = keras.layers.MultiHeadAttention(1, width, use_bias=False)
    layer.build((None, None, width), (None, None, width))
    layer.set_weights([np.eye(width).reshape(width, 1, width)] * 3 + [np.eye(width)[None]])
    given = mw.lower(mask, "keras", q_len=q.shape[1])
    _, weights = layer(q, k, k, **given, return_attention_scores=True)
    return np.asarray(weights.detach() if hasattr(weights, "detach") else weights)[:, 0]


def tf_where(q: Array, k: Array, mask: mw.Mask) -> Array:
    """tf.where(mask == 0, -1e9, scores)"""
    import tensorflow as tf

    scores = tf.constant(q @ np.swapaxes(k, 1, 2) / np.sqrt(q.shape[2]))
    keep = tf.cast(mw.lower(mask, "tensorflow", q_len=q.shape[1])[:, 0], scores.dtype)
    return np.asarray(tf.nn.softmax(tf.where(keep == 0, -1e9, scores), axis=-1))


HERE: dict[str, tuple[str, Way]] = {  # a framework, and a way to use it
    "masked_fill": ("torch", masked_fill),
    "SDPA": ("torch", torch_function),
    "jnp.where": ("jax", jax_where),
    "jax.nn": ("jax", jax_function),
    "Keras": ("keras", keras_layer),
}
WITH_TENSORFLOW: dict[str, Way] = {"tf.where": tf_where, "Keras": keras_layer}


def answer(case: dict[str, Any]) -> dict[str, Any]:
    """The weights of a case by all ways of TensorFlow's."""
    q, k = (np.array(case[name], np.float32) for name in "qk")
    mask = mw.parse(case["mask"])
    return {name: way(q, k, mask).tolist() for name, way in WITH_TENSORFLOW.items()}


if __name__ == "__main__":
    print(json.dumps(answer(json.load(sys.stdin))))
