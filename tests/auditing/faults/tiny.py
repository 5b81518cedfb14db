"""Tiny Transformers whose attention, mask or positions a fault replaces.

`attend` is a function (q, k, v, **mask_args), with q, k and v of shape (B, H, T, D), or a class of
attention module. `Model` builds its masks from the real tokens; `Transformer` passes what `mask_args`
returns; `CachedModel` and `Decoder` have a KV cache; `Seq2Seq` is an encoder with a decoder.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import maskwright as mw
from maskwright.auditing.expectations import SubsetOf
from tests.auditing.faults.registry import Case

PAD, VOCAB, DIM, HEADS, MAX_LEN = 0, 48, 24, 2, 128

Attend = Any  # a function or a class of module
MaskMaker = Callable[[Tensor, int], Any]  # (real tokens (B, K), number of queries) -> mask
MaskArgs = Callable[..., dict[str, Any]]
M = TypeVar("M", bound=nn.Module)


# ── token ids ─────────────────────────────────────────────────────────────────────────────────


def random_ids(batch: int, length: int) -> Tensor:
    """Token ids without padding."""
    generator = torch.Generator().manual_seed(length)
    return torch.randint(1, VOCAB, (batch, length), generator=generator)


def right_padded(*lengths: int, size: int | None = None) -> Tensor:
    """Token ids of sequences of these lengths, padded on the right."""
    ids = random_ids(len(lengths), size or max(lengths))
    return ids * (torch.arange(ids.size(1)) < torch.tensor(lengths)[:, None])


def left_padded(*lengths: int) -> Tensor:
    """Token ids of sequences of these lengths, padded on the left."""
    ids = random_ids(len(lengths), max(lengths))
    return ids * (torch.arange(ids.size(1)).flip(0) < torch.tensor(lengths)[:, None])


def packed_inputs(*rows: Sequence[int], fill: int = 0) -> dict[str, Tensor]:
    """Ids and document ids of packed rows, given the lengths of the documents; -1 is padding."""
    documents = torch.tensor(
        [[n for n, size in enumerate(row) for _ in range(size)] + [-1] * fill for row in rows]
    )
    return {"ids": random_ids(*documents.shape) * (documents >= 0), "documents": documents}


# ── masks: True attends ───────────────────────────────────────────────────────────────────────


def causal(q_len: int, k_len: int | None = None, start: int = 0) -> Tensor:
    """(q, k): causal mask; the first query is at position `start`."""
    return torch.arange(k_len or q_len) <= start + torch.arange(q_len)[:, None]


def window(size: int, q_len: int, k_len: int | None = None, start: int = 0) -> Tensor:
    """(q, k): causal sliding window of `size` keys, the query included."""
    return causal(q_len, k_len, start) & ~causal(q_len, k_len, start - size)


def real_keys(ids: Tensor) -> Tensor:
    """(B, 1, 1, k): padding mask."""
    return (ids != PAD)[:, None, None, :]


def same_document(documents: Tensor) -> Tensor:
    """(B, 1, q, k): query and key belong to one document."""
    return (documents[:, None, :, None] == documents[:, None, None, :]) & real_keys(documents + 1)


def padding_mask(real: Tensor, q_len: int) -> Tensor:
    """Padding mask."""
    return real_keys(real)


def causal_mask(real: Tensor, q_len: int) -> Tensor:
    """Causal mask; the last query is at the last key."""
    return causal(q_len, real.size(1), real.size(1) - q_len)


def causal_padding_mask(real: Tensor, q_len: int) -> Tensor:
    """Causal mask with the padding mask."""
    return causal_mask(real, q_len) & real_keys(real)


def no_mask(real: Tensor, q_len: int) -> None:
    """No mask."""


def no_args(ids: Tensor) -> dict[str, Any]:
    """No arguments: the attention function builds its own mask."""
    return {}


def causal_args(ids: Tensor) -> dict[str, Any]:
    """Causal mask."""
    return {"keep": causal(ids.shape[1])}


def padding_args(ids: Tensor) -> dict[str, Any]:
    """Padding mask."""
    return {"keep": real_keys(ids)}


def causal_padding_args(ids: Tensor) -> dict[str, Any]:
    """Causal mask with the padding mask."""
    return {"keep": causal(ids.shape[1]) & real_keys(ids)}


def window_args(size: int) -> MaskArgs:
    """Sliding window."""
    return lambda ids: {"keep": window(size, ids.shape[1])}


def document_args(ids: Tensor, documents: Tensor) -> dict[str, Any]:
    """Causal mask within documents."""
    return {"keep": causal(ids.shape[1]) & same_document(documents)}


def document_ids(ids: Tensor, documents: Tensor) -> dict[str, Any]:
    """The document ids, from which the attention function builds its mask."""
    return {"documents": documents}


# ── positions ─────────────────────────────────────────────────────────────────────────────────


def column_positions(ids: Tensor, **_: Any) -> Tensor:
    """Column indices; padding counts."""
    return torch.arange(ids.size(1)).expand(ids.shape)


def real_positions(ids: Tensor, **_: Any) -> Tensor:
    """Indices among the real tokens; padding does not count."""
    return ((ids != PAD).cumsum(1) - 1).clamp(min=0)


def document_positions(ids: Tensor, documents: Tensor) -> Tensor:
    """Indices within documents."""
    columns = column_positions(ids)
    starts = F.pad(documents[:, 1:] != documents[:, :-1], (1, 0), value=True)
    return columns - (columns * starts).cummax(1).values


# ── attention ─────────────────────────────────────────────────────────────────────────────────


def scores(q: Tensor, k: Tensor) -> Tensor:
    """Scaled scores, (B, H, q, k)."""
    return q @ k.mT / q.shape[-1] ** 0.5


def min_value(x: Tensor) -> float:
    """Smallest finite value of the dtype."""
    return float(torch.finfo(x.dtype).min)


def eager(q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
    """Attention from its definition; a fully masked row gives zeros."""
    s = scores(q, k)
    if keep is None:
        return s.softmax(-1) @ v
    return s.masked_fill(~keep, min_value(s)).softmax(-1).masked_fill(~keep, 0.0) @ v


def sdpa(q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
    """Attention by F.scaled_dot_product_attention."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keep)


def is_causal(q: Tensor, k: Tensor, v: Tensor, **_: Any) -> Tensor:
    """SDPA with is_causal, which aligns the first query with the first key."""
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Rotary position embedding."""
    half = x.shape[-1] // 2
    angles = positions[..., None] / 10.0 ** (torch.arange(half) / half)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def additive(keep: Tensor, like: Tensor, fill: float | None = None) -> Tensor:
    """An additive mask: 0 where `keep`, else `fill`, by default the smallest finite value."""
    value = min_value(like) if fill is None else fill
    return torch.zeros(keep.shape, dtype=like.dtype).masked_fill(~keep, value)


class Attention(nn.Module):
    """Multi-head attention; `attend` is an argument or the method of a subclass."""

    def __init__(self, heads: int = HEADS, attend: Attend = None) -> None:
        super().__init__()
        self.heads, self.function = heads, attend
        self.q, self.k, self.v, self.out = (nn.Linear(DIM, DIM, bias=False) for _ in range(4))

    def split(self, x: Tensor) -> Tensor:
        """(B, T, C) to (B, H, T, C / H)."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **mask_args: Any) -> Tensor:
        return self.function(q, k, v, **mask_args)

    def forward(
        self, x: Tensor, memory: Tensor | None = None, cache: Any = None, **mask_args: Any
    ) -> Tensor:
        source = x if memory is None else memory
        q, k, v = self.split(self.q(x)), self.split(self.k(source)), self.split(self.v(source))
        if cache is not None:
            k, v = cache.update(k, v)
        return self.out(self.attend(q, k, v, **mask_args).transpose(1, 2).flatten(2))


class MultiheadAttention(nn.Module):
    """nn.MultiheadAttention; a subclass makes its mask arguments."""

    need_weights = False

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(DIM, heads, batch_first=True)

    def masks(self, **mask_args: Any) -> dict[str, Any]:
        return mask_args

    def forward(self, x: Tensor, **mask_args: Any) -> Tensor:
        masks = self.masks(**mask_args)
        return self.inner(x, x, x, need_weights=self.need_weights, **masks)[0]


class Layer(nn.Module):
    """Pre-LN block: self-attention, cross-attention to a memory if given, MLP."""

    def __init__(self, attend: Attend = eager, heads: int = HEADS, cross: Attend = None) -> None:
        super().__init__()
        is_module = isinstance(attend, type)
        self.attention = attend(heads) if is_module else Attention(heads, attend)
        self.cross = None if cross is None else Attention(heads, cross)
        self.ln_1, self.ln_cross, self.ln_2 = (nn.LayerNorm(DIM) for _ in range(3))
        self.mlp = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))

    def forward(
        self, x: Tensor, memory: Tensor | None = None, memory_keep: Any = None, **mask_args: Any
    ) -> Tensor:
        x = x + self.attention(self.ln_1(x), **mask_args)
        if self.cross is not None:
            x = x + self.cross(self.ln_cross(x), memory=memory, keep=memory_keep)
        return x + self.mlp(self.ln_2(x))


# ── models ────────────────────────────────────────────────────────────────────────────────────


class Base(nn.Module):
    """Token and position embeddings, final layer norm and LM head."""

    def __init__(self) -> None:
        super().__init__()
        self.token_embedding = nn.Embedding(VOCAB, DIM)
        self.position_embedding = nn.Embedding(MAX_LEN, DIM)
        self.norm, self.lm_head = nn.LayerNorm(DIM), nn.Linear(DIM, VOCAB, bias=False)

    def embed(self, ids: Tensor, positions: Tensor) -> Tensor:
        return self.token_embedding(ids) + self.position_embedding(positions)

    def logits(self, x: Tensor) -> Tensor:
        return self.lm_head(self.norm(x))


class Model(Base):
    """Ids to logits. The real tokens are the ids other than 0, or `attention_mask`.

    `attends` has one function per layer; `mask` is one for all layers, or one per layer.
    """

    def __init__(
        self,
        attends: Sequence[Attend] = (eager, eager),
        mask: MaskMaker | Sequence[MaskMaker] = causal_padding_mask,
        positions: Callable[[Tensor], Tensor] = real_positions,
        heads: int = HEADS,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(attend, heads) for attend in attends)
        self.masks = [mask] * len(attends) if callable(mask) else list(mask)
        self.positions = positions

    def run_layers(self, x: Tensor, real: Tensor) -> Tensor:
        for layer, mask in zip(self.layers, self.masks, strict=True):
            x = layer(x, keep=mask(real, x.size(1)))
        return x

    def forward(
        self,
        ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        real = ids != PAD if attention_mask is None else attention_mask
        x = self.embed(ids, self.positions(real) if position_ids is None else position_ids)
        return self.logits(self.run_layers(x, real))


class LayerCache:
    """Keys and values of one layer, and the real tokens among them."""

    k: Tensor | None = None
    v: Tensor | None = None
    real: Tensor | None = None

    def append_real(self, real: Tensor) -> None:
        self.real = real if self.real is None else torch.cat([self.real, real], 1)

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        self.k = k if self.k is None else torch.cat([self.k, k], 2)
        self.v = v if self.v is None else torch.cat([self.v, v], 2)
        return self.k, self.v


class CachedModel(Model):
    """A `Model` with a KV cache: a list with one `LayerCache` per layer."""

    cache_type: type[LayerCache] = LayerCache

    def forward(  # type: ignore[override]
        self, ids: Tensor, cache: list[LayerCache] | None = None
    ) -> tuple[Tensor, list[LayerCache]]:
        if cache is None:
            cache = [self.cache_type() for _ in self.layers]
        cache = [copy.copy(own) for own in cache]
        for own in cache:
            own.append_real(ids != PAD)
        x = self.embed(ids, self.positions(cache[0].real)[:, -ids.size(1) :])
        for layer, keep, own in zip(self.layers, self.keeps(ids, cache), cache, strict=True):
            x = layer(x, keep=keep, cache=own)
        return self.logits(x), cache

    def keeps(self, ids: Tensor, cache: list[LayerCache]) -> list[Any]:
        """The mask of each layer."""
        return [mask(cache[0].real, ids.size(1)) for mask in self.masks]


def cached_step(model: Any, piece: Tensor, state: Any) -> tuple[Tensor, Any]:
    """Decode the next tokens of a `CachedModel`."""
    return model(piece, cache=state)


class MultiheadModel(Base):
    """Layers of nn.MultiheadAttention; `masks` makes the mask arguments of each layer."""

    def __init__(
        self, *masks: Callable[[Tensor], dict[str, Any]], batch_first: bool = True
    ) -> None:
        super().__init__()
        self.masks = masks
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "attention": nn.MultiheadAttention(DIM, HEADS, batch_first=batch_first),
                    "norm": nn.LayerNorm(DIM),
                    "mlp": nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, DIM), nn.GELU()),
                }
            )
            for _ in masks
        )

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids, real_positions(ids))
        for layer, masks in zip(self.layers, self.masks, strict=True):
            y = layer["norm"](x)
            x = x + layer["attention"](y, y, y, need_weights=False, **masks(ids != PAD))[0]
            x = x + layer["mlp"](x)
        return self.logits(x)


class Seq2Seq(Base):
    """Encoder and decoder; the masks of each layer are made from the real source tokens."""

    def __init__(
        self,
        encoder_masks: Sequence[MaskMaker] = (padding_mask, padding_mask),
        cross_masks: Sequence[MaskMaker] = (padding_mask, padding_mask),
        attend: Attend = eager,
    ) -> None:
        super().__init__()
        self.encoder = nn.ModuleList(Layer(attend) for _ in encoder_masks)
        self.decoder = nn.ModuleList(Layer(attend, cross=attend) for _ in cross_masks)
        self.encoder_masks, self.cross_masks = encoder_masks, cross_masks

    def encode(self, src: Tensor, real: Tensor) -> Tensor:
        x = self.embed(src, real_positions(real))
        for layer, mask in zip(self.encoder, self.encoder_masks, strict=True):
            x = layer(x, keep=mask(real, src.size(1)))
        return x

    def decode(self, tgt: Tensor, memory: Tensor, real: Tensor) -> Tensor:
        x = self.embed(tgt, column_positions(tgt))
        for layer, mask in zip(self.decoder, self.cross_masks, strict=True):
            keep = mask(real, tgt.size(1))
            x = layer(x, memory, keep, keep=causal(tgt.size(1)))
        return self.logits(x)

    def forward(self, src: Tensor, tgt: Tensor, src_mask: Tensor | None = None) -> Tensor:
        real = src != PAD if src_mask is None else src_mask.bool()
        return self.decode(tgt, self.encode(src, real), real)


class Layers(Base):
    """A stack of layers; `attend` is one for all of them, or a list with one per layer."""

    def __init__(self, attend: Attend | list[Attend], layers: int = 2, heads: int = HEADS) -> None:
        super().__init__()
        attends = attend if isinstance(attend, list) else [attend] * layers
        self.layers = nn.ModuleList(Layer(attend, heads) for attend in attends)


class Transformer(Layers):
    """Ids to logits; `route` names one of several code paths of the attention function."""

    def __init__(
        self,
        attend: Attend | list[Attend],
        mask_args: MaskArgs = causal_args,
        positions: Callable[..., Tensor] = column_positions,
        layers: int = 2,
        heads: int = HEADS,
    ) -> None:
        super().__init__(attend, layers, heads)
        self.mask_args, self.positions = mask_args, positions

    def forward(self, ids: Tensor, route: str | None = None, **more: Any) -> Tensor:
        args = self.mask_args(ids, **more)
        if route is not None:
            args["route"] = route
        x = self.embed(ids, self.positions(ids, **more))
        for layer in self.layers:
            x = layer(x, **args)
        return self.logits(x)


@dataclass
class GrowingCache:
    """Keys and values of one layer; only the last `max_len` are kept."""

    k: Tensor | None = None
    v: Tensor | None = None
    max_len: int | None = None

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        k = k if self.k is None else torch.cat([self.k, k], 2)
        v = v if self.v is None else torch.cat([self.v, v], 2)
        first = 0 if self.max_len is None else max(k.shape[2] - self.max_len, 0)
        self.k, self.v = k[:, :, first:], v[:, :, first:]
        return k, v


@dataclass
class StaticCache:
    """Keys and values of one layer in slots allocated beforehand; unused slots hold zeros."""

    k: Tensor
    v: Tensor
    used: int = 0

    def update(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        stop = self.used + k.shape[2]
        self.k, self.v = self.k.clone(), self.v.clone()
        self.k[:, :, self.used : stop], self.v[:, :, self.used : stop] = k, v
        self.used = stop
        return self.k, self.v


@dataclass
class DecoderCache:
    """One cache per layer, and the real tokens so far, (B, K)."""

    layers: list[Any]
    real: Tensor


class Decoder(Layers):
    """A decoder with a KV cache. `attend` gets `start`, the position of the piece, and `real`."""

    def __init__(
        self,
        attend: Attend | list[Attend],
        *,
        padded: bool = False,
        slots: int | None = None,
        max_len: int | None = None,
    ) -> None:
        super().__init__(attend)
        self.padded, self.slots, self.max_len = padded, slots, max_len

    def new_cache(self, batch: int) -> DecoderCache:
        real = torch.zeros(batch, 0, dtype=torch.bool)
        if self.slots is None:
            return DecoderCache([GrowingCache(max_len=self.max_len) for _ in self.layers], real)
        empty = torch.zeros(batch, HEADS, self.slots, DIM // HEADS, dtype=self.norm.weight.dtype)
        return DecoderCache([StaticCache(empty, empty) for _ in self.layers], real)

    def forward(
        self, ids: Tensor, cache: DecoderCache | None = None
    ) -> tuple[Tensor, DecoderCache]:
        if cache is None:  # a single pass needs no slots
            real = ids.new_zeros(len(ids), 0).bool()
            cache = DecoderCache([GrowingCache() for _ in self.layers], real)
        start = cache.real.shape[1]
        real = torch.cat([cache.real, (ids != PAD) | (not self.padded)], 1)
        caches = [type(own)(**vars(own)) for own in cache.layers]
        x = self.embed(ids, real_positions(real)[:, start:])
        for layer, own in zip(self.layers, caches, strict=True):
            x = layer(x, cache=own, start=start, real=real)
        return self.logits(x), DecoderCache(caches, real)


def decoder_step(model: Decoder, piece: Tensor, state: Any) -> tuple[Tensor, Any]:
    """Decode the next tokens of a `Decoder`."""
    return model(piece, model.new_cache(len(piece)) if state is None else state)


def cached_eager(q: Tensor, k: Tensor, v: Tensor, start: int, real: Tensor) -> Tensor:
    """Real keys up to the query; the cache may have unused slots behind them."""
    used = F.pad(real, (0, k.shape[2] - real.shape[1]))
    return eager(q, k, v, causal(q.shape[2], k.shape[2], start) & used[:, None, None])


def initialize(model: M) -> M:
    """Set weights of ordinary size, always the same, and eval mode."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                weight.normal_(std=0.25, generator=generator)
            elif name.endswith("bias"):
                weight.normal_(std=0.1, generator=generator)
            else:
                weight.fill_(1.0)
    return model.eval()


# ── audited cases ─────────────────────────────────────────────────────────────────────────────


def some(mask: mw.Mask) -> SubsetOf:
    """The expectation of layers that choose keys within a mask."""
    return SubsetOf(mask)


def expected_mask(ids: Tensor, *, causal: bool = True) -> mw.Mask:
    """The mask of a decoder or an encoder of padded ids."""
    padding = mw.padding(ids=ids, pad_id=PAD)
    if bool((ids != PAD).all()):
        return mw.causal() if causal else mw.everything()
    return mw.causal() & padding if causal else padding


def encoder_case(
    model: nn.Module, ids: Tensor | None = None, expects: Any = None, **options: Any
) -> Case:
    """A bidirectional model of a batch of ids, padded on the right by default."""
    ids = right_padded(9, 16, 12) if ids is None else ids
    expects = expected_mask(ids, causal=False) if expects is None else expects
    return Case(initialize(model), ids, expects, options)


def decoder_case(
    model: nn.Module, ids: Tensor | None = None, expects: Any = None, **options: Any
) -> Case:
    """A causal model of a batch of ids, padded on the left by default."""
    ids = left_padded(16, 9, 12) if ids is None else ids
    expects = expected_mask(ids) if expects is None else expects
    return Case(initialize(model), ids, expects, options)


def masked_case(
    model: nn.Module,
    dtype: torch.dtype = torch.long,
    *,
    causal: bool = False,
    ids: Tensor | None = None,
) -> Case:
    """A model that takes `attention_mask`; the padding has the id of an ordinary token."""
    ids = right_padded(9, 16, 12) if ids is None else ids
    real = ids != PAD
    padding = mw.padding(keep=real)
    inputs = {"ids": torch.where(real, ids, 7), "attention_mask": real.to(dtype)}
    return Case(initialize(model), inputs, mw.causal() & padding if causal else padding)


def seq2seq_case(model: nn.Module, src: Tensor | None = None, **options: Any) -> Case:
    """An encoder with a decoder; the source is padded, the target is not."""
    src = right_padded(7, 13, 10) if src is None else src
    inputs = {"src": src, "tgt": random_ids(src.size(0), 10).flip(1)}
    expects = {"src": mw.padding(ids=src, pad_id=PAD), "tgt": mw.causal()}
    return Case(initialize(model), inputs, expects, options)


def case(
    attend: Attend | list[Attend],
    inputs: Any,
    expects: Any = None,
    *,
    mask_args: MaskArgs | None = None,
    positions: Callable[..., Tensor] | None = None,
    layers: int = 2,
    heads: int = HEADS,
    route: str | None = None,
    **options: Any,
) -> Case:
    """A `Transformer`. Ids that hold a 0 are padded, and their positions count real tokens.

    `route` is another code path of the attention, which the audit compares.
    """
    if route is not None:
        options["paths"] = {route: lambda model, *args, **more: model(*args, **more, route=route)}
    if isinstance(inputs, Tensor) and bool((inputs == PAD).any()):
        options["pad_id"] = PAD
    padded = "pad_id" in options
    expects = expected_mask(inputs) if expects is None else expects
    mask_args = mask_args or (causal_padding_args if padded else causal_args)
    positions = positions or (real_positions if padded else column_positions)
    model = Transformer(attend, mask_args, positions, layers, heads)
    return Case(initialize(model), inputs, expects, options)


def left_padded_case(attend: Any, *lengths: int, **more: Any) -> Case:
    """A decoder of sequences padded on the left."""
    return case(attend, left_padded(*lengths), **more)


def packed_case(attend: Any, *rows: list[int], fill: int = 0, **more: Any) -> Case:
    """A decoder of packed documents."""
    inputs = packed_inputs(*rows, fill=fill)
    expects = mw.causal() & mw.documents(ids=inputs["documents"])
    defaults = {"mask_args": document_args, "positions": document_positions}
    return case(attend, inputs, expects, **(defaults | more))


def cached_case(
    attend: Attend | list[Attend],
    ids: Tensor,
    expects: Any = None,
    *,
    slots: int | None = None,
    max_len: int | None = None,
) -> Case:
    """A `Decoder` with a KV cache. Ids that hold a 0 are padded."""
    padded = bool((ids == PAD).any())
    expects = expected_mask(ids) if expects is None else expects
    model = Decoder(attend, padded=padded, slots=slots, max_len=max_len)
    options = {"step": decoder_step} | ({"pad_id": PAD} if padded else {})
    return Case(initialize(model), ids, expects, options)
