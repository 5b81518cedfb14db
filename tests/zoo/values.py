"""Masks whose values are misread: inverted, 0 and 1 added to scores, integers that wrap."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import maskwright as mw
from tests.zoo.case import Subject, plant
from tests.zoo.layers import (
    PAD,
    Model,
    Multihead,
    bidirectional,
    by_hand,
    by_sdpa,
    causal,
    left,
    lowest,
    masked,
    past,
    reading,
    right,
    scores_of,
    settled,
    writing,
)

# ── inverted ──────────────────────────────────────────────────────────────────────────────────

INVERTED = "inverted mask"


def padding_is_true(real: Tensor, new: int) -> Tensor:
    """True at padding, as nn.MultiheadAttention wants it, for a function that keeps what is True."""
    return (~real)[:, None, None, :]


def future_is_true(real: Tensor, new: int) -> Tensor:
    """True above the diagonal, for a function that keeps what is True."""
    return torch.ones(new, real.size(1)).triu(1).bool()


def fills_what_is_seen(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Fills where the mask is True, though True may see."""
    scores = scores_of(q, k)
    return scores.masked_fill(keep, lowest(scores)).softmax(-1) @ v


def lowers_what_is_seen(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Multiplies the mask by -1e9, and not what it leaves out."""
    return (scores_of(q, k) + keep.to(q.dtype) * -1e9).softmax(-1) @ v


def lowers_what_is_hidden(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Adds -1e9 where the mask is 0."""
    return (scores_of(q, k) + (1 - keep.to(q.dtype)) * -1e9).softmax(-1) @ v


def real_keys(real: Tensor) -> dict[str, Any]:
    """A padding mask that is True for real tokens."""
    return {"key_padding_mask": real}


def padded_keys(real: Tensor) -> dict[str, Any]:
    """A padding mask that is True for padding."""
    return {"key_padding_mask": ~real}


plant(
    INVERTED,
    "padding, bool into SDPA, all layers",
    reading(lambda: Model([by_sdpa] * 2, padding_is_true)),
    reading(lambda: Model([by_sdpa] * 2, bidirectional)),
    after="torchTextClassifiers#92",
    causes=("inverted",),
    checks="L P R PI BI",
)
plant(
    INVERTED,
    "causal, bool into SDPA, all layers",
    writing(lambda: Model([by_sdpa] * 2, future_is_true), right(16, 16), mw.causal()),
    writing(lambda: Model([by_sdpa] * 2, past), right(16, 16), mw.causal()),
    after="torchTextClassifiers#92",
    causes=("inverted",),
    checks="L P R G",
)
plant(
    INVERTED,
    "padding, key_padding_mask of nn.MultiheadAttention",
    reading(lambda: Multihead(real_keys, real_keys), right(9, 13, 11, size=16)),
    reading(lambda: Multihead(padded_keys, padded_keys), right(9, 13, 11, size=16)),
    after="torchTextClassifiers#92",
    causes=("inverted",),
    checks="L P R PI",
)
plant(
    INVERTED,
    "causal, masked_fill by hand, one layer of three",
    writing(lambda: Model([by_hand, fills_what_is_seen, by_hand]), right(*[16] * 3), mw.causal()),
    writing(lambda: Model([by_hand] * 3), right(*[16] * 3), mw.causal()),
    after="torchTextClassifiers#92",
    causes=("inverted",),
    layer="layers.1.attention",
    checks="P G",
)
plant(
    INVERTED,
    "padding, additive by hand, one layer of two",
    reading(lambda: Model([lowers_what_is_seen, lowers_what_is_hidden], bidirectional)),
    reading(lambda: Model([lowers_what_is_hidden] * 2, bidirectional)),
    after="torchTextClassifiers#92",
    causes=("inverted",),
    layer="layers.0.attention",
    checks="P PI BI",
)

# ── 0 and 1 added ─────────────────────────────────────────────────────────────────────────────

ADDED = "mask added as 0 and 1"


def as_given(attention_mask: Tensor, new: int) -> Tensor:
    """The mask in whatever dtype the tokenizer gave."""
    return attention_mask[:, None, None, :]


def past_as_floats(real: Tensor, new: int) -> Tensor:
    """1.0 up to the query, 0.0 after it."""
    return torch.ones(new, real.size(1)).tril()


def adds_the_mask(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Adds truth values to scores, as if they were a bias."""
    return (scores_of(q, k) + keep).softmax(-1) @ v


def past_in_floats(real: Tensor) -> dict[str, Any]:
    """A causal mask of 1.0 and 0.0, which is added."""
    return {"attn_mask": torch.ones(real.size(1), real.size(1)).tril()}


def future_in_bools(real: Tensor) -> dict[str, Any]:
    """A causal mask that is True at what is hidden."""
    return {"attn_mask": torch.ones(real.size(1), real.size(1)).triu(1).bool()}


def padding_in_floats(real: Tensor) -> dict[str, Any]:
    """A padding mask of 1.0 for padding, which is added."""
    return {"key_padding_mask": (~real).float()}


plant(
    ADDED,
    "padding as the tokenizer's floats, SDPA",
    masked(lambda: Model([by_sdpa] * 2, as_given), torch.float32),
    masked(lambda: Model([by_sdpa] * 2, bidirectional), torch.float32),
    after="CosyVoice#628",
    causes=("zero-one-added",),
    checks="L D P PI BI",
)
plant(
    ADDED,
    "causal floats, SDPA",
    writing(lambda: Model([by_sdpa] * 2, past_as_floats), right(16, 16), mw.causal()),
    writing(lambda: Model([by_sdpa] * 2, past), right(16, 16), mw.causal()),
    after="CosyVoice#628",
    causes=("zero-one-added",),
    checks="L P G",
)
plant(
    ADDED,
    "causal floats, nn.MultiheadAttention",
    writing(lambda: Multihead(past_in_floats, past_in_floats), right(16, 16), mw.causal()),
    writing(lambda: Multihead(future_in_bools, future_in_bools), right(16, 16), mw.causal()),
    after="CosyVoice#628",
    causes=("zero-one-added",),
    checks="L P G",
)
plant(
    ADDED,
    "padding floats, nn.MultiheadAttention, one layer of two",
    reading(lambda: Multihead(padded_keys, padding_in_floats)),
    reading(lambda: Multihead(padded_keys, padded_keys)),
    after="CosyVoice#628",
    causes=("zero-one-added",),
    layer="layers.1.attention",
    checks="L P PI BI",
)
plant(
    ADDED,
    "padding truth values by hand, last layer of three",
    reading(lambda: Model([by_hand, by_hand, adds_the_mask], bidirectional)),
    reading(lambda: Model([by_hand] * 3, bidirectional)),
    after="CosyVoice#628",
    causes=("zero-one-added",),
    layer="layers.2.attention",
    checks="P PI BI",
)

# ── four axes, as they come ───────────────────────────────────────────────────────────────────

PREPARED = "prepared mask of 0.0 and 1.0 taken as it is"


def prepared(attention_mask: Tensor, new: int) -> Tensor:
    """A mask with four axes is thought to be made ready by the caller."""
    return attention_mask


def prepared_as_truth(attention_mask: Tensor, new: int) -> Tensor:
    """A mask with four axes says which cells may be seen, whatever its dtype."""
    return attention_mask.bool()


def fitted(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Makes integers fit SDPA by the dtype of the queries, which then adds them."""
    bias = keep if keep.dtype == torch.bool else keep.to(q.dtype)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


def fitted_as_truth(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Makes anything fit SDPA as truth values."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keep.bool())


def added(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """Adds a prepared mask to the scores, as the eager attention of libraries does."""
    return (scores_of(q, k) + bias).softmax(-1) @ v


def from_the_first(real: Tensor) -> Tensor:
    """Positions, where all four axes of a mask were given instead of real tokens."""
    return torch.arange(real.size(-1)).expand(real.size(0), -1)


def four_axes(make: Any, dtype: torch.dtype) -> Any:
    """The mask is among the inputs, (B, 1, T, T)."""
    ids = right(*[14] * 2)
    keep = torch.ones(14, 14).tril().expand(2, 1, 14, 14).to(dtype)
    return lambda: Subject(settled(make()), {"ids": ids, "attention_mask": keep}, mw.causal())


class Packed(nn.Module):
    """Makes the mask of packed documents, and hands it to a model that takes four axes."""

    def __init__(self, attend: Any, as_floats: bool) -> None:
        super().__init__()
        self.model = Model([attend] * 2, prepared)
        self.as_floats = as_floats

    def forward(self, ids: Tensor, documents: Tensor) -> Tensor:
        keep = (documents[:, :, None] == documents[:, None]).tril()
        places = keep.sum(-1) - 1
        mask = keep[:, None].float() if self.as_floats else keep[:, None]
        return self.model(ids, mask, places)


class Llama(nn.Module):
    """Hands a mask with four axes to a model of transformers, which takes it as it is."""

    def __init__(self, as_floats: bool) -> None:
        super().__init__()
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=48,
            hidden_size=24,
            intermediate_size=24,
            num_hidden_layers=2,
            num_attention_heads=2,
            max_position_embeddings=64,
            pad_token_id=PAD,
        )
        self.model = LlamaForCausalLM(config)
        self.as_floats = as_floats

    def forward(self, ids: Tensor) -> Tensor:
        keep = causal(ids != PAD, ids.size(1))
        mask = keep.float() if self.as_floats else keep
        return self.model(input_ids=ids, attention_mask=mask, use_cache=False).logits


DOCUMENTS = torch.tensor([[0] * 5 + [1] * 7 + [2] * 4, [0] * 9 + [1] * 3 + [2] * 4])


def packing(make: Any) -> Any:
    """Two sequences of three documents each."""
    inputs = {"ids": right(16, 16), "documents": DOCUMENTS}
    expects = mw.causal() & mw.documents(ids=DOCUMENTS)
    return lambda: Subject(settled(make()), inputs, expects)


plant(
    PREPARED,
    "causal floats among the inputs, SDPA",
    four_axes(lambda: Model([by_sdpa] * 2, prepared, from_the_first), torch.float32),
    four_axes(lambda: Model([by_sdpa] * 2, prepared_as_truth, from_the_first), torch.float32),
    after="transformers#46458",
    causes=("zero-one-added",),
    checks="L D P G",
)
plant(
    PREPARED,
    "causal integers among the inputs, cast to the queries' dtype, one layer of two",
    four_axes(lambda: Model([fitted_as_truth, fitted], prepared, from_the_first), torch.long),
    four_axes(lambda: Model([fitted_as_truth] * 2, prepared, from_the_first), torch.long),
    after="transformers#46458",
    causes=("zero-one-added",),
    layer="layers.1.attention",
    checks="L D P G",
)
plant(
    PREPARED,
    "packed documents, added by hand",
    packing(lambda: Packed(added, as_floats=True)),
    packing(lambda: Packed(by_hand, as_floats=False)),
    after="transformers#46458",
    causes=("zero-one-added",),
    checks="P G",
)
plant(
    PREPARED,
    "causal with padding, a Llama of transformers",
    writing(lambda: Llama(as_floats=True), left(12, 7)),
    writing(lambda: Llama(as_floats=False), left(12, 7)),
    after="transformers#46458",
    causes=("zero-one-added",),
    checks="P G PI BI",
)

# ── integers ──────────────────────────────────────────────────────────────────────────────────

WRAPPED = "arithmetic on an integer mask"


def lowered(fill: float) -> Any:
    """Adds (1 - mask) · fill in the mask's own dtype: in a small one the fill wraps."""

    def attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
        return (scores_of(q, k) + (1 - mask) * fill).softmax(-1) @ v

    return attend


def lowered_in_floats(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Adds (1 - mask) · fill in the dtype of the scores."""
    return (scores_of(q, k) + (1 - mask.to(q.dtype)) * -10_000).softmax(-1) @ v


def inverts_bits(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """`~` turns 1 into -2, which is as true as -1: all is filled, and all weights are even."""
    scores = scores_of(q, k)
    return scores.masked_fill((~mask).bool(), lowest(scores)).softmax(-1) @ v


def inverts_truth(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """`~` of truth values."""
    scores = scores_of(q, k)
    return scores.masked_fill(~mask.bool(), lowest(scores)).softmax(-1) @ v


def as_dtype(dtype: torch.dtype) -> Any:
    """The padding mask as numbers of one dtype."""

    def mask(real: Tensor, new: int) -> Tensor:
        return real[:, None, None, :].to(dtype)

    return mask


plant(
    WRAPPED,
    "uint8 from the tokenizer: -10000 becomes 240",
    masked(lambda: Model([lowered(-10_000)] * 2, as_given), torch.uint8),
    masked(lambda: Model([lowered_in_floats] * 2, as_given), torch.uint8),
    after="NeMo#40",
    causes=("integer-wrapped",),
    checks="D P PI BI",
)
plant(
    WRAPPED,
    "int16 made from ids: half's lowest number becomes 32",
    reading(lambda: Model([lowered(-65_504)] * 2, as_dtype(torch.int16))),
    reading(lambda: Model([lowered_in_floats] * 2, as_dtype(torch.int16))),
    after="NeMo#40",
    causes=("integer-wrapped",),
    checks="P PI BI",
)
plant(
    WRAPPED,
    "int8 in one layer of three: -32768 becomes 0",
    reading(
        lambda: Model(
            [lowered_in_floats, lowered(-(2**15)), lowered_in_floats], as_dtype(torch.int8)
        )
    ),
    reading(lambda: Model([lowered_in_floats] * 3, as_dtype(torch.int8))),
    after="NeMo#40",
    causes=("integer-wrapped",),
    layer="layers.1.attention",
    checks="P PI BI",
)
plant(
    WRAPPED,
    "int64 from the tokenizer, inverted by ~",
    masked(lambda: Model([inverts_bits] * 2, as_given), torch.long),
    masked(lambda: Model([inverts_truth] * 2, as_given), torch.long),
    after="NeMo#40",
    causes=("integer-wrapped", "inverted"),
    checks="D P PI BI",
)
