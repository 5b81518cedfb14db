"""The output has the memory layout of q, as that of `scaled_dot_product_attention`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import maskwright as mw
from tests._helpers.attention_inputs import BACKENDS

if TYPE_CHECKING:
    from collections.abc import Callable

B, H, T, D = 2, 3, 5, 8
CAUSAL = mw.causal()
LAYOUTS: dict[str, Callable[[], torch.Tensor]] = {
    "contiguous": lambda: torch.randn(B, H, T, D),
    "projected": lambda: torch.randn(B, T, H, D).transpose(1, 2),
    "heads first": lambda: torch.randn(H, B, T, D).transpose(0, 1),
    "length first": lambda: torch.randn(T, B, H, D).permute(1, 2, 0, 3),
    "part of qkv": lambda: torch.randn(B, T, 3, H, D)[:, :, 1].transpose(1, 2),
    "part of a cache": lambda: torch.randn(B, H, 2 * T, D)[:, :, :T],
    "every second row": lambda: torch.randn(B, H, 2 * T, D)[:, :, ::2],
    "every second dim": lambda: torch.randn(B, H, T, 2 * D)[..., ::2],
    "dim first": lambda: torch.randn(B, H, D, T).transpose(2, 3),
    "channels last": lambda: torch.randn(B, H, T, D).to(memory_format=torch.channels_last),
    "shared by batch": lambda: torch.randn(1, H, T, D).expand(B, -1, -1, -1),
    "shared by heads": lambda: torch.randn(B, T, 1, D).expand(-1, -1, H, -1).transpose(1, 2),
    "one row": lambda: torch.randn(B, 1, H, D).transpose(1, 2),
    "one head": lambda: torch.randn(B, T, 1, D).transpose(1, 2),
    "one dim": lambda: torch.randn(B, T, H, 1).transpose(1, 2),
}
IMPLS = sorted({impl for impl, _ in BACKENDS} - {"triton"})


def strides(x: torch.Tensor) -> list[int]:
    """The strides that matter: those of dimensions with several elements."""
    return [stride for stride, size in zip(x.stride(), x.shape, strict=True) if size > 1]


def keys_of(q: torch.Tensor, width: int) -> torch.Tensor:
    return torch.randn(q.shape[0], q.shape[1], 7, width)


@pytest.mark.parametrize("impl", ["auto", *IMPLS])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_is_that_of_sdpa(layout: str, impl: str) -> None:
    q = LAYOUTS[layout]()
    k, v = keys_of(q, q.shape[3]), keys_of(q, q.shape[3])
    right = F.scaled_dot_product_attention(q, k, v)
    for grad in (False, True):
        out = mw.attention(q.detach().requires_grad_(grad), k, v, impl=impl)
        torch.testing.assert_close(out, right)
        assert strides(out) == strides(right)


def orders(x: torch.Tensor) -> list[int]:
    return sorted(range(3), key=lambda n: -x.stride(n))


@pytest.mark.parametrize("impl", sorted({"auto", *IMPLS} - {"sdpa"}))
@pytest.mark.parametrize("layout", [name for name in LAYOUTS if "one" not in name])
def test_values_of_another_head_dim_keep_order_of_dimensions(layout: str, impl: str) -> None:
    q = LAYOUTS[layout]()
    out = mw.attention(q, keys_of(q, D), keys_of(q, 4), impl=impl)
    assert orders(out) == orders(F.scaled_dot_product_attention(q, q, q))
    assert out.stride(3) == 1
    assert out.untyped_storage().nbytes() == out.nbytes


def test_view_after_replacement_of_sdpa() -> None:
    q = torch.randn(2, 3, 49, 32)
    assert mw.attention(q, q, q).view(6, 49, 32).shape == (6, 49, 32)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compiled_layout_is_eager_layout(dynamic: bool) -> None:
    def run(q: Any, k: Any, v: Any) -> Any:
        out = mw.attention(q, k, v, CAUSAL)
        return out, out.as_strided((out.numel(),), (1,))  # the memory, in the order of the graph

    torch._dynamo.reset()
    graph = torch.compile(run, backend="aot_eager", dynamic=dynamic, fullgraph=True)
    for layout in ("contiguous", "length first", "shared by heads"):
        q = LAYOUTS[layout]()
        for width in (D, 4):
            given = (q, keys_of(q, D), keys_of(q, width))
            for x, y in zip(graph(*given), run(*given), strict=True):
                assert strides(x) == strides(y)
                assert torch.equal(x, y)


@pytest.mark.parametrize("width", [None, 4])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_of_meta_tensors(layout: str, width: int | None) -> None:
    q = LAYOUTS[layout]()
    given = (q, keys_of(q, q.shape[3]), keys_of(q, width or q.shape[3]))
    meta = (torch.empty_strided(x.shape, x.stride(), device="meta") for x in given)
    assert strides(mw.attention(*meta)) == strides(mw.attention(*given))


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("sizes", [(0, 3, 5, 8), (2, 0, 5, 8), (2, 3, 0, 8)])
def test_empty_output(sizes: tuple[int, ...], impl: str) -> None:
    for q in (torch.randn(sizes), torch.randn([sizes[n] for n in (0, 2, 1, 3)]).transpose(1, 2)):
        out = mw.attention(q, keys_of(q, sizes[3]), keys_of(q, sizes[3]), impl=impl)
        assert out.shape == q.shape
        assert strides(out) == strides(q)


def test_vmap_and_reference_keep_gradients() -> None:
    q = LAYOUTS["length first"]().double().requires_grad_()
    k, v = (keys_of(q, D).double() for _ in range(2))
    assert torch.autograd.gradcheck(lambda q: mw.attention(q, k, v, impl="reference"), q)
    out = torch.vmap(lambda k: mw.attention(q, k, v, impl="reference"))(torch.stack([k, 2 * k]))
    torch.testing.assert_close(out[0], mw.attention(q, k, v, impl="reference"))
