"""Masks of model families: encoders, decoders, encoder-decoders, packed sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from maskwright.core.atoms import causal, documents, padding, prefix
from maskwright.core.atoms.position import read_lengths
from maskwright.core.validate import parse_int

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maskwright.core.expr import Mask


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

    Juravsky et al. 2024, "Hydragen: High-Throughput LLM Inference with Shared Prefixes",
    arXiv 2402.05099.

    >>> import maskwright as mw
    >>> mw.recipes.shared_prefix(1, [1, 1]).on(3).dense().astype(int).tolist()
    [[[[1, 0, 0], [1, 1, 0], [1, 0, 1]]]]
    """
    prompt_length = parse_int(prompt, "shared_prefix: prompt", minimum=0)
    continuations = read_lengths(lengths, "shared_prefix").tolist()
    return causal() & (documents(lengths=[[prompt_length, *continuations]]) | prefix(prompt_length))
