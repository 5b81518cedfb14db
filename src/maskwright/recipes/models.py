"""The masks of whole model families: encoders, decoders, and the ways to feed them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from maskwright.core.atoms import causal, documents, padding, prefix
from maskwright.core.atoms.position import read_lengths
from maskwright.core.validate import parse_int

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maskwright.core.expr import Mask


class TranslationMasks(NamedTuple):
    """The masks of an encoder-decoder's three attentions.

    >>> import maskwright as mw
    >>> mw.recipes.translation(source=[[5, 0]], target=[[6, 7]]).encoder
    padding(keep=[[1, 0]])
    """

    encoder: Mask
    decoder: Mask
    cross: Mask


def bert(ids: Any, pad_id: int = 0) -> Mask:
    """A bidirectional encoder: all real tokens see all real tokens.

    Devlin et al. 2018, "BERT: Pre-training of Deep Bidirectional Transformers", arXiv 1810.04805.

    >>> import maskwright as mw
    >>> mw.recipes.bert([[7, 8, 0]]).on(3).dense().astype(int).tolist()
    [[[[1, 1, 0], [1, 1, 0], [1, 1, 0]]]]
    """
    return padding(ids=ids, pad_id=pad_id)


def gpt(ids: Any, pad_id: int = 0) -> Mask:
    """A decoder: a token sees the real tokens up to itself.

    Radford et al. 2018, "Improving Language Understanding by Generative Pre-Training".

    >>> import maskwright as mw
    >>> mw.recipes.gpt([[7, 8, 0]]).on(3).dense().astype(int).tolist()
    [[[[1, 0, 0], [1, 1, 0], [1, 1, 0]]]]
    """
    return causal() & padding(ids=ids, pad_id=pad_id)


def translation(source: Any, target: Any, pad_id: int = 0) -> TranslationMasks:
    """An encoder-decoder: which of its three attentions takes which mask.

    The encoder hides the source's padding; the decoder hides the future and the target's padding;
    the decoder's look at the encoder hides the source's padding again. Bind the third with
    `cross.on(target length, source length)`. To hide padded target rows in it too, combine it with
    `padding(ids=target, pad_id=pad_id).T` and bind with `q_start=0`: there, row r is target token r.

    Vaswani et al. 2017, "Attention Is All You Need", arXiv 1706.03762.

    >>> import maskwright as mw
    >>> masks = mw.recipes.translation(source=[[5, 6, 7, 0]], target=[[8, 9]])
    >>> masks.cross.on(2, 4).dense().astype(int).tolist()
    [[[[1, 1, 1, 0], [1, 1, 1, 0]]]]
    """
    seen = padding(ids=source, pad_id=pad_id)
    return TranslationMasks(seen, causal() & padding(ids=target, pad_id=pad_id), seen)


def prefix_lm(lengths: Any) -> Mask:
    """A prefix that all may see in both directions, and a causal rest.

    Raffel et al. 2019, "Exploring the Limits of Transfer Learning" (T5), arXiv 1910.10683.

    >>> import maskwright as mw
    >>> mw.recipes.prefix_lm(2).on(3).dense().astype(int).tolist()
    [[[[1, 1, 0], [1, 1, 0], [1, 1, 1]]]]
    """
    return causal() | prefix(lengths)


def packed(*, lengths: Any = None, ids: Any = None) -> Mask:
    """A decoder over several documents in one sequence, none of which sees another.

    Krell et al. 2021, "Efficient Sequence Packing without Cross-contamination", arXiv 2107.02027.

    >>> import maskwright as mw
    >>> mw.recipes.packed(lengths=[[2, 1]]).on(3).dense().astype(int).tolist()
    [[[[1, 0, 0], [1, 1, 0], [0, 0, 1]]]]
    """
    return causal() & documents(lengths=lengths, ids=ids)


def shared_prefix(prompt: int, lengths: Sequence[int]) -> Mask:
    """One prompt, then several answers to it, each of which sees the prompt and itself.

    Juravsky et al. 2024, "Hydragen: High-Throughput LLM Inference with Shared Prefixes",
    arXiv 2402.05099.

    >>> import maskwright as mw
    >>> mw.recipes.shared_prefix(1, [1, 1]).on(3).dense().astype(int).tolist()
    [[[[1, 0, 0], [1, 1, 0], [1, 0, 1]]]]
    """
    first = parse_int(prompt, "shared_prefix: prompt", minimum=0)
    answers = read_lengths(lengths, "shared_prefix").tolist()
    return causal() & (documents(lengths=[[first, *answers]]) | prefix(first))
