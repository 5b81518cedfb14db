"""The layers of the models here as ONNX operators, each a few lines beside its twin in PyTorch."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from maskwright.models.attention import Head, Heads, MultiHeadAttention

if TYPE_CHECKING:
    from torch import nn

    from maskwright.models.blocks import Block
    from maskwright.models.onnx_graph import Graph

HIDDEN: Final = np.finfo(np.float32).min


class Memory(NamedTuple):
    """What a block looks at besides its own tokens: (B, S, C), and who sees which of it."""

    tokens: str
    seen: str


def linear(graph: Graph, layer: nn.Linear, x: str) -> str:
    """(…, in) → (…, out)."""
    out = graph.op("MatMul", x, turned(graph, layer.weight))
    return out if layer.bias is None else graph.op("Add", out, graph.weight(layer.bias))


def turned(graph: Graph, weight: nn.Parameter) -> str:
    """A matrix turned around; the file holds it as the model does, once."""
    return graph.op("Transpose", graph.weight(weight), perm=[1, 0])


def norm(graph: Graph, layer: nn.LayerNorm, x: str) -> str:
    """Each token by itself."""
    scale, shift = graph.weight(layer.weight), graph.weight(layer.bias)
    return graph.op("LayerNormalization", x, scale, shift, axis=-1, epsilon=layer.eps)


def embed(graph: Graph, words: nn.Embedding, places: nn.Embedding, ids: str, at: str) -> str:
    """Ids (B, T) at positions (T,) → (B, T, C). A position beyond the context has no row to take."""
    named = graph.op("Gather", graph.weight(words.weight), ids)
    return graph.op("Add", named, graph.op("Gather", graph.weight(places.weight), at))


def block(graph: Graph, layer: Block, x: str, seen: str, memory: Memory | None = None) -> str:
    """Look at others, at a memory if there is one, then think; each adds to what is there."""
    x = graph.op("Add", x, attend(graph, layer.attend, norm(graph, layer.norm_attend, x), seen))
    if memory is not None:
        asked = norm(graph, layer.norm_cross, x)
        x = graph.op("Add", x, attend(graph, layer.cross, asked, memory.seen, memory.tokens))
    hidden = linear(graph, layer.widen, norm(graph, layer.norm_think, x))
    hidden = graph.op("Gelu", hidden, approximate="tanh")
    return graph.op("Add", x, linear(graph, layer.narrow, hidden))


def attend(
    graph: Graph,
    layer: Head | Heads | MultiHeadAttention,
    x: str,
    seen: str,
    memory: str | None = None,
) -> str:
    """Softmax of the scores that are seen; a row that sees nothing is 0: (B, T, C) → (B, T, C)."""
    op = graph.op
    if isinstance(layer, Heads):
        layer = _joined(layer)
    heads = 1 if isinstance(layer, Head) else layer.count
    width = layer.query.out_features
    size = width // heads
    source = x if memory is None else memory

    def split(side: nn.Linear, tokens: str, order: list[int]) -> str:
        return op(
            "Transpose",
            op("Reshape", linear(graph, side, tokens), [0, 0, heads, size]),  # 0 keeps the axis
            perm=order,
        )

    q = split(layer.query, x, [0, 2, 1, 3])  # (B, H, T, size)
    k = split(layer.key, source, [0, 2, 3, 1])  # (B, H, size, S)
    v = split(layer.value, source, [0, 2, 1, 3])  # (B, H, S, size)
    scores = op("Mul", op("MatMul", q, k), np.float32(1 / math.sqrt(size)))  # (B, H, T, S)
    weights = op("Softmax", op("Where", seen, scores, HIDDEN), axis=-1)
    found = op("MatMul", op("Where", seen, weights, np.float32(0)), v)  # (B, H, T, size)
    found = op("Reshape", op("Transpose", found, perm=[0, 2, 1, 3]), [0, 0, width])
    return found if isinstance(layer, Head) else linear(graph, layer.mix, found)


def _joined(heads: Heads) -> MultiHeadAttention:
    """The textbook's heads, computed at once."""
    width = heads.mix.out_features
    joined = MultiHeadAttention(width, len(heads.heads), bias=False)
    joined.take_from(heads)
    return joined
