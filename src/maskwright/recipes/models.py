"""Masks of model families: encoders and decoders, packing, speculative decoding, diffusion, images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from maskwright.core.atoms import blocks, causal, documents, image, padding, prefix, tree
from maskwright.core.atoms.position import read_lengths
from maskwright.core.validate import parse_int, read_bools, read_ints
from maskwright.errors import ArgumentError, SizeError
from maskwright.recipes.sparse import MAX_BLOCKS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maskwright.core.expr import Mask
    from maskwright.core.validate import IntArray


class TranslationMasks(NamedTuple):
    """The masks of the three attentions of an encoder-decoder.

    >>> import maskwright as mw
    >>> mw.recipes.translation(source=[[5, 0]], target=[[6, 7]]).encoder
    padding(keep=[[1, 0]])
    """

    encoder: Mask
    decoder: Mask
    cross: Mask


def bert(ids: Any, pad_id: int = 0) -> Mask:
    """Bidirectional encoder: all tokens except padding.

    Args:
        ids: Token ids, (batch, tokens).
        pad_id: Id of the padding token.

    Returns:
        The mask.

    Devlin et al. 2018, "BERT: Pre-training of Deep Bidirectional Transformers", arXiv 1810.04805.

    >>> import maskwright as mw
    >>> mw.recipes.bert([[7, 8, 0]]).on(3).dense().astype(int).tolist()
    [[[[1, 1, 0], [1, 1, 0], [1, 1, 0]]]]
    """
    return padding(ids=ids, pad_id=pad_id)


def gpt(ids: Any, pad_id: int = 0) -> Mask:
    """Decoder: the tokens up to the query, except padding.

    Args:
        ids: Token ids, (batch, tokens).
        pad_id: Id of the padding token.

    Returns:
        The mask.

    Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training".

    >>> import maskwright as mw
    >>> mw.recipes.gpt([[7, 8, 0]]).on(3).dense().astype(int).tolist()
    [[[[1, 0, 0], [1, 1, 0], [1, 1, 0]]]]
    """
    return causal() & padding(ids=ids, pad_id=pad_id)


def translation(source: Any, target: Any, pad_id: int = 0) -> TranslationMasks:
    """Encoder-decoder: the masks of its encoder, decoder and cross-attention.

    The encoder masks the padding of the source; the decoder masks the future and the padding of
    the target; cross-attention masks the padding of the source. Bind the latter with
    `cross.on(target_length, source_length)`. To also mask the query rows of target padding, combine
    it with `padding(ids=target, pad_id=pad_id).T` and bind it with `q_start=0`, which aligns row r
    with target token r.

    Args:
        source: Token ids of the encoder, (batch, tokens).
        target: Token ids of the decoder, (batch, tokens).
        pad_id: Id of the padding token.

    Returns:
        The masks of encoder, decoder and cross-attention.

    Vaswani et al. 2017, "Attention Is All You Need", arXiv 1706.03762.

    >>> import maskwright as mw
    >>> masks = mw.recipes.translation(source=[[5, 6, 7, 0]], target=[[8, 9]])
    >>> masks.cross.on(2, 4).dense().astype(int).tolist()
    [[[[1, 1, 1, 0], [1, 1, 1, 0]]]]
    """
    source_padding = padding(ids=source, pad_id=pad_id)
    target_padding = padding(ids=target, pad_id=pad_id)
    return TranslationMasks(source_padding, causal() & target_padding, source_padding)


def prefix_lm(lengths: Any) -> Mask:
    """Prefix LM: a bidirectional prefix, which is visible to all queries, and causal tokens.

    Args:
        lengths: Length of the prefix, one number or one per sequence.

    Returns:
        The mask.

    Raffel et al. 2019, "Exploring the Limits of Transfer Learning" (T5), arXiv 1910.10683.

    >>> import maskwright as mw
    >>> mw.recipes.prefix_lm(2).on(3).dense().astype(int).tolist()
    [[[[1, 1, 0], [1, 1, 0], [1, 1, 1]]]]
    """
    return causal() | prefix(lengths)


def packed(*, lengths: Any = None, ids: Any = None) -> Mask:
    """Packed sequences: causal attention within each of several documents in one sequence.

    Args:
        lengths: Lengths of the documents, one list per sequence.
        ids: Alternatively, the document id of each token, -1 for padding.

    Returns:
        The mask.

    Krell et al. 2021, "Efficient Sequence Packing without Cross-contamination", arXiv 2107.02027.

    >>> import maskwright as mw
    >>> mw.recipes.packed(lengths=[[2, 1]]).on(3).dense().astype(int).tolist()
    [[[[1, 0, 0], [1, 1, 0], [0, 0, 1]]]]
    """
    return causal() & documents(lengths=lengths, ids=ids)


def shared_prefix(prompt: int, lengths: Sequence[int]) -> Mask:
    """Shared prefix: several continuations of one prompt, each attending to the prompt and itself.

    Args:
        prompt: Length of the prompt.
        lengths: Lengths of the continuations.

    Returns:
        The mask.

    Juravsky et al. 2024, "Hydragen: High-Throughput LLM Inference with Shared Prefixes",
    arXiv 2402.05099.

    >>> import maskwright as mw
    >>> mw.recipes.shared_prefix(1, [1, 1]).on(3).dense().astype(int).tolist()
    [[[[1, 0, 0], [1, 1, 0], [1, 0, 1]]]]
    """
    prompt_length = parse_int(prompt, "shared_prefix: prompt", minimum=0)
    continuations = read_lengths(lengths, "shared_prefix").tolist()
    return causal() & (documents(lengths=[[prompt_length, *continuations]]) | prefix(prompt_length))


def medusa(choices: Sequence[Sequence[int]], past: int = 1) -> Mask:
    """Medusa: a tree of draft tokens after `past` tokens, each attending to the past and its path.

    Args:
        choices: The paths of the tree, such as (0,), (1,), (0, 0): the last one is the first
            choice of the second head after the first choice of the first head. Draft tokens are
            in the order of the paths.
        past: Number of accepted tokens.

    Returns:
        The mask over the accepted tokens and the drafts.

    Raises:
        ArgumentError: If a path has no parent among the choices, is passed twice, or contains
            something other than integers of 0 or more.
        SizeError: If `past` is beyond 2**24.

    Cai et al. 2024, "Medusa: Simple LLM Inference Acceleration Framework", arXiv 2401.10774.

    >>> import maskwright as mw
    >>> mw.recipes.medusa([(0,), (1,), (0, 0)], past=2).on(5).dense().astype(int)[0, 0, 2:].tolist()
    [[1, 1, 1, 0, 0], [1, 1, 0, 1, 0], [1, 1, 1, 0, 1]]
    """
    accepted = parse_int(past, "medusa: past", minimum=1)
    try:
        paths = [
            tuple(
                parse_int(step, "medusa: a choice of a head in choices", minimum=0) for step in path
            )
            for path in choices
        ]
    except TypeError:
        raise ArgumentError(
            "medusa: choices are not paths of integers. Pass a list like [(0,), (1,), (0, 0)]."
        ) from None
    position = {path: accepted + number for number, path in enumerate(paths)}
    position[()] = accepted - 1
    for number, path in enumerate(paths):
        if not path or path[:-1] not in position:
            raise ArgumentError(
                f"medusa: the path {path!s:.40} has no parent among the choices. "
                "Pass its parents too."
            )
        if position[path] != accepted + number:
            raise ArgumentError(f"medusa: the path {path!s:.40} is passed twice. Pass it once.")
    if accepted > 2**24:
        raise SizeError(f"medusa: past={accepted} is beyond 2**24. Pass a smaller past.")
    parents = [position[path[:-1]] for path in paths]
    return tree(np.concatenate([np.arange(-1, accepted - 1), np.array(parents, np.int64)]))


def block_diffusion(length: int, block: int) -> Mask:
    """Block diffusion training: `length` noised tokens followed by the same tokens without noise.

    A noised block attends to itself and to the clean blocks before it; a clean block attends to
    itself and to the clean blocks before it.

    Args:
        length: Number of tokens of the text; the mask is for twice as many.
        block: Block size, a divisor of `length`.

    Returns:
        The mask of `2 * length` tokens.

    Raises:
        ArgumentError: If `length` is not a multiple of `block`.
        SizeError: If there are more than 8192 blocks.

    Arriola et al. 2025, "Block Diffusion", arXiv 2503.09573.

    >>> import maskwright as mw
    >>> mw.recipes.block_diffusion(2, 1).on(4).dense().astype(int)[0, 0].tolist()
    [[1, 0, 0, 0], [0, 1, 1, 0], [0, 0, 1, 0], [0, 0, 1, 1]]
    """
    size = parse_int(block, "block_diffusion: block", minimum=1)
    tokens = parse_int(length, "block_diffusion: length", minimum=0)
    if tokens % size:
        raise ArgumentError(
            f"block_diffusion: length={tokens} is not a multiple of block={size}. Pad the text."
        )
    count = tokens // size
    if count > MAX_BLOCKS // 2:
        raise SizeError(
            f"block_diffusion: {count} blocks, expected at most {MAX_BLOCKS // 2}. "
            "Pass a larger block."
        )
    if count == 1:  # two documents, the positions of which are known
        return documents(ids=np.repeat([0, 1], tokens))
    same_block, earlier = np.eye(count, dtype=bool), np.tri(count, k=-1, dtype=bool)
    noised = np.hstack([same_block, earlier])
    clean = np.hstack([np.zeros_like(same_block), same_block | earlier])
    visible = np.vstack([noised, clean])
    return blocks(visible, size, shape=visible.shape)


def natten(height: int, width: int, kernel: int) -> Mask:
    """Neighborhood attention: the `kernel` × `kernel` nearest pixels, also at the border.

    Args:
        height: Height of the image in pixels or patches.
        width: Width of the image.
        kernel: Odd size of the neighbourhood, at most `height` and `width`.

    Returns:
        The mask.

    Raises:
        ArgumentError: If `kernel` is even, or greater than `height` or `width`.

    Hassani et al. 2022, "Neighborhood Attention Transformer", arXiv 2204.07143.

    >>> import maskwright as mw
    >>> mw.recipes.natten(4, 4, 3).on(16).spans.row(0)
    [(0, 3), (4, 7), (8, 11)]
    """
    size = parse_int(kernel, "natten: kernel", minimum=1)
    if size % 2 == 0:
        raise ArgumentError(f"natten: kernel={size} is even. Pass an odd number.")
    rows = parse_int(height, "natten: height", minimum=1)
    columns = parse_int(width, "natten: width", minimum=1)
    if size > min(rows, columns):
        raise ArgumentError(
            f"natten: kernel={size} is larger than the image of {rows} × {columns}. "
            f"Pass an odd number of at most {min(rows, columns)}."
        )
    return image(rows, columns, radius=size // 2, border="shift")


def image_text(images: Any = None, *, token_types: Any = None) -> Mask:
    """Interleaved images and text: causal, with bidirectional attention within each image.

    Args:
        images: The number of each token's image, -1 for text; (tokens,) or (batch, tokens). At
            least one token must be text.
        token_types: Alternatively, 0 for text and 1 for images, as Gemma 3's `token_type_ids`.
            Each run of ones is one image, so images without text between them are one; a sequence
            of ones is one image. PaliGemma's `token_type_ids` are different: 0 is a bidirectional
            prefix, for which `prefix_lm` is the recipe.

    Returns:
        The mask.

    Raises:
        ArgumentError: If not exactly one of the two is passed, `images` has no -1, or
            `token_types` contains something other than 0 and 1.

    Gemma Team 2025, "Gemma 3 Technical Report", arXiv 2503.19786.

    >>> import maskwright as mw
    >>> mw.recipes.image_text([-1, 0, 0, -1]).on(4).dense().astype(int)[0, 0].tolist()
    [[1, 0, 0, 0], [1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    >>> mw.recipes.image_text(token_types=[0, 1, 1, 0, 1])
    causal() | documents(ids=[[-1, 0, 0, -1, 1]])
    """
    if (images is None) == (token_types is None):
        raise ArgumentError(
            f"image_text: got {'neither images nor' if images is None else 'images and'} "
            "token_types. Pass exactly one of the two."
        )
    if token_types is not None:
        return causal() | documents(ids=_images_of_types(token_types))
    numbers = read_ints(images, "image_text: images")
    if numbers.size and not bool((numbers == -1).any()):
        raise ArgumentError(
            "image_text: images has no -1, so no token is text. Pass token_types=… for types of 0 "
            "and 1, -1 for text, or causal() | documents(ids=…) if all tokens are of images."
        )
    return causal() | documents(ids=numbers)


def _images_of_types(token_types: Any) -> IntArray:
    """The number of each token's image, -1 for text: each run of ones is one image."""
    what = "image_text: token_types"
    types = read_bools(token_types, what, instead="Pass 0 for text and 1 for images.")
    if types.ndim not in (1, 2):
        raise ArgumentError(
            f"{what} has shape {types.shape}. Expected (tokens,) or (batch, tokens)."
        )
    begins = types.copy()
    begins[..., 1:] &= ~types[..., :-1]
    numbers: IntArray = np.where(types, np.cumsum(begins, axis=-1) - 1, -1)
    return numbers
