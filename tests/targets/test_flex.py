"""torch.flex: torch's own blocks, one compilation for all masks of a shape, and long sequences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import maskwright as mw
from maskwright import Frame, Mask
from tests._helpers.reference_attention import attention, random_qkv
from tests._helpers.strategies import masks
from tests._helpers.target_readers import listed_blocks

LENGTH = 160  # no multiple of 128


@st.composite
def medium_cases(draw: st.DrawFn) -> tuple[Mask, Frame, tuple[int, int]]:
    """Lengths on both sides of some blocks' edges, and blocks of unequal sides."""
    q_len, kv_len = draw(st.integers(1, 70)), draw(st.integers(1, 70))
    frame = Frame(q_len, kv_len, draw(st.integers(1, 2)), draw(st.integers(1, 2)), kv_len - q_len)
    block = draw(st.sampled_from([(16, 16), (8, 32), (128, 128), (1, 4)]))
    return draw(masks(frame, depth=draw(st.integers(1, 4)))), frame, block


@settings(max_examples=60)
@given(medium_cases())
def test_blocks_are_those_that_torch_finds_cell_by_cell(
    case: tuple[Mask, Frame, tuple[int, int]],
) -> None:
    mask, frame, block = case
    bound = mask.on(frame.q_len, frame.kv_len, frame.batch, frame.heads, frame.q_start)
    ours = mw.lower(bound, "torch.flex", block_size=block)
    shape = (frame.batch, frame.heads, frame.q_len, frame.kv_len)
    cells = torch.from_numpy(np.broadcast_to(bound.dense(), shape).copy())
    theirs = create_block_mask(
        lambda b, h, q, k: cells[b, h, q, k], *shape, device="cpu", BLOCK_SIZE=block
    )
    assert ours.BLOCK_SIZE == theirs.BLOCK_SIZE
    assert tuple(ours.seq_lengths) == tuple(theirs.seq_lengths)
    planes = (frame.batch, frame.heads)
    for part in ("", "full_"):
        found, right = (
            listed_blocks(
                getattr(given, f"{part}kv_num_blocks"),
                getattr(given, f"{part}kv_indices"),
                given.shape[:2],
            )
            for given in (ours, theirs)
        )
        assert np.array_equal(np.broadcast_to(found, planes + found.shape[2:]), right), part


def masks_of_one_shape() -> dict[str, Mask]:
    documents = mw.documents(lengths=[[100, 60], [40, 120]])
    return {
        "causal": mw.causal(),
        "window": mw.window(back=20),
        "both sides": mw.window(5, 9),
        "prefix": mw.causal() | mw.prefix([30]),
        "chunks": mw.causal() & mw.chunks(50),
        "nothing at first": mw.causal() & ~mw.keys(range(10)),
        "documents": documents & mw.causal(),
        "documents in a window": documents & mw.window(back=20),
        "padding": mw.causal() & mw.padding(lengths=[160, 90]),
    }


@pytest.fixture
def compiled() -> Any:
    torch.compiler.reset()
    counter = CompileCounterWithBackend("inductor")
    yield counter, torch.compile(flex_attention, backend=counter, dynamic=False)
    torch.compiler.reset()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_compiled_flex_attention_serves_all_masks_of_shape(compiled: Any) -> None:
    counter, attend = compiled
    q, k, v = random_qkv((2, 2, LENGTH, LENGTH), 16)
    inputs = [torch.from_numpy(x).float() for x in (q, k, v)]
    for name, mask in masks_of_one_shape().items():
        # One batch row a sequence, whether or not the mask differs between them.
        whole = mask & mw.padding(lengths=[LENGTH, LENGTH])
        bound = whole.on(LENGTH, batch=2, heads=2)
        out = attend(*inputs, block_mask=mw.lower(bound, "torch.flex"))
        allowed = np.broadcast_to(bound.dense(), (2, 2, LENGTH, LENGTH))
        right = attention(q, k, v, allowed)
        assert np.allclose(out.numpy(), right, atol=2e-5), name
        assert not out.numpy()[~allowed.any(axis=3)].any()
    assert counter.frame_count == 1


def test_long_sequences_need_no_cell_each() -> None:
    length = 131_072
    mask = mw.window(back=4095) & mw.documents(lengths=[[50_000, 81_072]])
    block_mask = mw.lower(mask, "torch.flex", q_len=length)
    rows = torch.tensor([0, 49_999, 50_000, 60_000, length - 1])
    for row in rows:
        document = 0 if row < 50_000 else 50_000
        first = max(int(row) - 4095, document)
        keys = torch.tensor([first - 1, first, int(row), int(row) + 1]).clamp(0, length - 1)
        zero = torch.tensor(0)
        seen = block_mask.mask_mod(zero, zero, row, keys)
        assert seen.tolist() == ((keys >= first) & (keys <= row)).tolist()
    blocks = listed_rows(block_mask, 60_000 // 128)
    assert blocks == list(range((60_000 // 128 * 128 - 4095) // 128, 60_000 // 128 + 1))


def listed_rows(block_mask: Any, row: int) -> list[int]:
    found = []
    for part in ("", "full_"):
        count = int(getattr(block_mask, f"{part}kv_num_blocks")[0, 0, row])
        found += getattr(block_mask, f"{part}kv_indices")[0, 0, row, :count].tolist()
    return sorted(found)


def test_rows_of_many_intervals_are_looked_up_in_table() -> None:
    mask, length = mw.stride(2) & mw.causal(), 80
    allowed = mask.on(length).dense()
    block_mask = mw.lower(mask, "torch.flex", q_len=length, block_size=16)
    b, h = torch.tensor(0), torch.tensor(0)
    q, k = torch.arange(length)[:, None], torch.arange(length)[None, :]
    assert np.array_equal(block_mask.mask_mod(b, h, q, k).numpy(), allowed[0, 0])


@pytest.mark.parametrize("block_size", [0, -1, 1.5, (128, 0), "128", True])
def test_block_has_size(block_size: Any) -> None:
    with pytest.raises(mw.ArgumentError, match="block_size"):
        mw.lower(mw.causal(), "torch.flex", q_len=4, block_size=block_size)
