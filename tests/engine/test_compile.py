"""Inside torch.compile and torch.export: one operator, and no new graph for a new mask."""

from __future__ import annotations

import gc
import weakref
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch._dynamo.testing import CompileCounterWithBackend
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.checkpoint import checkpoint

import maskwright as mw
from maskwright.bias.terms import DistanceTerm
from maskwright.core import mask_registry
from tests._helpers.attention_inputs import MASKS, T, Tensors, gradients, sizes_of, tensors
from tests._helpers.run_python import run_python
from tests._helpers.score_terms import TermBias

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


SETTINGS = {
    "q_start": None,
    "scale": 0.5,
    "softcap": None,
    "terms": [],
    "dropout_p": 0.0,
    "impl": "auto",
}


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
def test_new_mask_is_not_new_graph(bound: bool) -> None:
    run, counter = compiled(attend)
    given, counts = tensors().learning(), []
    for back in range(6):
        mask = mw.window(back=back)
        same(run, given, mask.on(T) if bound else mask)
        counts.append(counter.frame_count)
    assert counts[1:] == [counts[1]] * 5
    assert counts[1] <= 2


def test_mask_that_code_holds() -> None:
    mask = MASKS["sinks"]
    run, counter = compiled(lambda given: mw.attention(*given, mask))
    given = tensors()
    assert torch.equal(run(given), mw.attention(*given, mask))
    run(given)
    assert counter.frame_count == 1


def test_lengths_may_vary() -> None:
    run, counter = compiled(attend, dynamic=True)
    counts, mask = [], mw.window(back=3)
    for q_len, kv_len in ((5, 9), (7, 12), (30, 30), (41, 50)):
        same(run, tensors(q_len=q_len, kv_len=kv_len).learning(), mask)
        counts.append(counter.frame_count)
    assert counts[1:] == [counts[1]] * 3


def test_q_start_and_scale_and_no_mask() -> None:
    run, _ = compiled(attend)
    given = tensors(q_len=5, kv_len=20).learning()
    for q_start in (0, 3, 15):
        same(run, given, mw.window(back=4), q_start=q_start, scale=0.7)
    same(run, given, None)


def test_logsumexp_too() -> None:
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


@pytest.mark.parametrize("dropout_p", [0.0, 0.4])
@pytest.mark.parametrize("bound", [False, True])
def test_checkpointing_within_compiled_model(bound: bool, dropout_p: float) -> None:
    """Two layers whose activations are recomputed in the backward pass have the eager gradients."""
    draw = torch.Generator().manual_seed(0)
    weights = [torch.randn(8, 24, generator=draw) for _ in range(2)]

    def layer(x: torch.Tensor, weight: torch.Tensor, mask: Any) -> torch.Tensor:
        q, k, v = (x @ weight).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        out = mw.attention(q, k, v, mask, dropout_p=dropout_p)
        return x + torch.tanh(out).transpose(1, 2).flatten(2)

    def model(x: torch.Tensor, mask: Any, recompute: bool) -> torch.Tensor:
        for weight in weights:
            attend = partial(layer, weight=weight, mask=mask)
            x = checkpoint(attend, x, use_reentrant=False) if recompute else attend(x)
        return x.square().sum()

    run, counter = compiled(model)
    for size in (9, 9, 17):
        x = torch.randn(2, size, 8, generator=draw, requires_grad=True)
        leaves = [x, *(weight.requires_grad_() for weight in weights)]
        mask: Any = mw.causal() & mw.padding(lengths=[5, size])
        mask = mask.on(size) if bound else mask
        found = []
        for attention, recompute in ((model, False), (model, True), (run, True)):
            torch.manual_seed(3)
            total = attention(x, mask, recompute)
            found.append((total.detach(), *torch.autograd.grad(total, leaves)))
        for others in found[1:]:
            torch.testing.assert_close(others, found[0], rtol=1e-5, atol=1e-5)
    operators = [node.target for graph in counter.graphs for node in graph.graph.nodes]
    assert any("checkpoint" in str(target) for target in operators)


def test_checkpointed_function_that_takes_a_mask() -> None:
    def layer(x: torch.Tensor, first: Any, y: torch.Tensor, second: Any) -> torch.Tensor:
        return torch.tanh(mw.attention(x, y, x, first)) + mw.attention(y, x, y, second)

    def model(x: torch.Tensor, first: Any, second: Any) -> torch.Tensor:
        return checkpoint(layer, x, first, 2 * x, second=second, use_reentrant=False).square().sum()

    run, _ = compiled(model)
    x = torch.randn(1, 2, 9, 4, requires_grad=True)
    for masks in ((mw.causal(), mw.window(back=2)), (mw.chunks(3).on(9), mw.causal().on(9))):
        found, expected = run(x, *masks), model(x, *masks)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
        grads = [torch.autograd.grad(total, x)[0] for total in (found, expected)]
        torch.testing.assert_close(*grads, rtol=1e-5, atol=1e-5)


CHECKPOINT_ALONE = """
import sys
import maskwright as mw
assert "torch" not in sys.modules
import torch
from torch.utils.checkpoint import checkpoint

def layer(x, mask):
    return mw.attention(x, x, x, mask)

def model(x, mask):
    return checkpoint(layer, x, mask, use_reentrant=False).square().sum()

x = torch.randn(1, 2, 9, 4, requires_grad=True)
loss = torch.compile(model, fullgraph=True, backend="aot_eager")(x, mw.causal())
assert torch.allclose(loss, layer(x, mw.causal()).square().sum())
expected, = torch.autograd.grad(layer(x, mw.causal()).square().sum(), x)
assert torch.allclose(torch.autograd.grad(loss, x)[0], expected, atol=1e-6)
"""


def test_checkpointing_needs_no_other_import() -> None:
    """In a new process, where nothing has imported the integrations or the backends."""
    done = run_python(CHECKPOINT_ALONE)
    assert done.returncode == 0, done.stderr


def test_autocast() -> None:
    run, _ = compiled(attend)
    given = tensors(dtype=torch.float32).learning()
    with torch.autocast("cpu", torch.bfloat16):
        same(run, given, mw.causal())
        same(run, given, mw.causal())
        assert run(given, mw.causal()).dtype == torch.bfloat16


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inductor's own
def test_inductor() -> None:
    def layer(given: Tensors, mask: Any) -> Any:
        q = torch.nn.functional.silu(given.q * 2)
        return torch.tanh(mw.attention(q, given.k, given.v, mask)).sum()

    run = torch.compile(layer, fullgraph=True)
    given = tensors(dtype=torch.float32).learning()
    for mask in (mw.window(back=4), mw.window(back=9)):
        torch.testing.assert_close(run(given, mask), layer(given, mask))
        torch.testing.assert_close(
            gradients(run(given, mask), given), gradients(layer(given, mask), given)
        )


def test_sdpa_under_mask() -> None:
    run, counter = compiled(
        lambda given, mask: F.scaled_dot_product_attention(*given, attn_mask=mask)
    )
    given = tensors().learning()
    for back in range(4):
        same(run, given, mw.window(back=back))
    assert counter.frame_count <= 2


def test_non_masks_are_rejected() -> None:
    run = torch.compile(attend, backend="aot_eager")
    with pytest.raises(mw.ArgumentError, match="the mask is of type Tensor"):
        run(tensors(), torch.ones(T, T))
    with pytest.raises(mw.FrameError, match="bound to 3 queries"):
        run(tensors(), mw.causal().on(3))


def test_other_backends_run_eagerly() -> None:
    given, mask = tensors(), mw.window(back=3)
    run = torch.compile(attend, backend="aot_eager")  # with a graph break
    for impl in ("sdpa", "reference"):
        torch.testing.assert_close(run(given, mask, impl=impl), attend(given, mask))
    torch._dynamo.reset()
    whole, _ = compiled(attend)
    with pytest.raises(torch._dynamo.exc.TorchDynamoException, match="not available in a compiled"):
        whole(given, mask, impl="sdpa")


@pytest.mark.parametrize("dropout_p", [0.0, 0.3])
@pytest.mark.parametrize("name", ["causal", "window", "holes", "by head"])
def test_operator_keeps_torchs_rules(name: str, dropout_p: float) -> None:
    sizes = sizes_of(name)
    given = tensors(**sizes, kv_heads=sizes["heads"] // 2, value_dim=3, q_len=T).learning()
    mask, seed = MASKS[name], torch.tensor(7) if dropout_p else None
    options = {**SETTINGS, "dropout_p": dropout_p}
    torch.library.opcheck(
        torch.ops.maskwright.attend, (*given, seed, [], mask._handle, None), options
    )


def test_operator_with_bias_and_sinks_keeps_torchs_rules() -> None:
    given = tensors(2, 4, q_len=9, kv_heads=2).learning()
    values = [torch.randn(shape).double() for shape in ((4, 17), (1, 1, 9, 9), (2, 4, 1, 9), (4,))]
    for x in (values[0], values[2], values[3]):
        x.requires_grad_()
    terms = [*(0, 8, 0, 1), *(2, 0, 0, 0), *(2, 0, 0, 1)]
    options = {**SETTINGS, "softcap": 2.0, "terms": terms}
    mask = mw.causal()
    torch.library.opcheck(
        torch.ops.maskwright.attend, (*given, None, values, mask._handle, None), options
    )


@pytest.mark.parametrize("dynamic", [None, True])
def test_bias_and_sinks_in_graph(dynamic: bool | None) -> None:
    def attend_with_terms(q: Any, k: Any, v: Any, mask: Any, table: Any, sinks: Any) -> Any:
        distance = torch.arange(1 - q.shape[2], k.shape[2])
        bias = TermBias((DistanceTerm(table[:, distance.abs().clamp(max=5)], q.shape[2] - 1),))
        return mw.attention(q, k, v, mask, softcap=3.0, bias=bias, sinks=sinks, q_start=0)

    run, counter = compiled(attend_with_terms, dynamic=dynamic)
    table, sinks = (torch.randn(n, dtype=torch.float64, requires_grad=True) for n in ((2, 6), (2,)))
    for back in range(5):
        mask, given = mw.window(back=back + 1), tensors(q_len=20, seed=back).learning()
        leaves, found = (*given, table, sinks), []
        for function in (run, attend_with_terms):
            out = function(*given, mask, table, sinks)
            found.append((out.detach(), *gradients(out.square(), leaves)))
        assert all(torch.equal(x, y) for x, y in zip(*found, strict=True))
        assert all(x.any() for x in found[0])
    assert counter.frame_count <= 2


class Layer(torch.nn.Module):
    def __init__(self, mask: Any, impl: str = "auto") -> None:
        super().__init__()
        self.mask, self.impl = mask, impl

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return mw.attention(q, k, v, self.mask, impl=self.impl)


@pytest.mark.parametrize("strict", [False, True])
def test_export_is_rejected(strict: bool) -> None:
    """A saved program would look for its mask in another process."""
    given, layer = tensors(), Layer(mw.window(back=3) & mw.chunks(8))
    kinds = (mw.Unsupported, torch._dynamo.exc.TorchDynamoException)
    with pytest.raises(kinds, match='impl="sdpa"'):
        torch.export.export(layer, tuple(given), strict=strict)


@pytest.mark.parametrize("impl", ["sdpa", "flex", "reference"])
@pytest.mark.parametrize(("axis", "name"), [(0, "batch"), (2, "q_len, kv_len")])
def test_export_with_dynamic_sizes_is_rejected(axis: int, name: str, impl: str) -> None:
    given, layer = tensors(2), Layer(mw.window(back=3), impl=impl)
    for size in (torch.export.Dim("size"), torch.export.Dim.AUTO):
        with pytest.raises(mw.Unsupported, match=rf"attention: {name} cannot be dynamic"):
            torch.export.export(layer, tuple(given), dynamic_shapes=[{axis: size}] * 3)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("size", ["size", torch.export.Dim("size"), torch.export.Dim.AUTO])
def test_onnx_export_with_dynamic_sizes_is_rejected(size: Any) -> None:
    """It would write a model of one length."""
    pytest.importorskip("onnxscript")
    given, layer = tensors(), Layer(mw.window(back=3), impl="sdpa")
    with pytest.raises(torch.onnx.OnnxExporterError) as error:
        torch.onnx.export(
            layer, tuple(given), dynamic_shapes=[{2: size}] * 3, dynamo=True, verbose=False
        )
    assert isinstance(error.value.__cause__, mw.Unsupported)


@pytest.mark.slow
def test_export_with_mask_as_constant(tmp_path: Path) -> None:
    given, layer = tensors(), Layer(mw.window(back=3) & mw.chunks(8), impl="sdpa")
    program = torch.export.export(layer, tuple(given), strict=False)
    path = tmp_path / "program.pt2"
    torch.export.save(program, path)
    code = (
        "import sys, torch; q, k, v, right = torch.load(sys.argv[2])\n"
        "program = torch.export.load(sys.argv[1]).module()\n"
        "torch.testing.assert_close(program(q, k, v), right)"
    )
    torch.save((*given, layer(*given)), tmp_path / "tensors.pt")
    done = run_python(code, str(path), str(tmp_path / "tensors.pt"))
    assert done.returncode == 0, done.stderr


def test_mask_that_is_gone() -> None:
    handle = mw.window(back=3)._handle
    with pytest.raises(mw.ArgumentError, match="Keep a reference to the mask"):
        torch.ops.maskwright.attend(*tensors(), None, [], handle, None, **SETTINGS)


def test_handles_of_two_processes_differ() -> None:
    code = "import maskwright as mw; print(mw.causal()._handle)"
    first, second = (run_python(code).stdout for _ in range(2))
    assert first.strip().isdigit()
    assert first != second


def test_make_fx_records_operator() -> None:
    given, mask = tensors(), mw.window(back=3)
    graph = make_fx(lambda *x: mw.attention(*x, mask))(*given)
    assert torch.equal(graph(*given), mw.attention(*given, mask))
    others = tensors(seed=1)
    assert torch.equal(graph(*others), mw.attention(*others, mask))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_jit_trace_is_rejected() -> None:
    given, mask = tensors(), mw.window(back=3)
    with pytest.raises(mw.Unsupported, match=r"torch\.jit\.trace"):
        torch.jit.trace(lambda *x: mw.attention(*x, mask), tuple(given))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of inductor
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
def test_memory_of_long_training_loop_is_bounded(backend: str) -> None:
    """A new padding mask per step, dropped before the backward pass."""
    steps = 600 if backend == "aot_eager" else 200  # both above the limit of masks below

    def loss(given: Tensors, mask: Any) -> Any:
        return mw.attention(*given, mask).square().sum()

    run = torch.compile(loss, backend=backend, fullgraph=True)
    given = tensors(batch=2, q_len=16, dtype=torch.float32).learning()
    masks: list[Any] = []
    alive: list[int] = []
    for step in range(steps):
        mask = mw.causal() & mw.padding(lengths=[1 + step % 16, 16])
        masks.append(weakref.ref(mask))
        total = run(given, mask)
        del mask
        gc.collect() if step % 150 == 0 else None
        total.backward()  # looks the mask up again
        del total
        alive.append(len(mask_registry._held))
    gc.collect()
    assert max(alive) <= 2 * mask_registry.MIN_PRUNE
    assert sum(ref() is not None for ref in masks) <= 2 * mask_registry.MIN_PRUNE


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


def test_eager_code_does_not_load_compiler() -> None:
    code = (
        "import sys, torch, maskwright as mw; q = torch.ones(1, 1, 4, 2, requires_grad=True)\n"
        "mw.attention(q, q, q, mw.causal()).sum().backward()\n"
        "mw.attention(q, q, q, mw.causal(), impl='sdpa')\n"
        "sys.exit('torch._dynamo' in sys.modules)"
    )
    assert run_python(code).returncode == 0


@pytest.mark.parametrize(
    "make",
    [
        mw.causal,
        lambda: mw.causal() & mw.window(back=2),
        lambda: mw.recipes.packed(lengths=[[4, 2]]),
        lambda: mw.causal().on(6),
        lambda: CAUSAL.on(6),
        lambda: CAUSAL & CAUSAL.T,
        lambda: mw.padding(lengths=[3]),
        lambda: mw.prefix([3]),
        lambda: mw.keys([0, 1]),
        lambda: mw.graph([[0, 1]]),
        lambda: mw.dense(np.tri(6, dtype=bool)),
        lambda: mw.parse("causal()"),
    ],
)
def test_mask_constructed_in_a_graph(make: Any) -> None:
    """One sentence with `fullgraph=True`, and a graph break otherwise."""

    def run(x: torch.Tensor) -> torch.Tensor:
        return mw.attention(x, x, x, make())

    x = torch.randn(1, 2, 6, 4)
    torch.compiler.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="construct it outside of the compiled"):
        torch.compile(run, fullgraph=True, backend="eager")(x)
    torch.compiler.reset()
    assert torch.allclose(torch.compile(run, backend="eager")(x), run(x))


CAUSAL = mw.causal()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch
@pytest.mark.parametrize("where", ["outside", "inside"])
@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_forward_mode_is_rejected(backend: str, where: str) -> None:
    q, k, v = tensors(dtype=torch.float32)
    mask = mw.causal()

    def attend_to(x: Any) -> Any:
        return mw.attention(x, k, v, mask)

    def tangent(run: Any, x: Any) -> Any:
        return torch.func.jvp(run, (x,), (x,))[1]

    compiled_part = partial(torch.compile, backend=backend)
    if where == "outside":
        run = partial(tangent, compiled_part(attend_to))
    else:
        run = compiled_part(partial(tangent, attend_to))
    with pytest.raises(mw.Unsupported, match='impl="reference"'):
        run(q)


def test_batches_of_gradients() -> None:
    given = tensors(dtype=torch.float32).learning()
    mask = mw.causal()
    run = torch.compile(lambda *x: mw.attention(*x, mask), backend="eager")
    incoming = torch.randn(3, *given.q.shape)
    found, expected = (
        torch.autograd.grad(out, given, incoming, is_grads_batched=True)
        for out in (run(*given), mw.attention(*given, mask))
    )
    torch.testing.assert_close(found, expected)
