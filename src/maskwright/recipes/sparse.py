"""Sparse attention for long sequences: windows, sinks, chunks, strides and global tokens."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from maskwright.core.atoms import blocks, causal, chunks, keys, queries, stride, window
from maskwright.core.validate import parse_int, read_choice
from maskwright.errors import ArgumentError, SizeError

if TYPE_CHECKING:
    from maskwright.core.expr import Mask

MAX_BLOCKS: Final = 2**14  # per side of a block map
MAX_LAYERS: Final = 100_000


def sliding(size: int) -> Mask:
    """Sliding window: the last `size` tokens, including the query's own.

    Args:
        size: Number of tokens in the window.

    Returns:
        The mask.

    Jiang et al. 2023, "Mistral 7B", arXiv 2310.06825.

    >>> import maskwright as mw
    >>> mw.recipes.sliding(4096)
    window(back=4095)
    """
    return window(back=parse_int(size, "sliding: size", minimum=1) - 1)


def sinks(size: int, sinks: int = 4) -> Mask:
    """Attention sinks: the last `size` tokens and the first `sinks` tokens.

    Args:
        size: Number of tokens in the window.
        sinks: Number of tokens at the beginning that stay visible.

    Returns:
        The mask.

    Xiao et al. 2023, "Efficient Streaming Language Models with Attention Sinks" (StreamingLLM),
    arXiv 2309.17453.

    >>> import maskwright as mw
    >>> mw.recipes.sinks(2, sinks=1).on(4).spans.row(3)
    [(0, 1), (2, 4)]
    """
    first = range(parse_int(sinks, "sinks: sinks", minimum=0))
    return sliding(size) | (keys(first) & causal())


def longformer(each_side: int, global_tokens: Any) -> Mask:
    """Longformer: a window on both sides, and global tokens that attend to and are visible to all.

    Args:
        each_side: Tokens of the window before the query, and as many after it.
        global_tokens: Positions of the global tokens.

    Returns:
        The mask.

    Raises:
        ArgumentError: If `each_side` is not an integer of 0 or more.

    Beltagy et al. 2020, "Longformer: The Long-Document Transformer", arXiv 2004.05150.

    >>> import maskwright as mw
    >>> mw.recipes.longformer(1, [0]).on(4).dense().astype(int)[0, 0].tolist()
    [[1, 1, 1, 1], [1, 1, 1, 0], [1, 1, 1, 1], [1, 0, 1, 1]]
    """
    side = parse_int(each_side, "longformer: each_side", minimum=0)
    return window(back=side, ahead=side) | keys(global_tokens) | queries(global_tokens)


def bigbird(length: int, block: int = 64, random_blocks: int = 3, seed: int = 0) -> Mask:
    """BigBird: neighbouring blocks, the first and the last block as global ones, and random blocks.

    Args:
        length: Number of tokens.
        block: Block size.
        random_blocks: Number of random blocks per row of blocks; all that are left if there are
            fewer.
        seed: Random seed.

    Returns:
        The mask.

    Raises:
        SizeError: If there are more than 16384 blocks.

    Zaheer et al. 2020, "Big Bird: Transformers for Longer Sequences", arXiv 2007.14062.

    >>> import maskwright as mw
    >>> mw.recipes.bigbird(64, block=8, random_blocks=1).on(64).tiles(8).counts()
    {'empty': 14, 'partial': 0, 'full': 50}
    """
    size = parse_int(block, "bigbird: block", minimum=1)
    count = math.ceil(parse_int(length, "bigbird: length", minimum=0) / size)
    extra = parse_int(random_blocks, "bigbird: random_blocks", minimum=0)
    if count > MAX_BLOCKS:
        raise SizeError(
            f"bigbird: {count} blocks, expected at most {MAX_BLOCKS}. Pass a larger block."
        )
    visible = np.eye(count, dtype=bool)
    visible |= np.eye(count, k=1, dtype=bool) | np.eye(count, k=-1, dtype=bool)
    visible[:, [0, -1][:count]] = visible[[0, -1][:count]] = True
    rng = np.random.default_rng(parse_int(seed, "bigbird: seed", minimum=0))
    for row in visible:
        masked = np.flatnonzero(~row)
        row[rng.choice(masked, min(extra, masked.size), replace=False)] = True
    return blocks(visible, size)


def sparse_transformer(
    size: int,
    kind: Literal["strided", "fixed"] = "strided",
    *,
    summary: int = 1,
    length: int | None = None,
) -> Mask:
    """Sparse Transformer: causal attention to nearby tokens and to every `size`-th token.

    Args:
        size: Number of nearby tokens, and the stride.
        kind: "strided" attends to the last `size` tokens and every `size`-th token before them;
            "fixed" to the query's chunk of `size` tokens and the last tokens of each chunk.
        summary: Number of tokens at the end of each chunk, for "fixed"; at most `size`.
        length: Number of tokens, required for "fixed".

    Returns:
        The mask.

    Raises:
        ArgumentError: If `length` is missing for "fixed", `length` or `summary` is passed for
            "strided", or `summary` is greater than `size`.

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
                "sparse_transformer: length and summary are for 'fixed'. Omit them for 'strided'."
            )
        return causal() & (sliding(size) | stride(size))
    if length is None:
        raise ArgumentError("sparse_transformer: 'fixed' requires the length. Pass length=….")
    chunk = parse_int(size, "sparse_transformer: size", minimum=1)
    tokens = parse_int(length, "sparse_transformer: length", minimum=0)
    if tokens > 2**31:
        raise SizeError(
            f"sparse_transformer: length={tokens} is beyond 2**31. Pass a smaller length."
        )
    last = parse_int(summary, "sparse_transformer: summary", minimum=0)
    if last > chunk:
        raise ArgumentError(
            f"sparse_transformer: summary={last} is greater than size={chunk}. "
            "Pass the number of tokens at the end of each chunk."
        )
    first_summary = chunk - last
    return causal() & (chunks(chunk) | keys(np.arange(tokens) % chunk >= first_summary))


def chunked(size: int) -> Mask:
    """Chunked attention: the tokens of the query's chunk up to the query.

    Args:
        size: Chunk size.

    Returns:
        The mask.

    Meta AI 2025, Llama 4 (its layers with rotary positions).

    >>> import maskwright as mw
    >>> mw.recipes.chunked(2).on(4).spans.row(3)
    [(2, 4)]
    """
    return causal() & chunks(size)


def local_global(layers: int, size: int = 1024, every: int = 6) -> tuple[Mask, ...]:
    """Local and global layers: one mask per layer, causal in every `every`-th, else a window.

    Args:
        layers: Number of layers.
        size: Number of tokens in the window.
        every: Period of the global layers.

    Returns:
        One mask per layer.

    Gemma Team 2025, "Gemma 3 Technical Report", arXiv 2503.19786.

    >>> import maskwright as mw
    >>> mw.recipes.local_global(3, size=4, every=3)
    (window(back=3), window(back=3), causal())
    """
    period = parse_int(every, "local_global: every", minimum=1)
    count = parse_int(layers, "local_global: layers", minimum=0)
    if count > MAX_LAYERS:
        raise ArgumentError(
            f"local_global: layers={count}, expected at most {MAX_LAYERS}. Pass a smaller number."
        )
    local = sliding(size)
    return tuple(local if (layer + 1) % period else causal() for layer in range(count))
