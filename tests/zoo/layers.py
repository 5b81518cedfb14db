"""A small Transformer whose attention, masks and positions can be swapped, and the usual subjects.

Three things can be planted: `attend`, which mixes values; `mask`, which says what may be seen, from
which tokens are real; `positions`, which counts them.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

import maskwright as mw
from tests.zoo.case import Subject

PAD, VOCAB, DIM, HEADS, LONGEST = 0, 48, 24, 2, 96

Attend = Callable[[Tensor, Tensor, Tensor, Any], Tensor]  # queries, keys, values, mask
MaskMaker = Callable[[Tensor, int], Any]  # which tokens are real (B, K), how many are queries
Positions = Callable[[Tensor], Tensor]  # which tokens are real (B, K)
Build = Callable[[], Subject]
M = TypeVar("M", bound=nn.Module)


# ── tokens ────────────────────────────────────────────────────────────────────────────────────


def right(*lengths: int, size: int | None = None) -> Tensor:
    """Ids of sequences of these lengths, filled up on the right."""
    ids = _ids(len(lengths), size or max(lengths))
    return ids * (torch.arange(ids.size(1)) < torch.tensor(lengths)[:, None])


def left(*lengths: int, size: int | None = None) -> Tensor:
    """Ids of sequences of these lengths, filled up on the left."""
    ids = _ids(len(lengths), size or max(lengths))
    return ids * (torch.arange(ids.size(1)).flip(0) < torch.tensor(lengths)[:, None])


def _ids(batch: int, size: int) -> Tensor:
    return torch.randint(1, VOCAB, (batch, size), generator=torch.Generator().manual_seed(1))


# ── masks: True may see ───────────────────────────────────────────────────────────────────────


def bidirectional(real: Tensor, new: int) -> Tensor:
    """All real keys."""
    return real.bool()[:, None, None, :]


def past(real: Tensor, new: int) -> Tensor:
    """Keys up to the query, (new, K): the last query sits at the last key."""
    keys = torch.arange(real.size(1))
    return keys <= keys[-new:, None]


def causal(real: Tensor, new: int) -> Tensor:
    """Real keys up to the query."""
    return past(real, new) & bidirectional(real, new)


# ── positions ─────────────────────────────────────────────────────────────────────────────────


def counted(real: Tensor) -> Tensor:
    """The first real token is 0, wherever it stands."""
    return (real.long().cumsum(-1) - 1).clamp(min=0)


def numbered(real: Tensor) -> Tensor:
    """The first column is 0."""
    return torch.arange(real.size(1)).expand(real.shape)


# ── attention ─────────────────────────────────────────────────────────────────────────────────


def scores_of(q: Tensor, k: Tensor) -> Tensor:
    """Scaled products of queries and keys."""
    return q @ k.transpose(-1, -2) / q.size(-1) ** 0.5


def lowest(x: Tensor) -> float:
    """The lowest number of a dtype."""
    return torch.finfo(x.dtype).min


def by_hand(q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
    """Attention as textbooks write it."""
    scores = scores_of(q, k)
    if keep is not None:
        scores = scores.masked_fill(~keep, lowest(scores))
    return scores.softmax(-1) @ v


def by_sdpa(q: Tensor, k: Tensor, v: Tensor, keep: Tensor | None) -> Tensor:
    """Attention by PyTorch's function."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=keep)


class Slot:
    """The keys and values of one layer's past, and which tokens of it are real."""

    k: Tensor | None = None
    v: Tensor | None = None
    real: Tensor | None = None

    def note(self, real: Tensor) -> Tensor:
        """Take in which of the new tokens are real, and say it of all."""
        self.real = real if self.real is None else torch.cat([self.real, real], 1)
        return self.real

    def add(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Take in the new keys and values, and give all."""
        self.k = k if self.k is None else torch.cat([self.k, k], 2)
        self.v = v if self.v is None else torch.cat([self.v, v], 2)
        return self.k, self.v


class Attention(nn.Module):
    """Multi-head attention, on itself or on a memory; `attend` does the mixing."""

    def __init__(self, attend: Attend = by_hand, heads: int = HEADS) -> None:
        super().__init__()
        self.attend, self.heads = attend, heads
        self.q, self.k, self.v, self.out = (nn.Linear(DIM, DIM, bias=False) for _ in range(4))

    def split(self, x: Tensor) -> Tensor:
        """(B, T, C) to (B, H, T, C / H)."""
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(
        self, x: Tensor, keep: Any = None, memory: Tensor | None = None, slot: Slot | None = None
    ) -> Tensor:
        source = x if memory is None else memory
        q, k, v = self.split(self.q(x)), self.split(self.k(source)), self.split(self.v(source))
        if slot is not None:
            k, v = slot.add(k, v)
        return self.out(self.attend(q, k, v, keep).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """Attention, attention on a memory if there is one, and a small network; norms come first."""

    def __init__(self, attend: Attend = by_hand, cross: Attend | None = None, heads: int = HEADS):
        super().__init__()
        self.attention = Attention(attend, heads)
        self.cross = None if cross is None else Attention(cross, heads)
        self.norms = nn.ModuleList(nn.LayerNorm(DIM) for _ in range(3))
        self.mlp = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))

    def forward(
        self,
        x: Tensor,
        keep: Any,
        slot: Slot | None = None,
        memory: Tensor | None = None,
        memory_keep: Any = None,
    ) -> Tensor:
        x = x + self.attention(self.norms[0](x), keep, slot=slot)
        if self.cross is not None:
            x = x + self.cross(self.norms[1](x), memory_keep, memory)
        return x + self.mlp(self.norms[2](x))


# ── models ────────────────────────────────────────────────────────────────────────────────────


class Base(nn.Module):
    """What every model has: an embedding, positions, a norm and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(VOCAB, DIM), nn.Embedding(LONGEST, DIM)
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, VOCAB, bias=False)

    def start(self, ids: Tensor, places: Tensor) -> Tensor:
        return self.embed(ids) + self.place(places)

    def finish(self, x: Tensor) -> Tensor:
        return self.head(self.norm(x))


class Model(Base):
    """Ids to logits. Which tokens are real is told by the ids, or by `attention_mask`.

    `mask` is one for all layers, or one for each; `attends` has one for each layer.
    """

    def __init__(
        self,
        attends: Sequence[Attend] = (by_hand, by_hand),
        mask: MaskMaker | Sequence[MaskMaker] = causal,
        positions: Positions = counted,
        heads: int = HEADS,
    ) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(attend, heads=heads) for attend in attends)
        self.masks = [mask] * len(attends) if callable(mask) else list(mask)
        self.positions = positions

    def forward(
        self,
        ids: Tensor,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
    ) -> Tensor:
        real = ids != PAD if attention_mask is None else attention_mask
        x = self.start(ids, self.positions(real) if position_ids is None else position_ids)
        for layer, mask in zip(self.layers, self.masks, strict=True):
            x = layer(x, mask(real, ids.size(1)))
        return self.finish(x)


class Decoder(Model):
    """The same with a cache: a list with a slot for each layer."""

    slot: type[Slot] = Slot

    def forward(  # type: ignore[override]
        self, ids: Tensor, cache: list[Slot] | None = None
    ) -> tuple[Tensor, list[Slot]]:
        if cache is None:
            cache = [self.slot() for _ in self.layers]
        cache = [copy.copy(slot) for slot in cache]
        for slot in cache:
            slot.note(ids != PAD)
        x = self.start(ids, self.positions(cache[0].real)[:, -ids.size(1) :])
        for layer, keep, slot in zip(self.layers, self.keeps(ids, cache), cache, strict=True):
            x = layer(x, keep, slot)
        return self.finish(x), cache

    def keeps(self, ids: Tensor, cache: list[Slot]) -> list[Any]:
        """The mask of each layer."""
        return [mask(cache[0].real, ids.size(1)) for mask in self.masks]


def step(model: Any, piece: Tensor, state: Any) -> tuple[Tensor, Any]:
    """Run the next tokens of a model with a cache."""
    return model(piece, cache=state)


class Multihead(Base):
    """Layers of nn.MultiheadAttention; `masks` gives the arguments of each layer's call."""

    def __init__(
        self,
        *masks: Callable[[Tensor], dict[str, Any]],
        batch_first: bool = True,
        positions: Positions = counted,
        heads: int = HEADS,
    ) -> None:
        super().__init__()
        self.masks, self.positions = masks, positions
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {
                    "attention": nn.MultiheadAttention(DIM, heads, batch_first=batch_first),
                    "norm": nn.LayerNorm(DIM),
                    "mlp": nn.Sequential(nn.LayerNorm(DIM), nn.Linear(DIM, DIM), nn.GELU()),
                }
            )
            for _ in masks
        )

    def forward(self, ids: Tensor) -> Tensor:
        real = ids != PAD
        x = self.start(ids, self.positions(real))
        for layer, masks in zip(self.layers, self.masks, strict=True):
            y = layer["norm"](x)
            x = x + layer["attention"](y, y, y, need_weights=False, **masks(real))[0]
            x = x + layer["mlp"](x)
        return self.finish(x)


class Translator(Base):
    """An encoder and a decoder: source and target ids to logits of the target.

    `encoder_masks` and `cross_masks` have one for each layer, made of which source tokens are real.
    """

    def __init__(
        self,
        encoder_masks: Sequence[MaskMaker] = (bidirectional, bidirectional),
        cross_masks: Sequence[MaskMaker] = (bidirectional, bidirectional),
        attend: Attend = by_hand,
    ) -> None:
        super().__init__()
        self.encoder = nn.ModuleList(Layer(attend) for _ in encoder_masks)
        self.decoder = nn.ModuleList(Layer(attend, attend) for _ in cross_masks)
        self.encoder_masks, self.cross_masks = encoder_masks, cross_masks

    def encode(self, src: Tensor, real: Tensor) -> Tensor:
        x = self.start(src, counted(real))
        for layer, mask in zip(self.encoder, self.encoder_masks, strict=True):
            x = layer(x, mask(real, src.size(1)))
        return x

    def decode(self, tgt: Tensor, memory: Tensor, real: Tensor) -> Tensor:
        x = self.start(tgt, numbered(tgt))
        for layer, mask in zip(self.decoder, self.cross_masks, strict=True):
            sees = mask(real, tgt.size(1))
            x = layer(x, past(tgt, tgt.size(1)), memory=memory, memory_keep=sees)
        return self.finish(x)

    def forward(self, src: Tensor, tgt: Tensor, src_mask: Tensor | None = None) -> Tensor:
        real = src != PAD if src_mask is None else src_mask.bool()
        return self.decode(tgt, self.encode(src, real), real)


def settled(model: M) -> M:
    """Weights of ordinary size, the same for both twins, and no training."""
    source = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1 or name.endswith("bias"):
                weight.normal_(0, 0.2, generator=source)
    return model.eval()


# ── subjects ──────────────────────────────────────────────────────────────────────────────────

RIGHT, LEFT = (9, 16, 12), (16, 9, 12)  # lengths of the usual batches


def reading(
    make: Callable[[], nn.Module], ids: Tensor | None = None, expects: Any = None, **options: Any
) -> Build:
    """A model that reads a batch of ids in both directions, padded on the right if not said."""
    ids = right(*RIGHT) if ids is None else ids
    sees = mw.padding(ids=ids, pad_id=PAD) if expects is None else expects
    return lambda: Subject(settled(make()), ids, sees, options)


def writing(
    make: Callable[[], nn.Module], ids: Tensor | None = None, expects: Any = None, **options: Any
) -> Build:
    """A causal model of a batch of ids, padded on the left if not said."""
    ids = left(*LEFT) if ids is None else ids
    sees = mw.causal() & mw.padding(ids=ids, pad_id=PAD) if expects is None else expects
    return lambda: Subject(settled(make()), ids, sees, options)


def masked(
    make: Callable[[], nn.Module],
    dtype: torch.dtype = torch.long,
    *,
    causal: bool = False,
    ids: Tensor | None = None,
) -> Build:
    """A model that takes `attention_mask`; under it stand tokens like any others."""
    ids = right(*RIGHT) if ids is None else ids
    real = ids != PAD
    sees = mw.padding(keep=real)
    inputs = {"ids": torch.where(real, ids, 7), "attention_mask": real.to(dtype)}
    return lambda: Subject(settled(make()), inputs, mw.causal() & sees if causal else sees)


def translating(
    make: Callable[[], nn.Module], src: Tensor | None = None, size: int = 10, **options: Any
) -> Build:
    """An encoder and a decoder: the source is padded, the target is not."""
    src = right(7, 13, 10) if src is None else src
    tgt = right(*[size] * src.size(0)).flip(1)
    expects = {"src": mw.padding(ids=src, pad_id=PAD), "tgt": mw.causal()}
    return lambda: Subject(settled(make()), {"src": src, "tgt": tgt}, expects, options)
