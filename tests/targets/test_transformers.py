"""hf: tiny models attend to exactly the cells of the lowered mask."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    RobertaConfig,
    RobertaModel,
    masking_utils,
)

import maskwright as mw
from tests._helpers.tiny_models import ALL, NO_OTHER

LENGTH = 8
OURS: dict[str, np.ndarray] = {}  # the mask that the reference attention goes by


KEEP = torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 1, 0, 0, 0]])


def reference_attention(
    module: Any, query: Any, key: Any, value: Any, attention_mask: Any, **options: Any
) -> tuple[torch.Tensor, None]:
    """Softmax in float64 over our own cells, whatever mask the model has made."""
    repeat = query.shape[1] // key.shape[1]
    key, value = (x.repeat_interleave(repeat, dim=1).double() for x in (key, value))
    scores = query.double() @ key.mT / query.shape[3] ** 0.5
    allowed = torch.from_numpy(OURS["allowed"].copy())
    weights = scores.masked_fill(~allowed, float("-inf")).softmax(dim=-1).nan_to_num(0.0)
    return (weights @ value).to(query.dtype).transpose(1, 2).contiguous(), None


AttentionInterface.register("judge", reference_attention)
AttentionMaskInterface.register("judge", masking_utils.eager_mask)

SMALL = {"num_hidden_layers": 2, "hidden_size": 16, "num_attention_heads": 2, "vocab_size": 32}


@cache
def model_of(kind: str, attention: str) -> Any:
    """A tiny model with the same random weights whatever its attention."""
    [tiny] = [tiny for tiny in (*ALL, *NO_OTHER) if tiny.name == kind]
    return tiny.build(attention)


@torch.no_grad()
def run(kind: str, attention: str, ids: torch.Tensor, **given: Any) -> torch.Tensor:
    return model_of(kind, attention)(ids, **given)[0]


MASKS = {
    "causal": mw.causal(),
    "right padding": mw.causal() & mw.padding(lengths=[8, 5]),
    "left padding": mw.causal() & mw.padding(keep=KEEP.numpy() > 0),
    "packed": mw.causal() & mw.documents(lengths=[[3, 5], [1, 7]]),
    "packed and padded": mw.causal() & mw.documents(ids=[[0, 0, 0, 1, 1, 1, 1, -1], [0] * 8]),
    "window": mw.window(back=2),
    "prefix": mw.causal() | mw.prefix([3, 1]),
    "by head": mw.by_head([mw.causal(), mw.window(back=1)] * 2),
    "encoder padding": mw.padding(lengths=[8, 5]),
    "encoder left padding": mw.padding(keep=KEEP.numpy() > 0),
    "encoder window": mw.window(2, 2),
}
DECODERS = [name for name in MASKS if "encoder" not in name]
CASES = [("llama", n) for n in DECODERS] + [("gpt2", n) for n in DECODERS]
CASES += [("bert", name) for name in MASKS]


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize(("kind", "name"), CASES)
def test_model_sees_exactly_this_mask(kind: str, name: str, attention: str) -> None:
    mask = MASKS[name]
    bound = mask.on(LENGTH, batch=2, heads=4)
    given = mw.lower(bound, "hf", model="encoder" if kind == "bert" else "decoder")
    ids = torch.randint(1, 32, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    allowed = np.broadcast_to(bound.dense(), (2, 4, LENGTH, LENGTH))
    OURS["allowed"] = allowed
    right = run(kind, "judge", ids, **given)
    out = run(kind, attention, ids, **given)
    real = torch.from_numpy(allowed.any(axis=(1, 3)))  # tokens that are not fully masked
    assert real.any()
    assert torch.allclose(out[real], right[real], atol=2e-5)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_padded_row_equals_sequence_alone(kind: str, attention: str) -> None:
    ids = torch.randint(1, 32, (2, LENGTH), generator=torch.Generator().manual_seed(2))
    given = mw.lower(mw.causal() & mw.padding(keep=KEEP.numpy() > 0), "hf")
    out = run(kind, attention, ids, **given)
    for row, keep in enumerate(KEEP.bool()):
        alone = run(kind, attention, ids[row : row + 1, keep])
        assert torch.allclose(out[row, keep], alone[0], atol=2e-5)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("window", [None, 2])
@pytest.mark.parametrize("packed", ["mask", "positions"])
def test_packed_documents_equal_documents_alone(
    kind: str, attention: str, window: int | None, packed: str
) -> None:
    """As a 4-D mask with positions, and without a mask where requested and sufficient."""
    ids = torch.randint(1, 32, (1, LENGTH), generator=torch.Generator().manual_seed(3))
    lengths = [3, 4, 1]
    mask = mw.window(back=window) & mw.documents(lengths=[lengths])
    given = mw.lower(mask, "hf", q_len=LENGTH, packed=packed)
    assert (given["attention_mask"] is None) == (window is None and packed == "positions")
    assert given["position_ids"].tolist() == [[0, 1, 2, 0, 1, 2, 3, 0]]
    out = run(kind, attention, ids, **given)
    start = 0
    for length in lengths:
        alone_form = mw.lower(mw.window(back=window), "hf", q_len=length)
        alone = run(kind, attention, ids[:, start : start + length], **alone_form)
        assert torch.allclose(out[:, start : start + length], alone, atol=2e-5)
        start += length


@torch.no_grad()
@pytest.mark.parametrize("attention", ["eager", "sdpa"])
@pytest.mark.parametrize("kind", ["opt", "falcon"])
def test_packed_documents_stay_separate_where_model_ignores_positions(
    kind: str, attention: str
) -> None:
    model = model_of(kind, attention)
    given = mw.lower(mw.recipes.packed(lengths=[[3, 5]]), "hf")
    ids = torch.arange(1, 9)[None]
    other = ids.clone()
    other[0, 1] = 20  # in the first document
    one, two = (model(x, **given).logits for x in (ids, other))
    assert torch.equal(one[0, 3:], two[0, 3:])
    assert not torch.allclose(one[0, 1:3], two[0, 1:3])


@torch.no_grad()
def test_positions_may_begin_elsewhere() -> None:
    """RoBERTa's first position is the one after its padding token's."""
    torch.manual_seed(0)
    config = RobertaConfig(**SMALL, intermediate_size=16, max_position_embeddings=32)
    model = RobertaModel(config, add_pooling_layer=False).eval()
    ids = torch.randint(3, 32, (2, LENGTH), generator=torch.Generator().manual_seed(5))
    mask = mw.padding(keep=KEEP.numpy() > 0)
    out = model(ids, **mw.lower(mask, "hf", model="encoder", first_position=2))[0]
    for row, keep in enumerate(KEEP.bool()):
        alone = model(ids[row : row + 1, keep])[0]
        assert torch.allclose(out[row, keep], alone[0], atol=2e-5)


@cache
def double_model_of(kind: str) -> Any:
    [tiny] = [tiny for tiny in ALL if tiny.name == kind]
    return tiny.build("sdpa").double()  # eager computes softmax in float32


Branches = list[tuple[int, list[int]]]  # batch rows, and tokens that are one sequence
LEFT = [[0, 0, 1, 1, 1, 1, 1, 1], [0, 0, 0, 0, 1, 1, 1, 1]]
TWO_LEFT: Branches = [(0, [2, 3, 4, 5, 6, 7]), (1, [4, 5, 6, 7])]
UNEQUAL = mw.recipes.packed(lengths=[[3, 5]]), mw.recipes.packed(lengths=[[2, 6]])
ONE_ROW: Branches = [(0, list(range(8)))]
FAMILIES: dict[str, tuple[mw.Mask, Branches]] = {
    "packed": (UNEQUAL[0], [(0, [0, 1, 2]), (0, [3, 4, 5, 6, 7])]),
    "interleaved documents": (
        mw.recipes.packed(ids=[0, 1, 1, 0, 2, -1, 1, 0]),
        [(0, [0, 3, 7]), (0, [1, 2, 6]), (0, [4])],
    ),
    "packed by row": (
        mw.by_batch(UNEQUAL),
        [(0, [0, 1, 2]), (0, [3, 4, 5, 6, 7]), (1, [0, 1]), (1, [2, 3, 4, 5, 6, 7])],
    ),
    "left padding": (mw.causal() & mw.padding(keep=LEFT), TWO_LEFT),
    "left padding by row": (
        mw.by_batch([mw.causal() & mw.padding(keep=keep) for keep in LEFT]),
        TWO_LEFT,
    ),
    "left padding in one row": (
        mw.by_batch([mw.causal(), mw.causal() & mw.padding(keep=LEFT[0])]),
        [(0, list(range(8))), (1, [2, 3, 4, 5, 6, 7])],
    ),
    "first keys masked by prefix": (mw.causal() & ~mw.prefix([2, 4]), TWO_LEFT),
    "first keys masked by keys": (mw.causal() - mw.keys([0, 1]), [(0, [2, 3, 4, 5, 6, 7])]),
    "left padding and documents": (
        mw.padding(keep=LEFT[0]) & mw.recipes.packed(ids=[0, 0, 0, 0, 0, 1, 1, 1]),
        [(0, [2, 3, 4]), (0, [5, 6, 7])],
    ),
    "shared prefix": (
        mw.recipes.shared_prefix(4, [2, 2]),
        [(0, [0, 1, 2, 3, 4, 5]), (0, [0, 1, 2, 3, 6, 7])],
    ),
    "shared prefix, left padding": (
        mw.recipes.shared_prefix(4, [2, 2]) & ~mw.prefix(2),
        [(0, [2, 3, 4, 5]), (0, [2, 3, 6, 7])],
    ),
    "tree": (
        mw.tree([-1, 0, 1, 2, 3, 4, 3, 6]),
        [(0, [0, 1, 2, 3, 4, 5]), (0, [0, 1, 2, 3, 6, 7])],
    ),
    "medusa": (
        mw.recipes.medusa([(0,), (1,), (0, 0), (1, 0), (1, 1)], past=3),
        [(0, [0, 1, 2, 3, 5]), (0, [0, 1, 2, 4, 6]), (0, [0, 1, 2, 4, 7])],
    ),
    "block diffusion": (
        mw.recipes.block_diffusion(4, 2),
        [(0, [4, 5, 6, 7]), (0, [0, 1]), (0, [4, 5, 2, 3])],
    ),
    "block diffusion of one block": (
        mw.recipes.block_diffusion(4, 4),
        [(0, [0, 1, 2, 3]), (0, [4, 5, 6, 7])],
    ),
    "images": (mw.recipes.image_text([-1, 0, 0, 0, -1, -1, 1, 1]), ONE_ROW),
    "prefix": (mw.recipes.prefix_lm(3), ONE_ROW),
    "documents in one head": (
        mw.by_head([UNEQUAL[0], mw.causal(), mw.causal(), mw.causal()]),
        ONE_ROW,
    ),
    "documents in all heads": (
        mw.by_head([UNEQUAL[0], UNEQUAL[0] & mw.window(back=1)] * 2),
        [(0, [0, 1, 2]), (0, [3, 4, 5, 6, 7])],
    ),
}


@torch.no_grad()
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
@pytest.mark.parametrize("name", FAMILIES)
def test_each_sequence_of_mask_equals_sequence_alone(name: str, kind: str) -> None:
    """The sequence alone is at the positions 0, 1, 2, …, and has the cells of its tokens."""
    mask, branches = FAMILIES[name]
    model, batch = double_model_of(kind), 1 + max(row for row, _ in branches)
    ids = torch.randint(1, 32, (batch, LENGTH), generator=torch.Generator().manual_seed(6))
    bound = mask.on(LENGTH, batch=batch)
    out = model(ids, **mw.lower(bound, "hf", dtype=torch.float64)).logits
    for row, tokens in branches:
        cells = np.broadcast_to(bound.dense(), (batch, *bound.shape[1:]))[row]
        part = mw.dense(cells[None][:, :, tokens][..., tokens]).on(len(tokens))
        added = mw.lower(part, "torch.additive", dtype=torch.float64, fill="min")
        alone = model(ids[row : row + 1, tokens], attention_mask=added).logits
        assert torch.allclose(out[row, tokens], alone[0], atol=1e-12)


@torch.no_grad()
@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_drafts_after_a_cache_equal_branches_alone(kind: str) -> None:
    model, mask = double_model_of(kind), FAMILIES["medusa"][0]
    ids = torch.randint(1, 32, (1, LENGTH), generator=torch.Generator().manual_seed(7))
    past = model(ids[:, :3], use_cache=True).past_key_values
    drafts = mask.on(LENGTH).rows(3, LENGTH)
    given = mw.lower(drafts, "hf", dtype=torch.float64)
    assert given["position_ids"].tolist() == [[3, 3, 4, 4, 4]]
    out = model(ids[:, 3:], past_key_values=past, **given).logits
    for _, tokens in FAMILIES["medusa"][1]:
        alone = model(ids[:, tokens]).logits[0, 3:]
        assert torch.allclose(out[0, [token - 3 for token in tokens[3:]]], alone, atol=1e-12)


def test_positions_are_of_expression_not_of_cells() -> None:
    documents, chunked = mw.recipes.packed(lengths=[[3, 3]]), mw.recipes.chunked(3)
    assert documents.on(6).equals(chunked)
    for packed in ("mask", "positions"):
        given = mw.lower(documents, "hf", q_len=6, packed=packed)
        assert given["position_ids"].tolist() == [[0, 1, 2, 0, 1, 2]]
        given = mw.lower(chunked, "hf", q_len=6, packed=packed)
        assert "position_ids" not in given
        assert given["attention_mask"] is not None


def test_masked_key_that_is_not_padding_does_not_change_positions() -> None:
    given = mw.lower(mw.causal() & ~mw.keys([2]), "hf", q_len=5)
    assert given["attention_mask"].tolist() == [[1, 1, 0, 1, 1]]
    assert "position_ids" not in given


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_step_with_cache_equals_full_forward(attention: str) -> None:
    ids = torch.randint(1, 32, (2, LENGTH), generator=torch.Generator().manual_seed(4))
    mask, model = mw.causal() & mw.padding(keep=KEEP.numpy() > 0), model_of("llama", attention)
    whole = run("llama", attention, ids, **mw.lower(mask, "hf"))
    first = (mw.causal() & mw.padding(keep=KEEP.numpy()[:, :5] > 0)).on(5)
    with torch.no_grad():
        past = model(ids[:, :5], **mw.lower(first, "hf"), use_cache=True).past_key_values
        step = mask.on(3, kv_len=LENGTH)
        out = model(ids[:, 5:], past_key_values=past, **mw.lower(step, "hf")).logits
    real = KEEP[:, 5:].bool()
    assert torch.allclose(out[real], whole[:, 5:][real], atol=2e-5)
