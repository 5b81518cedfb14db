"""Inside torch.compile and torch.export: one operator, and no new graph for a new mask."""

from __future__ import annotations

import subprocess
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode

import maskwright as mw
import maskwright.integrations.torch
from tests.engine.given import MASKS, T, Tensors, gradients, sizes_of, tensors

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def attend(given: Tensors, mask: Any, **options: Any) -> Any:
    return mw.attention(*given, mask, enable_gqa=True, **options)


def compiled(run: Callable[..., Any], **options: Any) -> tuple[Any, CompileCounterWithBackend]:
    counter = CompileCounterWithBackend("aot_eager")
    return torch.compile(run, backend=counter, fullgraph=True, **options), counter


def same(run: Callable[..., Any], given: Tensors, mask: Any, **options: Any) -> None:
    """Output and gradients are the eager ones, to the last bit."""
    found, right = run(given, mask, **options), attend(given, mask, **options)
    assert torch.equal(found, right)
    for one, other in zip(
        gradients(found.square(), given), gradients(right.square(), given), strict=True
    ):
        assert torch.equal(one, other)


@pytest.mark.parametrize("bound", [False, True])
def test_compiled_equals_eager_under_every_mask(bound: bool) -> None:
    run, counter = compiled(attend)
    for name, mask in MASKS.items():
        sizes = {"batch": 2, "heads": max(sizes_of(name)["heads"], 4)}
        given = tensors(**sizes, kv_heads=2, value_dim=6).learning()
        same(run, given, mask.on(T, **sizes) if bound else mask)
    # Bound masks are of one type, others of the type of their outermost operator or atom.
    kinds = 1 if bound else len({type(mask) for mask in MASKS.values()})
    assert counter.frame_count <= 2 * kinds


@pytest.mark.parametrize("bound", [False, True])
def test_a_new_mask_is_no_new_graph(bound: bool) -> None:
    run, counter = compiled(attend)
    given, counts = tensors().learning(), []
    for back in range(6):
        mask = mw.window(back=back)
        same(run, given, mask.on(T) if bound else mask)
        counts.append(counter.frame_count)
    assert counts[1:] == [counts[1]] * 5
    assert counts[1] <= 2


def test_a_mask_that_the_code_holds() -> None:
    mask = MASKS["sinks"]
    run, counter = compiled(lambda given: mw.attention(*given, mask))
    given = tensors()
    assert torch.equal(run(given), mw.attention(*given, mask))
    run(given)
    assert counter.frame_count == 1


def test_without_a_mask() -> None:
    run, _ = compiled(attend)
    same(run, tensors().learning(), None)


def test_lengths_may_vary() -> None:
    run, counter = compiled(attend, dynamic=True)
    counts, mask = [], mw.window(back=3)
    for q_len, kv_len in ((5, 9), (7, 12), (30, 30), (41, 50)):
        same(run, tensors(q_len=q_len, kv_len=kv_len).learning(), mask)
        counts.append(counter.frame_count)
    assert counts[1:] == [counts[1]] * 3


def test_q_start_and_scale() -> None:
    run, _ = compiled(attend)
    given = tensors(q_len=5, kv_len=20).learning()
    for q_start in (0, 3, 15):
        same(run, given, mw.window(back=4), q_start=q_start, scale=0.7)


def test_the_logsumexp_too() -> None:
    run, _ = compiled(attend)
    given = tensors().learning()
    out, lse = run(given, mw.causal(), return_lse=True)
    right, right_lse = attend(given, mw.causal(), return_lse=True)
    assert torch.equal(lse, right_lse)
    torch.testing.assert_close(
        gradients(out.square().sum() + lse.cos().sum(), given),
        gradients(right.square().sum() + right_lse.cos().sum(), given),
    )


def test_dropout_draws_as_eager_code_does() -> None:
    run, counter = compiled(attend)
    given = tensors().learning()
    found, mask = [], mw.causal()
    for attention in (run, run, attend):
        torch.manual_seed(4)
        out = attention(given, mask, dropout_p=0.4)
        found.append((out.detach(), *gradients(out.square(), given)))
    for others in found[1:]:
        assert all(torch.equal(x, y) for x, y in zip(found[0], others, strict=True))
    again = run(given, mask, dropout_p=0.4)
    assert not torch.equal(again, found[0][0])
    assert counter.frame_count == 1


def test_autocast() -> None:
    run, _ = compiled(attend)
    given = tensors(dtype=torch.float32).learning()
    with torch.autocast("cpu", torch.bfloat16):
        same(run, given, mw.causal())
        same(run, given, mw.causal())
        assert run(given, mw.causal()).dtype == torch.bfloat16


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inductor's own
def test_inductor() -> None:
    def layer(given: Tensors, mask: Any) -> Any:
        q, k, v = (torch.nn.functional.silu(x * 2) for x in given)
        return torch.tanh(mw.attention(q, k, v, mask)).sum()

    run = torch.compile(layer, fullgraph=True)
    given = tensors(dtype=torch.float32).learning()
    for mask in (mw.window(back=4), mw.window(back=9)):
        torch.testing.assert_close(run(given, mask), layer(given, mask))
        torch.testing.assert_close(
            gradients(run(given, mask), given), gradients(layer(given, mask), given)
        )


def test_sdpa_under_a_mask() -> None:
    run, counter = compiled(
        lambda given, mask: F.scaled_dot_product_attention(*given, attn_mask=mask)
    )
    given = tensors().learning()
    for back in range(4):
        same(run, given, mw.window(back=back))
    assert counter.frame_count <= 2


def test_what_is_no_mask_is_refused() -> None:
    run = torch.compile(attend, backend="aot_eager")
    with pytest.raises(mw.ArgumentError, match="the mask is of type Tensor"):
        run(tensors(), torch.ones(T, T))
    with pytest.raises(mw.FrameError, match="bound to 3 queries"):
        run(tensors(), mw.causal().on(3))


def test_ways_of_torchs_own_are_for_eager_code() -> None:
    given, mask = tensors(), mw.window(back=3)
    run = torch.compile(attend, backend="aot_eager")  # falls back to eager code
    for impl in ("dense", "reference"):
        torch.testing.assert_close(run(given, mask, impl=impl), attend(given, mask))
    torch._dynamo.reset()
    whole, _ = compiled(attend)
    with pytest.raises(torch._dynamo.exc.TorchDynamoException, match="is not for compiled code"):
        whole(given, mask, impl="dense")


@pytest.mark.parametrize("dropout_p", [0.0, 0.3])
@pytest.mark.parametrize("name", ["causal", "window", "holes", "by head"])
def test_the_operator_keeps_torchs_rules(name: str, dropout_p: float) -> None:
    sizes = sizes_of(name)
    given = tensors(**sizes, kv_heads=sizes["heads"] // 2, value_dim=3, q_len=T).learning()
    mask, seed = MASKS[name], torch.tensor(7) if dropout_p else None
    torch.library.opcheck(
        torch.ops.maskwright.attend, (*given, mask._handle, None, 0.5, dropout_p, seed)
    )


class Layer(torch.nn.Module):
    def __init__(self, mask: Any) -> None:
        super().__init__()
        self.mask = mask

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return mw.attention(q, k, v, self.mask)


@pytest.mark.parametrize("strict", [False, True])
def test_an_exported_program_finds_its_mask_by_number(strict: bool) -> None:
    given, layer = tensors(), Layer(mw.window(back=3) & mw.chunks(8))
    program = torch.export.export(layer, tuple(given), strict=strict).module()
    assert torch.equal(program(*given), layer(*given))


def test_a_mask_that_is_gone_is_told_of() -> None:
    number = mw.window(back=3)._handle
    with pytest.raises(mw.ArgumentError, match=rf"handle {number}\b.*Keep a reference"):
        torch.ops.maskwright.attend(*tensors(), number, None, 1.0, 0.0, None)


@pytest.mark.parametrize("where", ["meta", "fake"])
def test_tensors_without_numbers_give_shapes(where: str) -> None:
    mask = mw.window(back=3)
    real = tensors(kv_heads=1, value_dim=6, dtype=torch.bfloat16)
    with FakeTensorMode() if where == "fake" else nullcontext() as mode:
        given = Tensors(*(mode.from_tensor(x) if mode else x.to("meta") for x in real))
        given = Tensors(*(x.requires_grad_() for x in given))
        out, lse = attend(given, mask, return_lse=True)
        assert [x.shape for x in gradients(out, given)] == [x.shape for x in given]
        with pytest.raises(mw.FrameError, match="bound to 3 queries"):
            attend(given, mw.causal().on(3))
    assert (out.shape, lse.shape) == ((1, 2, T, 6), (1, 2, T))
    assert (out.dtype, lse.dtype) == (torch.bfloat16, torch.float32)
    # Nothing of it is left in what the mask keeps.
    assert attend(real, mask).isfinite().all()


def test_who_compiles_nothing_does_not_load_the_compiler() -> None:
    code = (
        "import sys, torch, maskwright as mw; q = torch.ones(1, 1, 4, 2, requires_grad=True)\n"
        "mw.attention(q, q, q, mw.causal()).sum().backward()\n"
        "mw.attention(q, q, q, mw.causal(), impl='dense')\n"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
