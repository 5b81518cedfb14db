"""Small Transformers whose attention is handed in, with a cache or without, and how to plant in them.

What attends gets queries, keys and values, (B, H, T, D) each, and by name what it is told of the
batch: `seen`, True where a query may see a key, or whatever that model makes of its inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from tests.zoo.case import Subject, plant

WORDS, PLACES, DIM = 50, 128, 16

Attend = Any  # a function (q, k, v, **told) -> (B, H, T, D), or a class of module (dim, heads)
Tell = Callable[..., dict[str, Any]]
M = TypeVar("M", bound=nn.Module)


# ── what is read ──────────────────────────────────────────────────────────────────────────────


def sentences(batch: int = 2, length: int = 16) -> Tensor:
    """Ids of full sequences; none of them is 0."""
    source = torch.Generator().manual_seed(length)
    return torch.randint(1, WORDS, (batch, length), generator=source)


def ragged(*lengths: int, left: bool = False) -> Tensor:
    """Ids of sequences of these lengths, filled up with 0 on one side."""
    ids = sentences(len(lengths), max(lengths))
    place = torch.arange(ids.shape[1])
    place = place.flip(0) if left else place
    return ids * (place < torch.tensor(lengths)[:, None])


def packed(*rows: Sequence[int], fill: int = 0) -> dict[str, Tensor]:
    """Ids, and the document of every token, for lengths of documents in each row; -1 fills up."""
    documents = torch.tensor(
        [[n for n, size in enumerate(row) for _ in range(size)] + [-1] * fill for row in rows]
    )
    return {"ids": sentences(*documents.shape) * (documents >= 0), "documents": documents}


# ── what may be seen ──────────────────────────────────────────────────────────────────────────


def past(q_len: int, k_len: int | None = None, start: int = 0) -> Tensor:
    """(q, k): the keys up to the query; the first query stands at `start`."""
    return torch.arange(k_len or q_len) <= start + torch.arange(q_len)[:, None]


def near(size: int, q_len: int, k_len: int | None = None, start: int = 0) -> Tensor:
    """(q, k): the last `size` keys up to the query, which is one of them."""
    ahead = past(q_len, k_len, start)
    return ahead & ~past(q_len, k_len, start - size)


def same(documents: Tensor) -> Tensor:
    """(B, 1, q, k): both in one document."""
    return (documents[:, None, :, None] == documents[:, None, None, :]) & real(documents + 1)


def real(ids: Tensor) -> Tensor:
    """(B, 1, 1, k): the keys that are not 0."""
    return (ids != 0)[:, None, None, :]


def tell_past(ids: Tensor) -> dict[str, Any]:
    """What a decoder is told of full sequences."""
    return {"seen": past(ids.shape[1])}


def tell_real(ids: Tensor) -> dict[str, Any]:
    """What an encoder is told of padded ones."""
    return {"seen": real(ids)}


def tell_past_and_real(ids: Tensor) -> dict[str, Any]:
    """What a decoder is told of padded ones."""
    return {"seen": past(ids.shape[1]) & real(ids)}


def tell_packed(ids: Tensor, documents: Tensor) -> dict[str, Any]:
    """What a decoder is told of packed ones."""
    return {"seen": past(ids.shape[1]) & same(documents)}


def tell_near(size: int) -> Tell:
    """What a decoder is told that looks back `size` tokens."""
    return lambda ids: {"seen": near(size, ids.shape[1])}


def tell_documents(ids: Tensor, documents: Tensor) -> dict[str, Any]:
    """The documents as they are; what attends makes its mask of them."""
    return {"documents": documents}


def tell_nothing(ids: Tensor) -> dict[str, Any]:
    """Nothing."""
    return {}


# ── where tokens stand ────────────────────────────────────────────────────────────────────────


def in_order(ids: Tensor, **told: Any) -> Tensor:
    """All tokens count."""
    return torch.arange(ids.shape[1]).expand(ids.shape)


def real_in_order(ids: Tensor, **told: Any) -> Tensor:
    """Padding does not count."""
    return ((ids != 0).cumsum(1) - 1).clamp(min=0)


def in_documents(ids: Tensor, documents: Tensor, **told: Any) -> Tensor:
    """Each document counts from 0."""
    place = torch.arange(ids.shape[1]).expand(ids.shape)
    begins = F.pad(documents[:, 1:] != documents[:, :-1], (1, 0), value=True)
    return place - (place * begins).cummax(1).values


# ── what attends ──────────────────────────────────────────────────────────────────────────────


def scores_of(q: Tensor, k: Tensor) -> Tensor:
    """Scaled products, (B, H, q, k)."""
    return q @ k.mT / math.sqrt(q.shape[-1])


def lowest(x: Tensor) -> float:
    """The lowest number of the dtype."""
    return float(torch.finfo(x.dtype).min)


def by_hand(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """As in a textbook; a query that sees nothing gets zeros."""
    scores = scores_of(q, k)
    return scores.masked_fill(~seen, lowest(scores)).softmax(-1).masked_fill(~seen, 0.0) @ v


def by_sdpa(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """PyTorch's function."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen)


class Attention(nn.Module):
    """Projections around what attends: a function, or a subclass's own `attend`."""

    def __init__(self, dim: int, heads: int, attend: Attend = None) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.by = attend

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **told: Any) -> Tensor:
        return self.by(q, k, v, **told)

    def forward(self, x: Tensor, store: Any = None, **told: Any) -> Tensor:
        q, k, v = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        if store is not None:
            k, v = store.extend(k, v)
        return self.out(self.attend(q, k, v, **told).transpose(1, 2).flatten(2))


class Multihead(nn.Module):
    """nn.MultiheadAttention; a subclass makes its arguments of what is told."""

    weights = False

    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(dim, heads, batch_first=True)

    def masks(self, **told: Any) -> dict[str, Any]:
        raise NotImplementedError

    def forward(self, x: Tensor, **told: Any) -> Tensor:
        return self.inner(x, x, x, need_weights=self.weights, **self.masks(**told))[0]


# ── models ────────────────────────────────────────────────────────────────────────────────────


class Layer(nn.Module):
    """Attention and a small network; norms come first."""

    def __init__(self, attend: Attend, heads: int) -> None:
        super().__init__()
        whole = isinstance(attend, type)
        self.attention = attend(DIM, heads) if whole else Attention(DIM, heads, attend)
        self.before, self.between = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.mix = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))

    def forward(self, x: Tensor, **told: Any) -> Tensor:
        x = x + self.attention(self.before(x), **told)
        return x + self.mix(self.between(x))


class Base(nn.Module):
    """Embeddings, layers and a head. `attend` is one for all layers, or one for each."""

    def __init__(self, attend: Attend | list[Attend], layers: int = 2, heads: int = 2) -> None:
        super().__init__()
        attends = attend if isinstance(attend, list) else [attend] * layers
        self.words, self.places = nn.Embedding(WORDS, DIM), nn.Embedding(PLACES, DIM)
        self.layers = nn.ModuleList(Layer(attend, heads) for attend in attends)
        self.norm, self.head = nn.LayerNorm(DIM), nn.Linear(DIM, WORDS)


class Transformer(Base):
    """Ids to scores of words; `route` names one of several ways to the same result."""

    def __init__(
        self,
        attend: Attend | list[Attend],
        tell: Tell = tell_past,
        count: Callable[..., Tensor] = in_order,
        layers: int = 2,
        heads: int = 2,
    ) -> None:
        super().__init__(attend, layers, heads)
        self.tell, self.count = tell, count

    def forward(self, ids: Tensor, route: str | None = None, **more: Any) -> Tensor:
        told = self.tell(ids, **more)
        if route is not None:
            told["route"] = route
        x = self.words(ids) + self.places(self.count(ids, **more))
        for layer in self.layers:
            x = layer(x, **told)
        return self.head(self.norm(x))


@dataclass
class Growing:
    """Keys and values of one layer, which grow with every piece; at most the last `most` stay."""

    k: Tensor | None = None
    v: Tensor | None = None
    most: int | None = None

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Take in new ones, and give all that are known."""
        k = k if self.k is None else torch.cat([self.k, k], 2)
        v = v if self.v is None else torch.cat([self.v, v], 2)
        first = 0 if self.most is None else max(k.shape[2] - self.most, 0)
        self.k, self.v = k[:, :, first:], v[:, :, first:]
        return k, v


@dataclass
class Slots:
    """Keys and values of one layer in slots that were made beforehand; empty ones hold zeros."""

    k: Tensor
    v: Tensor
    used: int = 0

    def extend(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write new ones behind those in use, and give all slots."""
        stop = self.used + k.shape[2]
        self.k, self.v = self.k.clone(), self.v.clone()
        self.k[:, :, self.used : stop], self.v[:, :, self.used : stop] = k, v
        self.used = stop
        return self.k, self.v


@dataclass
class Cache:
    """What was read so far: one store for each layer, and which tokens are real."""

    stores: list[Any]
    keep: Tensor  # (B, tokens so far)


class Decoder(Base):
    """A decoder with a cache: (ids, cache) to (scores of words, cache).

    What attends is told at which position the piece starts, and which tokens so far are real.
    """

    def __init__(
        self,
        attend: Attend | list[Attend],
        *,
        pads: bool = False,
        slots: int | None = None,
        most: int | None = None,
    ) -> None:
        super().__init__(attend)
        self.pads, self.slots, self.most = pads, slots, most

    def fresh(self, batch: int) -> Cache:
        """A cache that holds nothing yet."""
        keep = torch.zeros(batch, 0, dtype=torch.bool)
        if self.slots is None:
            return Cache([Growing(most=self.most) for _ in self.layers], keep)
        like = self.head.weight
        heads = self.layers[0].attention.heads
        shape = batch, heads, self.slots, DIM // heads
        return Cache(
            [Slots(like.new_zeros(shape), like.new_zeros(shape)) for _ in self.layers], keep
        )

    def forward(self, ids: Tensor, cache: Cache | None = None) -> tuple[Tensor, Cache]:
        if cache is None:  # all at once needs no slots
            cache = Cache([Growing() for _ in self.layers], ids.new_zeros(len(ids), 0).bool())
        start = cache.keep.shape[1]
        keep = torch.cat([cache.keep, (ids != 0) | (not self.pads)], 1)
        stores = [type(store)(**vars(store)) for store in cache.stores]
        x = self.words(ids) + self.places(real_in_order(keep)[:, start:])
        for layer, store in zip(self.layers, stores, strict=True):
            x = layer(x, store=store, start=start, keep=keep)
        return self.head(self.norm(x)), Cache(stores, keep)


def step(model: Decoder, piece: Tensor, state: Cache | None) -> tuple[Tensor, Cache]:
    """Read the next piece."""
    return model(piece, model.fresh(len(piece)) if state is None else state)


def by_cache(q: Tensor, k: Tensor, v: Tensor, start: int, keep: Tensor) -> Tensor:
    """Real keys up to the query, in a cache that may have empty slots behind them."""
    slots = F.pad(keep, (0, k.shape[2] - keep.shape[1]))
    return by_hand(q, k, v, past(q.shape[2], k.shape[2], start) & slots[:, None, None])


# ── planting ──────────────────────────────────────────────────────────────────────────────────


def grown(model: M) -> M:
    """The model with weights of ordinary size, the same for both twins, ready for use."""
    torch.manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() > 1:
                weight.normal_(std=0.3)
            elif name.endswith("bias"):
                weight.normal_(std=0.1)
            else:
                weight.fill_(1.0)
    return model.eval()


def subject(
    attend: Attend | list[Attend],
    inputs: Any,
    expects: Any,
    *,
    tell: Tell = tell_past,
    count: Callable[..., Tensor] | None = None,
    layers: int = 2,
    heads: int = 2,
    **options: Any,
) -> Subject:
    """A Transformer to be audited; with a `pad_id` its positions count real tokens."""
    if count is None:
        count = real_in_order if "pad_id" in options else in_order
    model = Transformer(attend, tell, count, layers, heads)
    return Subject(grown(model), inputs, expects, options)


def decoding(
    attend: Attend | list[Attend],
    ids: Tensor,
    expects: Any,
    *,
    slots: int | None = None,
    most: int | None = None,
    **options: Any,
) -> Subject:
    """A decoder with a cache to be audited; 0 is padding if the ids hold it, else a word."""
    pads = bool((ids == 0).any())
    model = Decoder(attend, pads=pads, slots=slots, most=most)
    if pads:
        options["pad_id"] = 0
    return Subject(grown(model), ids, expects, {"step": step, **options})


def by(route: str) -> Callable[..., Tensor]:
    """A path of the audit: the same model by another of its routes."""
    return lambda model, *args, **inputs: model(*args, **inputs, route=route)


Build = Callable[[bool], Subject]


def planted(
    family: str, variant: str, *, after: str, causes: str, checks: str, layer: str | None = None
) -> Callable[[Build], Build]:
    """Plant what the function builds: with the fault if told so, else the healthy twin."""

    def add(build: Build) -> Build:
        sick, healthy = partial(build, True), partial(build, False)
        names = tuple(causes.split())
        plant(family, variant, sick, healthy, after=after, causes=names, checks=checks, layer=layer)
        return build

    return add
