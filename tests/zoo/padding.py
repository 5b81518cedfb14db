"""Padding masks that exist, and do not arrive where they are needed."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

import maskwright as mw
from tests.zoo.case import Subject, plant
from tests.zoo.layers import (
    DIM,
    HEADS,
    PAD,
    Base,
    Build,
    Decoder,
    Model,
    Multihead,
    Slot,
    Translator,
    bidirectional,
    by_hand,
    by_sdpa,
    causal,
    counted,
    left,
    masked,
    numbered,
    past,
    reading,
    right,
    settled,
    step,
    translating,
    writing,
)

# ── generation without the padding mask ───────────────────────────────────────────────────────

GENERATING = "generation without the padding mask"


class Prompted(nn.Module):
    """Logits of left-padded prompts, as generation begins; `passes` says whether with their mask."""

    def __init__(self, passes: bool) -> None:
        super().__init__()
        self.model = Model()
        self.passes = passes

    def forward(self, ids: Tensor) -> Tensor:
        real = ids != PAD
        seen = real if self.passes else torch.ones_like(real)
        return self.model(ids, seen, counted(real))


class Defaulting(nn.Module):
    """Takes a mask, and makes its own for the model, in which all is real."""

    def __init__(self, passes: bool) -> None:
        super().__init__()
        self.model = Model()
        self.passes = passes

    def forward(self, ids: Tensor, attention_mask: Tensor) -> Tensor:
        inputs = {"ids": ids, "position_ids": counted(attention_mask)}
        mask = attention_mask if self.passes else torch.ones_like(ids)
        return self.model(**inputs, attention_mask=mask)


class Renamed(Model):
    """A model whose mask has another name."""

    def forward(  # type: ignore[override]
        self, ids: Tensor, mask: Tensor | None = None, position_ids: Tensor | None = None
    ) -> Tensor:
        seen = torch.ones_like(ids) if mask is None else mask
        return super().forward(ids, seen, position_ids)


def generating(kind: type[Model]) -> Build:
    """A function that hands on only what the model's forward has a name for."""
    ids = left(16, 9, 12)
    expects = mw.causal() & mw.padding(ids=ids, pad_id=PAD)

    def build() -> Subject:
        model = settled(kind())
        known = inspect.signature(model.forward).parameters

        def logits(ids: Tensor) -> Tensor:
            real = ids != PAD
            given = {"ids": ids, "attention_mask": real, "position_ids": counted(real)}
            return model(**{name: x for name, x in given.items() if name in known})

        return Subject(logits, ids, expects)

    return build


class Forgetful(Decoder):
    """The first pass has the mask; after it, tokens see all that the cache holds."""

    def keeps(self, ids: Tensor, cache: list[Slot]) -> list[Any]:
        if ids.size(1) == cache[0].real.size(1):
            return super().keeps(ids, cache)
        return [past(cache[0].real, ids.size(1)) for _ in self.layers]


plant(
    GENERATING,
    "prompts run with a mask of ones",
    writing(lambda: Prompted(passes=False)),
    writing(lambda: Prompted(passes=True)),
    after="TransformerLens#999",
    causes=("padding-visible",),
    checks="BI PI P",
)
plant(
    GENERATING,
    "the given mask is replaced by ones",
    masked(lambda: Defaulting(passes=False), causal=True, ids=left(16, 9, 12)),
    masked(lambda: Defaulting(passes=True), causal=True, ids=left(16, 9, 12)),
    after="TransformerLens#999",
    causes=("padding-visible",),
    checks="BI PI P",
)
plant(
    GENERATING,
    "dropped with the arguments that the model has no name for, a function",
    generating(Renamed),
    generating(Model),
    after="TransformerLens#999",
    causes=("padding-visible",),
    checks="BI PI",
)
plant(
    GENERATING,
    "only the first pass has it, with a cache",
    writing(lambda: Forgetful(), step=step),
    writing(lambda: Decoder(), step=step),
    after="TransformerLens#999",
    causes=("padding-visible", "step-differs"),
    checks="PC",
)

# ── a batch of one ────────────────────────────────────────────────────────────────────────────

SINGLE = "padding mask skipped for a batch of one"


def unless_single(real: Tensor, new: int) -> Tensor | None:
    """A batch of one is thought to need no padding."""
    return None if real.size(0) == 1 else bidirectional(real, new)


def causal_unless_single(real: Tensor, new: int) -> Tensor:
    """A batch of one is causal only."""
    return past(real, new) if real.size(0) == 1 else causal(real, new)


def if_the_first_is_padded(real: Tensor, new: int) -> Tensor | None:
    """Looks at the first sequence to see whether a mask is needed."""
    return None if real[0].all() else bidirectional(real, new)


def keys_unless_single(real: Tensor) -> dict[str, Any]:
    """A batch of one has no padding mask."""
    return {"key_padding_mask": None if real.size(0) == 1 else ~real}


def keys_always(real: Tensor) -> dict[str, Any]:
    """Every batch has a padding mask."""
    return {"key_padding_mask": ~real}


plant(
    SINGLE,
    "in both directions, one padded sequence, SDPA",
    reading(lambda: Model([by_sdpa] * 2, unless_single), right(9, size=14)),
    reading(lambda: Model([by_sdpa] * 2, bidirectional), right(9, size=14)),
    after="transformers#46773",
    causes=("padding-visible", "mask-missing"),
    checks="L PI P",
)
plant(
    SINGLE,
    "causal with left padding: right in the batch, wrong alone",
    writing(lambda: Model(mask=causal_unless_single)),
    writing(lambda: Model(mask=causal)),
    after="transformers#46773",
    causes=("padding-visible",),
    checks="BI",
)
plant(
    SINGLE,
    "decided by the first sequence, for all",
    reading(lambda: Model(mask=if_the_first_is_padded), right(16, 9, 12)),
    reading(lambda: Model(mask=bidirectional), right(16, 9, 12)),
    after="transformers#46773",
    causes=("padding-visible", "mask-missing", "order-of-batch"),
    checks="PI BI P",
)
plant(
    SINGLE,
    "nn.MultiheadAttention, one padded sequence, second layer of two",
    reading(lambda: Multihead(keys_always, keys_unless_single), right(9, size=14)),
    reading(lambda: Multihead(keys_always, keys_always), right(9, size=14)),
    after="transformers#46773",
    causes=("missing-in-layer", "padding-visible"),
    layer="layers.1.attention",
    checks="PI P",
)

# ── the encoder's mask in the decoder ─────────────────────────────────────────────────────────

CROSS = "decoder that ignores the encoder's padding mask"


def no_mask(real: Tensor, new: int) -> None:
    """Everything may be seen."""


class Whole(Base):
    """nn.Transformer; `passes` says whether the decoder is told of the source's padding."""

    def __init__(self, passes: bool) -> None:
        super().__init__()
        self.passes = passes
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(DIM, HEADS, 2 * DIM, 0.0, batch_first=True),
            1,
            enable_nested_tensor=False,
        )
        self.decoder = nn.TransformerDecoder(
            nn.TransformerDecoderLayer(DIM, HEADS, 2 * DIM, 0.0, batch_first=True), 2
        )

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        hidden = src == PAD
        memory = self.encoder(self.start(src, numbered(src)), src_key_padding_mask=hidden)
        x = self.decoder(
            self.start(tgt, numbered(tgt)),
            memory,
            tgt_mask=torch.ones(tgt.size(1), tgt.size(1)).triu(1).bool(),
            memory_key_padding_mask=hidden if self.passes else None,
        )
        return self.finish(x)


class Given(nn.Module):
    """Runs the encoder itself, and the decoder on what it gave; takes the source's mask."""

    def __init__(self, passes: bool) -> None:
        super().__init__()
        self.model = Translator()
        self.passes = passes

    def forward(self, src: Tensor, tgt: Tensor, src_mask: Tensor) -> Tensor:
        real = src_mask.bool()
        memory = self.model.encode(src, real)
        seen = real if self.passes else torch.ones(memory.shape[:2]).bool()
        return self.model.decode(tgt, memory, seen)


def given(passes: bool) -> Build:
    """The source's mask is among the inputs; under it stand tokens like any others."""
    src = right(7, 13, 10)
    real = src != PAD
    inputs = {
        "src": torch.where(real, src, 7),
        "tgt": right(9, 9, 9).flip(1),
        "src_mask": real.long(),
    }
    expects = {"src": mw.padding(keep=real), "tgt": mw.causal()}
    return lambda: Subject(settled(Given(passes)), inputs, expects)


def generate(passes: bool) -> Any:
    """Encodes once, and then runs longer and longer targets."""

    def run(model: Translator, src: Tensor, tgt: Tensor) -> Tensor:
        real = src != PAD
        memory = model.encode(src, real)
        seen = real if passes else torch.ones_like(real)
        grown = [model.decode(tgt[:, : n + 1], memory, seen)[:, -1:] for n in range(tgt.size(1))]
        return torch.cat(grown, 1)

    return run


plant(
    CROSS,
    "by hand, all decoder layers",
    translating(lambda: Translator(cross_masks=[no_mask] * 2)),
    translating(lambda: Translator()),
    after="transformers#36293",
    causes=("mask-missing", "padding-visible"),
    checks="PI P BI",
)
plant(
    CROSS,
    "SDPA, second decoder layer of two",
    translating(lambda: Translator(cross_masks=[bidirectional, no_mask], attend=by_sdpa)),
    translating(lambda: Translator(attend=by_sdpa)),
    after="transformers#36293",
    causes=("missing-in-layer", "padding-visible"),
    layer="decoder.1.cross",
    checks="PI P BI",
)
plant(
    CROSS,
    "nn.TransformerDecoder without memory_key_padding_mask",
    translating(lambda: Whole(passes=False)),
    translating(lambda: Whole(passes=True)),
    after="transformers#36293",
    causes=("mask-missing", "padding-visible"),
    checks="PI P BI",
)
plant(
    CROSS,
    "encoder run beforehand, the given mask replaced by ones",
    given(passes=False),
    given(passes=True),
    after="transformers#36293",
    causes=("mask-missing", "padding-visible"),
    checks="PI P BI",
)
plant(
    CROSS,
    "right in one pass, lost in generation",
    translating(lambda: Translator(), paths={"generate": generate(passes=False)}),
    translating(lambda: Translator(), paths={"generate": generate(passes=True)}),
    after="transformers#36293",
    causes=("path-differs", "padding-visible"),
    checks="X",
)

# ── an encoder without it ─────────────────────────────────────────────────────────────────────

ENCODER = "encoder without a padding mask"


class Stack(Base):
    """nn.TransformerEncoder; `passes` says whether it is told of the padding."""

    def __init__(self, passes: bool) -> None:
        super().__init__()
        self.passes = passes
        layer = nn.TransformerEncoderLayer(DIM, HEADS, 2 * DIM, 0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, ids: Tensor) -> Tensor:
        hidden = ids == PAD
        x = self.start(ids, numbered(ids)).masked_fill(hidden[..., None], 0.0)
        return self.finish(self.encoder(x, src_key_padding_mask=hidden if self.passes else None))


plant(
    ENCODER,
    "the mask is taken and never used, SDPA",
    masked(lambda: Model([by_sdpa] * 2, no_mask)),
    masked(lambda: Model([by_sdpa] * 2, bidirectional)),
    after="bert4keras#387",
    causes=("mask-missing", "padding-visible"),
    checks="L BI PI P",
)
plant(
    ENCODER,
    "the decoder has it, the encoder has not",
    translating(lambda: Translator(encoder_masks=[no_mask] * 2)),
    translating(lambda: Translator()),
    after="bert4keras#387",
    causes=("missing-in-layer", "padding-visible"),
    checks="BI PI P",
)
plant(
    ENCODER,
    "last layer of three, by hand",
    reading(lambda: Model([by_hand] * 3, [bidirectional, bidirectional, no_mask])),
    reading(lambda: Model([by_hand] * 3, bidirectional)),
    after="bert4keras#387",
    causes=("missing-in-layer", "padding-visible"),
    layer="layers.2.attention",
    checks="BI PI P",
)
plant(
    ENCODER,
    "nn.TransformerEncoder, padding set to 0 instead",
    reading(lambda: Stack(passes=False)),
    reading(lambda: Stack(passes=True)),
    after="bert4keras#387",
    causes=("mask-missing", "padding-visible"),
    checks="BI PI",
)
