"""Padding masks that are not passed on."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

import maskwright as mw
from tests.auditing.faults import tiny
from tests.auditing.faults.registry import Case, Family

# ── generation without the padding mask ───────────────────────────────────────────────────────

GENERATING = Family(
    "generation without the padding mask",
    after="TransformerLens#999",
    checks="BI PI P",
    causes="padding-visible",
)


class Prompted(nn.Module):
    """Logits of left-padded prompts, with or without their padding mask."""

    def __init__(self, passes: bool) -> None:
        super().__init__()
        self.model = tiny.Model()
        self.passes = passes

    def forward(self, ids: Tensor) -> Tensor:
        real = ids != tiny.PAD
        seen = real if self.passes else torch.ones_like(real)
        return self.model(ids, seen, tiny.real_positions(real))


class Defaulting(nn.Module):
    """Accepts a mask, and may replace it by ones."""

    def __init__(self, passes: bool) -> None:
        super().__init__()
        self.model = tiny.Model()
        self.passes = passes

    def forward(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        inputs = {"ids": ids, "position_ids": tiny.real_positions(attention_mask)}
        mask = attention_mask if self.passes else torch.ones_like(ids)
        return self.model(**inputs, attention_mask=mask)


class Renamed(tiny.Model):
    """A model whose mask argument has another name."""

    def forward(  # type: ignore[override]
        self, ids: Tensor, mask: Tensor | None = None, position_ids: Tensor | None = None
    ) -> Tensor:
        seen = torch.ones_like(ids) if mask is None else mask
        return super().forward(ids, seen, position_ids)


def generating(model: tiny.Model) -> Case:
    """A function that passes only the arguments that the model's forward accepts."""
    ids = tiny.left_padded(16, 9, 12)
    model = tiny.initialize(model)
    accepted = inspect.signature(model.forward).parameters

    def logits(ids: Tensor) -> Tensor:
        real = ids != tiny.PAD
        given = {"ids": ids, "attention_mask": real, "position_ids": tiny.real_positions(ids)}
        return model(**{name: x for name, x in given.items() if name in accepted})

    return Case(logits, ids, tiny.expected_mask(ids))


class PrefillOnly(tiny.CachedModel):
    """Applies the padding mask only in prefill."""

    def keeps(self, ids: Tensor, cache: list[tiny.LayerCache]) -> list[Any]:
        if ids.size(1) == cache[0].real.size(1):
            return super().keeps(ids, cache)
        return [tiny.causal_mask(cache[0].real, ids.size(1)) for _ in self.layers]


@GENERATING.fault("mask of ones")
def _(faulty: bool) -> Case:
    return tiny.decoder_case(Prompted(passes=not faulty))


@GENERATING.fault("given mask replaced by ones")
def _(faulty: bool) -> Case:
    model = Defaulting(passes=not faulty)
    return tiny.masked_case(model, causal=True, ids=tiny.left_padded(16, 9, 12))


@GENERATING.fault("not an argument of forward, a function", "BI PI")
def _(faulty: bool) -> Case:
    return generating(Renamed() if faulty else tiny.Model())


@GENERATING.fault("only in prefill, with a cache", "PC", "padding-visible step-differs")
def _(faulty: bool) -> Case:
    return tiny.decoder_case(PrefillOnly() if faulty else tiny.CachedModel(), step=tiny.cached_step)


# ── a batch of one ────────────────────────────────────────────────────────────────────────────

SINGLE = Family("padding mask skipped for a batch of one", after="transformers#46773")


def unless_single(real: Tensor, q_len: int) -> Tensor | None:
    """No padding mask for a batch of one."""
    return None if real.size(0) == 1 else tiny.padding_mask(real, q_len)


def causal_unless_single(real: Tensor, q_len: int) -> Tensor:
    """No padding mask for a batch of one."""
    return (
        tiny.causal_mask(real, q_len)
        if real.size(0) == 1
        else tiny.causal_padding_mask(real, q_len)
    )


def if_first_is_padded(real: Tensor, q_len: int) -> Tensor | None:
    """A padding mask only if the first sequence is padded."""
    return None if real[0].all() else tiny.padding_mask(real, q_len)


def keys_unless_single(real: Tensor) -> dict[str, Any]:
    """No key_padding_mask for a batch of one."""
    return {"key_padding_mask": None if real.size(0) == 1 else ~real}


def keys_always(real: Tensor) -> dict[str, Any]:
    """key_padding_mask."""
    return {"key_padding_mask": ~real}


@SINGLE.fault("bidirectional, one sequence, SDPA", "L PI P", "padding-visible mask-missing")
def _(faulty: bool) -> Case:
    mask = unless_single if faulty else tiny.padding_mask
    return tiny.encoder_case(tiny.Model([tiny.sdpa] * 2, mask), tiny.right_padded(9, size=14))


@SINGLE.fault("causal, left padding, only wrong alone", "BI", "padding-visible")
def _(faulty: bool) -> Case:
    return tiny.decoder_case(
        tiny.Model(mask=causal_unless_single if faulty else tiny.causal_padding_mask)
    )


@SINGLE.fault(
    "decided by the first sequence", "PI BI P", "padding-visible mask-missing order-of-batch"
)
def _(faulty: bool) -> Case:
    mask = if_first_is_padded if faulty else tiny.padding_mask
    return tiny.encoder_case(tiny.Model(mask=mask), tiny.right_padded(16, 9, 12))


@SINGLE.fault("nn.MultiheadAttention, layer 1", "PI P", "missing-in-layer padding-visible", layer=1)
def _(faulty: bool) -> Case:
    attend = keys_unless_single if faulty else keys_always
    return tiny.encoder_case(
        tiny.MultiheadModel(keys_always, attend), tiny.right_padded(9, size=14)
    )


# ── the encoder's mask in the decoder ─────────────────────────────────────────────────────────

CROSS = Family(
    "decoder that ignores the encoder's padding mask",
    after="transformers#36293",
    checks="PI P BI",
    causes="mask-missing padding-visible",
)


class TorchSeq2Seq(tiny.Base):
    """nn.TransformerEncoder and nn.TransformerDecoder, with or without memory_key_padding_mask."""

    def __init__(self, passes: bool) -> None:
        super().__init__()
        self.passes = passes
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(tiny.DIM, tiny.HEADS, 2 * tiny.DIM, 0.0, batch_first=True),
            1,
            enable_nested_tensor=False,
        )
        self.decoder = nn.TransformerDecoder(
            nn.TransformerDecoderLayer(tiny.DIM, tiny.HEADS, 2 * tiny.DIM, 0.0, batch_first=True), 2
        )

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        hidden = src == tiny.PAD
        memory = self.encoder(
            self.embed(src, tiny.column_positions(src)), src_key_padding_mask=hidden
        )
        x = self.decoder(
            self.embed(tgt, tiny.column_positions(tgt)),
            memory,
            tgt_mask=torch.ones(tgt.size(1), tgt.size(1)).triu(1).bool(),
            memory_key_padding_mask=hidden if self.passes else None,
        )
        return self.logits(x)


class WithSourceMask(nn.Module):
    """Takes the source mask, and passes it to the decoder or not."""

    def __init__(self, passes: bool) -> None:
        super().__init__()
        self.model = tiny.Seq2Seq()
        self.passes = passes

    def forward(self, src: Tensor, tgt: Tensor, src_mask: Tensor) -> Tensor:
        real = src_mask.bool()
        memory = self.model.encode(src, real)
        seen = real if self.passes else torch.ones(memory.shape[:2]).bool()
        return self.model.decode(tgt, memory, seen)


def given(passes: bool) -> Case:
    """The source's padding mask is an input; the padding has the id of an ordinary token."""
    src = tiny.right_padded(7, 13, 10)
    real = src != tiny.PAD
    inputs = {"src": torch.where(real, src, 7), "tgt": tiny.random_ids(3, 9).flip(1)}
    inputs["src_mask"] = real.long()
    expects = {"src": mw.padding(keep=real), "tgt": mw.causal()}
    return Case(tiny.initialize(WithSourceMask(passes)), inputs, expects)


def generate(passes: bool) -> Any:
    """Encodes once, and decodes growing prefixes of the target."""

    def run(model: tiny.Seq2Seq, src: Tensor, tgt: Tensor) -> Tensor:
        real = src != tiny.PAD
        memory = model.encode(src, real)
        seen = real if passes else torch.ones_like(real)
        grown = [model.decode(tgt[:, : n + 1], memory, seen)[:, -1:] for n in range(tgt.size(1))]
        return torch.cat(grown, 1)

    return run


@CROSS.fault("by hand, all decoder layers")
def _(faulty: bool) -> Case:
    model = tiny.Seq2Seq(cross_masks=[tiny.no_mask] * 2) if faulty else tiny.Seq2Seq()
    return tiny.seq2seq_case(model)


@CROSS.fault(
    "SDPA, decoder layer 1", causes="missing-in-layer padding-visible", layer="decoder.1.cross"
)
def _(faulty: bool) -> Case:
    model = (
        tiny.Seq2Seq(cross_masks=[tiny.padding_mask, tiny.no_mask], attend=tiny.sdpa)
        if faulty
        else tiny.Seq2Seq(attend=tiny.sdpa)
    )
    return tiny.seq2seq_case(model)


@CROSS.fault("nn.TransformerDecoder without memory_key_padding_mask")
def _(faulty: bool) -> Case:
    return tiny.seq2seq_case(TorchSeq2Seq(passes=not faulty))


@CROSS.fault("precomputed encoder output, mask of ones")
def _(faulty: bool) -> Case:
    return given(passes=not faulty)


@CROSS.fault("right in one pass, lost in generation", "X", "path-differs padding-visible")
def _(faulty: bool) -> Case:
    return tiny.seq2seq_case(tiny.Seq2Seq(), paths={"generate": generate(passes=not faulty)})


# ── an encoder without it ─────────────────────────────────────────────────────────────────────

ENCODER = Family(
    "encoder without a padding mask",
    after="bert4keras#387",
    checks="BI PI P",
    causes="mask-missing padding-visible",
)


class TorchEncoder(tiny.Base):
    """nn.TransformerEncoder, with or without src_key_padding_mask."""

    def __init__(self, passes: bool) -> None:
        super().__init__()
        self.passes = passes
        layer = nn.TransformerEncoderLayer(
            tiny.DIM, tiny.HEADS, 2 * tiny.DIM, 0.0, batch_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, ids: Tensor) -> Tensor:
        hidden = ids == tiny.PAD
        x = self.embed(ids, tiny.column_positions(ids)).masked_fill(hidden[..., None], 0.0)
        return self.logits(self.encoder(x, src_key_padding_mask=hidden if self.passes else None))


@ENCODER.fault("mask accepted and not used, SDPA", "L BI PI P")
def _(faulty: bool) -> Case:
    return tiny.masked_case(
        tiny.Model([tiny.sdpa] * 2, tiny.no_mask if faulty else tiny.padding_mask)
    )


@ENCODER.fault("encoder only, decoder correct", causes="missing-in-layer padding-visible")
def _(faulty: bool) -> Case:
    model = tiny.Seq2Seq(encoder_masks=[tiny.no_mask] * 2) if faulty else tiny.Seq2Seq()
    return tiny.seq2seq_case(model)


@ENCODER.fault("last layer of three, by hand", causes="missing-in-layer padding-visible", layer=2)
def _(faulty: bool) -> Case:
    mask = [tiny.padding_mask, tiny.padding_mask, tiny.no_mask] if faulty else tiny.padding_mask
    return tiny.encoder_case(tiny.Model([tiny.eager] * 3, mask))


@ENCODER.fault("nn.TransformerEncoder, padding set to 0 instead", "BI PI")
def _(faulty: bool) -> Case:
    return tiny.encoder_case(TorchEncoder(passes=not faulty))
