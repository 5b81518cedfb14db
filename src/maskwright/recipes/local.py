"""Sparse attention over long texts: windows, sinks, chunks, strides, and global tokens."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from maskwright.core.atoms import blocks, causal, chunks, keys, queries, stride, window
from maskwright.core.validate import parse_int, read_choice
from maskwright.errors import ArgumentError, SizeError

if TYPE_CHECKING:
    from maskwright.core.expr import Mask

MOST_BLOCKS: Final = 2**14  # along one side of a map


def sliding(size: int) -> Mask:
    """The last `size` tokens, the query itself among them.

    Jiang et al. 2023, "Mistral 7B", arXiv 2310.06825.

    >>> import maskwright as mw
    >>> mw.recipes.sliding(4096)
    window(back=4095)
    """
    return window(back=parse_int(size, "sliding: size", minimum=1) - 1)


def sinks(size: int, sinks: int = 4) -> Mask:
    """The last `size` tokens and the first few, on which attention likes to rest.

    Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks" (StreamingLLM),
    arXiv 2309.17453.

    >>> import maskwright as mw
    >>> mw.recipes.sinks(2, sinks=1).on(4).spans.row(3)
    [(0, 1), (2, 4)]
    """
    first = range(parse_int(sinks, "sinks: sinks", minimum=0))
    return sliding(size) | (keys(first) & causal())


def longformer(each_side: int, global_tokens: Any) -> Mask:
    """A window on both sides, and global tokens that see all and are seen by all.

    Beltagy et al. 2020, "Longformer: The Long-Document Transformer", arXiv 2004.05150.

    >>> import maskwright as mw
    >>> mw.recipes.longformer(1, [0]).on(4).dense().astype(int)[0, 0].tolist()
    [[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 1], [1, 0, 1, 1]]
    """
    return window(back=each_side, ahead=each_side) | keys(global_tokens) | queries(global_tokens)


def bigbird(length: int, block: int = 64, random_blocks: int = 3, seed: int = 0) -> Mask:
    """Blocks: the neighbours on both sides, the first and the last for all, and some at random.

    Zaheer et al. 2020, "Big Bird: Transformers for Longer Sequences", arXiv 2007.14062.

    >>> import maskwright as mw
    >>> mw.recipes.bigbird(64, block=8, random_blocks=1).on(64).tiles(8).counts()
    {'empty': 14, 'partial': 0, 'full': 50}
    """
    size = parse_int(block, "bigbird: block", minimum=1)
    count = math.ceil(parse_int(length, "bigbird: length", minimum=0) / size)
    extra = parse_int(random_blocks, "bigbird: random_blocks", minimum=0)
    if count > MOST_BLOCKS:
        raise SizeError(
            f"bigbird: {count} blocks a side make too large a map. Give a larger block."
        )
    lit = (
        np.eye(count, dtype=bool) | np.eye(count, k=1, dtype=bool) | np.eye(count, k=-1, dtype=bool)
    )
    lit[:, [0, -1][:count]] = lit[[0, -1][:count]] = True
    rng = np.random.default_rng(parse_int(seed, "bigbird: seed", minimum=0))
    for row in lit:
        free = np.flatnonzero(~row)
        row[rng.choice(free, min(extra, free.size), replace=False)] = True
    return blocks(lit, size)


def sparse_transformer(
    size: int,
    kind: Literal["strided", "fixed"] = "strided",
    *,
    summary: int = 1,
    length: int | None = None,
) -> Mask:
    """Two ways to factor causal attention: near tokens, and every `size`-th one.

    "strided" sees the last `size` tokens and every `size`-th before; "fixed" sees its own chunk
    and the last `summary` tokens of every chunk, for which it needs the `length`.

    Child et al. 2019, "Generating Long Sequences with Sparse Transformers", arXiv 1904.10509.

    >>> import maskwright as mw
    >>> mw.recipes.sparse_transformer(3).on(8).spans.row(7)
    [(1, 2), (4, 8)]
    >>> mw.recipes.sparse_transformer(3, "fixed", length=8).on(8).spans.row(7)
    [(2, 3), (5, 8)]
    """
    if read_choice(kind, "sparse_transformer: kind", ("strided", "fixed")) == "strided":
        if length is not None or summary != 1:
            raise ArgumentError(
                "sparse_transformer: length and summary are for 'fixed'. Leave them out for 'strided'."
            )
        return causal() & (sliding(size) | stride(size))
    if length is None:
        raise ArgumentError("sparse_transformer: 'fixed' needs the length. Pass length=….")
    side = parse_int(size, "sparse_transformer: size", minimum=1)
    tokens = parse_int(length, "sparse_transformer: length", minimum=0)
    if tokens > 2**31:
        raise SizeError(f"sparse_transformer: length={tokens} is beyond 2**31. Give a smaller one.")
    tail = side - parse_int(summary, "sparse_transformer: summary", minimum=0)
    return causal() & (chunks(side) | keys(np.arange(tokens) % side >= tail))


def chunked(size: int) -> Mask:
    """The tokens of the query's own chunk, up to itself.

    Meta AI 2025, Llama 4 (its layers with rotary positions).

    >>> import maskwright as mw
    >>> mw.recipes.chunked(2).on(4).spans.row(3)
    [(2, 4)]
    """
    return causal() & chunks(size)


def local_global(layers: int, size: int = 1024, every: int = 6) -> tuple[Mask, ...]:
    """One mask a layer: a sliding window, and every `every`-th layer the whole past.

    Gemma Team 2025, "Gemma 3 Technical Report", arXiv 2503.19786.

    >>> import maskwright as mw
    >>> mw.recipes.local_global(3, size=4, every=3)
    (window(back=3), window(back=3), causal())
    """
    period = parse_int(every, "local_global: every", minimum=1)
    count = parse_int(layers, "local_global: layers", minimum=0)
    if count > 100_000:
        raise ArgumentError(f"local_global: layers={count} is beyond 100000. Give fewer.")
    near = sliding(size)
    return tuple(near if (layer + 1) % period else causal() for layer in range(count))
