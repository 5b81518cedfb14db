"""FlexAttention by maskwright beside FlexAttention, and BlockMasks that differ."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.nn.attention.flex_attention import (
    AuxRequest,
    create_block_mask,
    flex_attention,
    noop_mask,
)

from conformance import flex

if TYPE_CHECKING:
    from collections.abc import Callable

SHAPE = (2, 2, 6, 6)
SLOPES = torch.tensor([0.5, 2.0])
SCORE_MODS: dict[str, Callable[..., Any]] = {
    "identity": lambda score, b, h, q, k: score,
    "scaled": lambda score, b, h, q, k: score * 2,
    "causal": lambda score, b, h, q, k: torch.where(q >= k, score, -torch.inf),
    "relative": lambda score, b, h, q, k: score + (q - k),
    "slopes": lambda score, b, h, q, k: score + SLOPES[h] * (k - q),
    "masked and scaled": lambda score, b, h, q, k: torch.where(q >= k, score / 3 + b, -torch.inf),
}
OTHERS: dict[str, Callable[..., Any]] = {
    "squared": lambda score, b, h, q, k: score * score,
    "per head": lambda score, b, h, q, k: score * SLOPES[h],
    "clamped": lambda score, b, h, q, k: score.clamp(min=0),
    "masks low scores": lambda score, b, h, q, k: torch.where(score > 0, score, -torch.inf),
    "masks high scores": lambda score, b, h, q, k: torch.where(score <= 9, score, -torch.inf),
    "NaN": lambda score, b, h, q, k: score + torch.nan,
}


def tensors() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, *SHAPE[:3], 8, dtype=torch.float64, generator=generator)
    return q, k, v


@pytest.mark.filterwarnings("ignore")  # torch's, of uncompiled flex_attention
@pytest.mark.parametrize("name", [None, *SCORE_MODS])
@pytest.mark.parametrize("masked", [False, True])
def test_attention(name: str | None, masked: bool) -> None:
    score_mod = None if name is None else SCORE_MODS[name]
    block_mask = create_block_mask(causal, None, None, 6, 6, "cpu", 4) if masked else None
    qkv = tensors()
    call = flex.read_call(qkv, score_mod, block_mask, None)
    assert call is not None
    aux = AuxRequest(lse=True)
    out, lse = flex_attention(*qkv, score_mod, block_mask, return_aux=aux)
    ours, our_aux = flex.attend(qkv, call, False, False, aux)
    torch.testing.assert_close(ours, out, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(our_aux.lse.double(), lse.lse.double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", OTHERS)
def test_other_score_mods_are_left_to_torch(name: str) -> None:
    assert flex.read_call(tensors(), OTHERS[name], None, None) is None


def causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q >= k


def strictly_causal(b: Any, h: Any, q: Any, k: Any) -> Any:
    return q > k


def test_block_masks_that_differ() -> None:
    def blocks(mask_mod: Any, length: int = 8, size: int = 4, **options: Any) -> Any:
        return create_block_mask(mask_mod, None, None, length, 8, "cpu", BLOCK_SIZE=size, **options)

    assert flex.block_difference(blocks(causal), blocks(causal)) is None
    assert flex.block_difference(blocks(causal), blocks(strictly_causal)) is None
    assert "partial" in str(flex.block_difference(blocks(causal), blocks(noop_mask)))
    assert "seq_lengths" in str(flex.block_difference(blocks(causal), blocks(causal, 4)))
    assert "BLOCK_SIZE" in str(flex.block_difference(blocks(causal), blocks(causal, 8, 2)))
    together = blocks(causal, separate_full_blocks=False)
    assert flex.block_difference(together, blocks(causal), separate_full=False) is None
    assert flex.block_difference(together, blocks(causal)) is not None


def test_uncompiled_functions_run_as_they_are() -> None:
    calls = []

    def run(function: Any, *args: Any) -> Any:
        calls.append(args)
        return function(*args)

    compile = flex.uncompiled(run)  # noqa: A001 - the name in torch
    assert compile(abs, fullgraph=True)(-1) == compile(dynamic=True)(abs)(-1) == 1
    assert calls == [(-1,), (-1,)]
    module = torch.nn.Linear(1, 1)
    assert compile(module) is module
