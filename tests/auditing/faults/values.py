"""Mask values that are misread: inverted, added as 0 and 1, or integers that overflow."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import maskwright as mw
from tests.auditing.faults import tiny
from tests.auditing.faults.registry import Case, Family

# ── inverted ──────────────────────────────────────────────────────────────────────────────────

INVERTED = Family("inverted mask", after="torchTextClassifiers#92", causes="inverted")


def padding_is_true(real: Tensor, q_len: int) -> Tensor:
    """True at padding, for a function where True attends."""
    return (~real)[:, None, None, :]


def future_is_true(real: Tensor, q_len: int) -> Tensor:
    """True above the diagonal, for a function where True attends."""
    return torch.ones(q_len, real.size(1)).triu(1).bool()


def fills_visible(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Fills the visible cells."""
    scores = tiny.scores(q, k)
    return scores.masked_fill(keep, tiny.min_value(scores)).softmax(-1) @ v


def lowers_visible(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Adds -1e9 to the visible cells."""
    return (tiny.scores(q, k) + keep.to(q.dtype) * -1e9).softmax(-1) @ v


def lowers_masked(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Adds -1e9 to the masked cells."""
    return (tiny.scores(q, k) + (1 - keep.to(q.dtype)) * -1e9).softmax(-1) @ v


def real_keys(real: Tensor) -> dict[str, Any]:
    """key_padding_mask that is True for real tokens."""
    return {"key_padding_mask": real}


def padded_keys(real: Tensor) -> dict[str, Any]:
    """key_padding_mask that is True for padding."""
    return {"key_padding_mask": ~real}


@INVERTED.fault("padding, bool into SDPA, all layers", "L P R PI BI")
def _(faulty: bool) -> Case:
    mask = padding_is_true if faulty else tiny.padding_mask
    return tiny.encoder_case(tiny.Model([tiny.sdpa] * 2, mask))


@INVERTED.fault("causal, bool into SDPA, all layers", "L P R G")
def _(faulty: bool) -> Case:
    mask = future_is_true if faulty else tiny.causal_mask
    return tiny.decoder_case(tiny.Model([tiny.sdpa] * 2, mask), tiny.random_ids(2, 16))


@INVERTED.fault("padding, key_padding_mask of nn.MultiheadAttention", "L P R PI")
def _(faulty: bool) -> Case:
    masks = real_keys if faulty else padded_keys
    return tiny.encoder_case(
        tiny.MultiheadModel(masks, masks), tiny.right_padded(9, 13, 11, size=16)
    )


@INVERTED.fault("causal, masked_fill by hand, one layer of three", "P G", layer=1)
def _(faulty: bool) -> Case:
    attend = fills_visible if faulty else tiny.eager
    return tiny.decoder_case(tiny.Model([tiny.eager, attend, tiny.eager]), tiny.random_ids(3, 16))


@INVERTED.fault("padding, additive by hand, one layer of two", "P PI BI", layer=0)
def _(faulty: bool) -> Case:
    attend = lowers_visible if faulty else lowers_masked
    return tiny.encoder_case(tiny.Model([attend, lowers_masked], tiny.padding_mask))


# ── 0 and 1 added ─────────────────────────────────────────────────────────────────────────────

ADDED = Family(
    "mask added as 0 and 1", after="CosyVoice#628", checks="L P G", causes="zero-one-added"
)


def as_given(attention_mask: Tensor, q_len: int) -> Tensor:
    """The mask in the dtype of the tokenizer."""
    return attention_mask[:, None, None, :]


def causal_floats(real: Tensor, q_len: int) -> Tensor:
    """Causal mask of 1.0 and 0.0."""
    return torch.ones(q_len, real.size(1)).tril()


def adds_mask(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Adds the boolean mask to the scores."""
    return (tiny.scores(q, k) + keep).softmax(-1) @ v


def causal_float_args(real: Tensor) -> dict[str, Any]:
    """Additive causal mask of 1.0 and 0.0."""
    return {"attn_mask": torch.ones(real.size(1), real.size(1)).tril()}


def causal_bool_args(real: Tensor) -> dict[str, Any]:
    """Boolean causal mask, True is masked."""
    return {"attn_mask": torch.ones(real.size(1), real.size(1)).triu(1).bool()}


def padding_float_args(real: Tensor) -> dict[str, Any]:
    """Additive padding mask of 1.0 and 0.0."""
    return {"key_padding_mask": (~real).float()}


@ADDED.fault("padding as the tokenizer's floats, SDPA", "L D P PI BI")
def _(faulty: bool) -> Case:
    mask = as_given if faulty else tiny.padding_mask
    return tiny.masked_case(tiny.Model([tiny.sdpa] * 2, mask), torch.float32)


@ADDED.fault("causal floats, SDPA")
def _(faulty: bool) -> Case:
    mask = causal_floats if faulty else tiny.causal_mask
    return tiny.decoder_case(tiny.Model([tiny.sdpa] * 2, mask), tiny.random_ids(2, 16))


@ADDED.fault("causal floats, nn.MultiheadAttention")
def _(faulty: bool) -> Case:
    masks = causal_float_args if faulty else causal_bool_args
    return tiny.decoder_case(tiny.MultiheadModel(masks, masks), tiny.random_ids(2, 16))


@ADDED.fault("padding floats, nn.MultiheadAttention, one layer of two", "L P PI BI", layer=1)
def _(faulty: bool) -> Case:
    attend = padding_float_args if faulty else padded_keys
    return tiny.encoder_case(tiny.MultiheadModel(padded_keys, attend))


@ADDED.fault("padding booleans, eager, layer 2", "P PI BI", layer=2)
def _(faulty: bool) -> Case:
    attend = adds_mask if faulty else tiny.eager
    return tiny.encoder_case(tiny.Model([tiny.eager, tiny.eager, attend], tiny.padding_mask))


# ── four axes, as they come ───────────────────────────────────────────────────────────────────

PREPARED = Family(
    "prepared mask of 0.0 and 1.0 taken as it is",
    after="transformers#46458",
    checks="L D P G",
    causes="zero-one-added",
)


def prepared(attention_mask: Tensor, q_len: int) -> Tensor:
    """A mask with four axes, passed on unchanged."""
    return attention_mask


def prepared_as_bool(attention_mask: Tensor, q_len: int) -> Tensor:
    """A mask with four axes, converted to boolean."""
    return attention_mask.bool()


def cast_to_query_dtype(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Converts integers to the dtype of the queries, so that SDPA adds them."""
    bias = keep if keep.dtype == torch.bool else keep.to(q.dtype)
    return tiny.sdpa(q, k, v, bias)


def cast_to_bool(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Converts the mask to boolean."""
    return tiny.sdpa(q, k, v, keep.bool())


def added(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Adds the mask to the scores."""
    return (tiny.scores(q, k) + keep).softmax(-1) @ v


def column_positions(real: Tensor) -> Tensor:
    """Column positions, from a mask with four axes."""
    return torch.arange(real.size(-1)).expand(real.size(0), -1)


def four_axes(model: nn.Module, dtype: torch.dtype) -> Case:
    """A causal mask (B, 1, T, T) is among the inputs."""
    keep = tiny.causal(14).expand(2, 1, 14, 14).to(dtype)
    inputs = {"ids": tiny.random_ids(2, 14), "attention_mask": keep}
    return Case(tiny.initialize(model), inputs, mw.causal())


class Packed(nn.Module):
    """Passes the mask of packed documents to a model that takes four axes."""

    def __init__(self, attend: Any, as_floats: bool) -> None:
        super().__init__()
        self.model = tiny.Model([attend] * 2, prepared)
        self.as_floats = as_floats

    def forward(self, ids: Tensor, documents: Tensor) -> Tensor:
        keep = (documents[:, :, None] == documents[:, None]).tril()
        places = keep.sum(-1) - 1
        mask = keep[:, None].float() if self.as_floats else keep[:, None]
        return self.model(ids, mask, places)


class Llama(nn.Module):
    """Passes a mask with four axes to a model of transformers."""

    def __init__(self, as_floats: bool) -> None:
        super().__init__()
        from transformers import LlamaConfig, LlamaForCausalLM

        sizes = {"vocab_size": tiny.VOCAB, "hidden_size": tiny.DIM, "intermediate_size": tiny.DIM}
        config = LlamaConfig(
            **sizes, num_hidden_layers=2, num_attention_heads=2, pad_token_id=tiny.PAD
        )
        self.model = LlamaForCausalLM(config)
        self.as_floats = as_floats

    def forward(self, ids: Tensor) -> Tensor:
        keep = tiny.causal_padding_mask(ids != tiny.PAD, ids.size(1))
        mask = keep.float() if self.as_floats else keep
        return self.model(input_ids=ids, attention_mask=mask, use_cache=False).logits


def packing(model: nn.Module) -> Case:
    """Two rows of three packed documents each."""
    inputs = tiny.packed_inputs([5, 7, 4], [9, 3, 4])
    expects = mw.causal() & mw.documents(ids=inputs["documents"])
    return Case(tiny.initialize(model), inputs, expects)


@PREPARED.fault("causal floats among the inputs, SDPA")
def _(faulty: bool) -> Case:
    mask = prepared if faulty else prepared_as_bool
    return four_axes(tiny.Model([tiny.sdpa] * 2, mask, column_positions), torch.float32)


@PREPARED.fault("integer mask cast to the dtype of the queries, layer 1", layer=1)
def _(faulty: bool) -> Case:
    attend = cast_to_query_dtype if faulty else cast_to_bool
    return four_axes(tiny.Model([cast_to_bool, attend], prepared, column_positions), torch.long)


@PREPARED.fault("packed documents, added by hand", "P G")
def _(faulty: bool) -> Case:
    model = Packed(added, as_floats=True) if faulty else Packed(tiny.eager, as_floats=False)
    return packing(model)


@PREPARED.fault("causal with padding, a Llama of transformers", "P G PI BI")
def _(faulty: bool) -> Case:
    return tiny.decoder_case(Llama(as_floats=faulty), tiny.left_padded(12, 7))


# ── integers ──────────────────────────────────────────────────────────────────────────────────

WRAPPED = Family(
    "arithmetic on an integer mask", after="NeMo#40", checks="D P PI BI", causes="integer-wrapped"
)


def lowered(fill: float) -> Any:
    """Adds (1 - mask) * fill in the dtype of the mask, where the fill overflows."""

    def attend(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        return (tiny.scores(q, k) + (1 - keep) * fill).softmax(-1) @ v

    return attend


def lowered_in_floats(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """Adds (1 - mask) * fill in the dtype of the scores."""
    return (tiny.scores(q, k) + (1 - keep.to(q.dtype)) * -10_000).softmax(-1) @ v


def inverts_bits(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """`~` turns 1 into -2, which is true as well: everything is masked."""
    scores = tiny.scores(q, k)
    return scores.masked_fill((~keep).bool(), tiny.min_value(scores)).softmax(-1) @ v


def inverts_bool(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
    """`~` of booleans."""
    scores = tiny.scores(q, k)
    return scores.masked_fill(~keep.bool(), tiny.min_value(scores)).softmax(-1) @ v


def as_dtype(dtype: torch.dtype) -> Any:
    """Padding mask in this dtype."""

    def mask(real: Tensor, q_len: int) -> Tensor:
        return tiny.real_keys(real).to(dtype)

    return mask


@WRAPPED.fault("uint8 from the tokenizer: -10000 becomes 240")
def _(faulty: bool) -> Case:
    attend = lowered(-10000) if faulty else lowered_in_floats
    return tiny.masked_case(tiny.Model([attend] * 2, as_given), torch.uint8)


@WRAPPED.fault("int16 made from ids: half's lowest number becomes 32", "P PI BI")
def _(faulty: bool) -> Case:
    attend = lowered(-65504) if faulty else lowered_in_floats
    return tiny.encoder_case(tiny.Model([attend] * 2, as_dtype(torch.int16)))


@WRAPPED.fault("int8 in one layer of three: -32768 becomes 0", "P PI BI", layer=1)
def _(faulty: bool) -> Case:
    attend = lowered(-(2**15)) if faulty else lowered_in_floats
    return tiny.encoder_case(
        tiny.Model([lowered_in_floats, attend, lowered_in_floats], as_dtype(torch.int8))
    )


@WRAPPED.fault("int64 from the tokenizer, inverted by ~", causes="integer-wrapped inverted")
def _(faulty: bool) -> Case:
    attend = inverts_bits if faulty else inverts_bool
    return tiny.masked_case(tiny.Model([attend] * 2, as_given), torch.long)
