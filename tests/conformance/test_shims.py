"""maskwright with the signature of SDPA, beside SDPA."""

from __future__ import annotations

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

from conformance.shims import original, scaled_dot_product_attention

KEYS = 6


def random(*shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def mask_of(kind: str, rows: int) -> torch.Tensor | None:
    if kind == "none":
        return None
    values = random(rows, KEYS)
    if kind == "float":
        return values
    cells = values > 0
    cells[:, 0] = True
    return cells if kind == "bool" else torch.zeros_like(values).masked_fill(~cells, -torch.inf)


@pytest.mark.parametrize("is_causal", [False, True])
@pytest.mark.parametrize("kind", ["none", "bool", "float", "additive"])
@pytest.mark.parametrize("rows", [3, KEYS, 8])
def test_masks(rows: int, kind: str, is_causal: bool) -> None:
    q, k, v = random(2, 4, rows, 8), random(2, 4, KEYS, 8), random(2, 4, KEYS, 8)
    options = {"attn_mask": mask_of(kind, rows), "is_causal": is_causal, "scale": 0.3}
    expected = original(q, k, v, **options)
    torch.testing.assert_close(scaled_dot_product_attention(q, k, v, **options), expected)


@pytest.mark.parametrize("lead", [(), (3,), (2, 3, 4)])
@pytest.mark.parametrize("kind", ["none", "bool"])
def test_axes(lead: tuple[int, ...], kind: str) -> None:
    q, k = random(*lead, 5, 8), random(*lead, KEYS, 8)
    mask = mask_of(kind, 5)
    torch.testing.assert_close(scaled_dot_product_attention(q, k, k, mask), original(q, k, k, mask))


def test_mask_of_a_batch_without_heads() -> None:
    q, k, mask = random(3, 5, 8), random(3, KEYS, 8), random(3, 5, KEYS) > 0
    mask[..., 0] = True
    torch.testing.assert_close(scaled_dot_product_attention(q, k, k, mask), original(q, k, k, mask))


@pytest.mark.parametrize("variant", [causal_upper_left, causal_lower_right])
def test_causal_variants(variant: type) -> None:
    q, k, mask = random(2, 4, 3, 8), random(2, 4, KEYS, 8), variant(3, KEYS)
    expected = original(q, k, k, mask._materialize("cpu"))
    torch.testing.assert_close(scaled_dot_product_attention(q, k, k, mask), expected)
    with pytest.raises(ValueError, match="CausalBias"):
        scaled_dot_product_attention(q, k, k, mask, is_causal=True)


def test_math_path_stays_the_reference() -> None:
    q = random(2, 4, 3, 8)
    with sdpa_kernel(SDPBackend.MATH):
        expected = original(q, q, q, is_causal=True)
        assert torch.equal(scaled_dot_product_attention(q, q, q, is_causal=True), expected)
