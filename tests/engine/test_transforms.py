"""Under torch's transforms and modes: vmap, func.grad, checkpointing, autocast, no gradients."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

import maskwright as mw
from maskwright.engine.reference import reference
from tests._helpers.attention_inputs import MASKS, T, Tensors, gradients, tensors

VARIED = {
    "shared": mw.window(back=5),
    "by batch": mw.causal() & mw.padding(lengths=[20, T]),
    "by head": mw.by_head([mw.causal(), mw.window(back=3)]),
}


def several(count: int = 3, **sizes: Any) -> list[Tensors]:
    return [tensors(batch=2, seed=n, **sizes) for n in range(count)]


def attend(q: Any, k: Any, v: Any, mask: Any, **options: Any) -> Any:
    return mw.attention(q, k, v, mask, enable_gqa=True, **options)


@pytest.mark.parametrize("name", VARIED)
@pytest.mark.parametrize("in_dims", [(0, 0, 0), (0, None, None), (None, 0, 2), (3, 1, 4)])
def test_vmap(name: str, in_dims: tuple[int | None, ...]) -> None:
    each = several(value_dim=5, kv_heads=1)
    given = [
        xs[0] if dim is None else torch.stack(xs, dim)
        for xs, dim in zip(zip(*each, strict=True), in_dims, strict=True)
    ]
    out, lse = torch.vmap(lambda *x: attend(*x, VARIED[name], return_lse=True), in_dims=in_dims)(
        *given
    )
    for n in range(3):
        own = [x if d is None else x.select(d, n) for x, d in zip(given, in_dims, strict=True)]
        right = attend(*own, VARIED[name], return_lse=True)
        torch.testing.assert_close((out[n], lse[n]), right)


def test_vmap_of_vmap() -> None:
    given = [torch.randn(2, 3, 1, 2, 8, 4, dtype=torch.float64) for _ in range(3)]
    run = torch.vmap(torch.vmap(lambda *x: attend(*x, mw.causal())))
    right = attend(*(x.flatten(0, 2) for x in given), mw.causal()).reshape(given[0].shape)
    torch.testing.assert_close(run(*given), right)


@pytest.mark.parametrize("name", VARIED)
def test_vmap_of_grad(name: str) -> None:
    def loss(q: Any, k: Any, v: Any) -> Any:
        out, lse = attend(q, k, v, VARIED[name], return_lse=True)
        return out.square().sum() + lse.cos().sum()

    each = several()
    given = [torch.stack(xs) for xs in zip(*each, strict=True)]
    run = torch.func.grad(loss, argnums=(0, 1, 2))
    right = [torch.stack(xs) for xs in zip(*(run(*x) for x in each), strict=True)]
    torch.testing.assert_close(list(torch.vmap(run)(*given)), right)
    plain = each[0].learning()
    torch.testing.assert_close(run(*each[0]), torch.autograd.grad(loss(*plain), plain))


@pytest.mark.parametrize("name", VARIED)
def test_whole_jacobian(name: str) -> None:
    mask, given = VARIED[name], Tensors(*(x[:, :, :5] for x in tensors(batch=2)))
    bound = mask.on(T, batch=2, heads=2).rows(0, 5, kv_len=5)
    found = torch.func.jacrev(lambda *x: attend(*x, bound), argnums=(0, 1, 2))(*given)
    right = torch.func.jacrev(lambda *x: reference(*x, bound).out, argnums=(0, 1, 2))(*given)
    torch.testing.assert_close(found, right)


@pytest.mark.parametrize("randomness", ["same", "different", "error"])
def test_vmap_decides_whether_dropout_masks_differ(randomness: str) -> None:
    one = tensors()
    given = [x.expand(3, *x.shape) for x in one]
    run = torch.vmap(lambda *x: attend(*x, mw.causal(), dropout_p=0.5), randomness=randomness)
    if randomness == "error":
        with pytest.raises(RuntimeError, match="randomness"):
            run(*given)
        return
    out = run(*given)
    assert torch.equal(out[0], out[1]) == (randomness == "same")
    assert torch.equal(out[1], out[2]) == (randomness == "same")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("grad", [False, True])
def test_forward_mode_is_rejected(dtype: torch.dtype, grad: bool) -> None:
    q, k, v = tensors(dtype=dtype)
    with pytest.raises(mw.Unsupported, match='impl="reference"'):
        torch.func.jvp(lambda x: attend(x, k, v, mw.causal()), (q,), (q,))
    dual = torch.autograd.forward_ad
    with dual.dual_level(), torch.set_grad_enabled(grad):
        for n in range(3):
            given = [dual.make_dual(x, x) if n == i else x for i, x in enumerate((q, k, v))]
            with pytest.raises(mw.Unsupported, match='impl="reference"'):
                attend(*given, mw.causal())
        attend(q, k, v, mw.causal())  # without a tangent there is nothing to refuse


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch
@pytest.mark.parametrize("impl", ["auto", "reference"])
@pytest.mark.parametrize("name", ["scale", "softcap", "dropout_p"])
def test_tangents_of_numbers_are_rejected(name: str, impl: str) -> None:
    q, k, v = tensors()
    number = torch.tensor(0.5)

    def run(x: torch.Tensor) -> Any:
        return attend(q, k, v, mw.causal(), impl=impl, **{name: x})

    for differentiate in (
        lambda: torch.func.jvp(run, (number,), (number,)),
        lambda: torch.func.vjp(run, number),
        lambda: torch.func.jacfwd(run)(number),
    ):
        with pytest.raises(mw.AttentionError, match=f"{name} is of type Tensor"):
            differentiate()
    dual = torch.autograd.forward_ad
    with dual.dual_level():
        with pytest.raises(mw.AttentionError, match=f"{name} is of type Tensor"):
            run(dual.make_dual(number, number))
        if (impl, name) != ("reference", "dropout_p"):
            assert torch.equal(run(number), run(number)) == (name != "dropout_p")


class Passing(TorchDispatchMode):
    """A mode that changes nothing."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


def tangent_of(name: str, run: Any, x: torch.Tensor) -> Any:
    """The tangent of `run` at x, where the tangent of x is x, by one of PyTorch's functions."""
    if name == "linearize":
        return torch.func.linearize(run, x)[1](x)
    if name == "jacfwd":
        return torch.func.jacfwd(run)(x)
    if name == "vmap of jvp":
        return torch.vmap(lambda t: torch.func.jvp(run, (x,), (t,))[1])(torch.stack([x, x]))
    if name == "jvp of vmap":
        two = torch.stack([x, x])
        return torch.func.jvp(torch.vmap(run), (two,), (two,))[1]
    if name == "jvp":
        return torch.func.jvp(run, (x,), (x,))[1]
    dual = torch.autograd.forward_ad
    with dual.dual_level():
        return dual.unpack_dual(run(dual.make_dual(x, x))).tangent


FORWARD_MODES = ["dual", "jvp", "jacfwd", "linearize", "vmap of jvp", "jvp of vmap"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:Attempted to insert")  # of torch
@pytest.mark.parametrize("mode", [contextlib.nullcontext, Passing])
@pytest.mark.parametrize("name", FORWARD_MODES)
@pytest.mark.parametrize("impl", ["auto", "blocks"])
def test_forward_mode_is_rejected_in_every_mode(impl: str, name: str, mode: Any) -> None:
    q, k, v = tensors(dtype=torch.float32, q_len=5)
    with mode():
        for n, x in enumerate((q, k, v)):
            run = lambda a, n=n: attend(  # noqa: E731
                *(a if n == i else b for i, b in enumerate((q, k, v))), mw.causal(), impl=impl
            )
            with pytest.raises(mw.Unsupported, match='impl="reference"'):
                tangent_of(name, run, x)
        with pytest.raises(mw.Unsupported, match='impl="reference"'):
            tangent_of(
                name, lambda x: attend(q, k, v, mw.causal(), impl=impl, sinks=x), v[0, :, 0, 0]
            )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch
@pytest.mark.parametrize("mode", [contextlib.nullcontext, Passing])
@pytest.mark.parametrize("impl", ["auto", "blocks"])
def test_tangents_of_gradients_are_rejected(impl: str, mode: Any) -> None:
    given = tensors(dtype=torch.float32, q_len=5).learning()
    dual = torch.autograd.forward_ad
    with mode():
        results = attend(*given, mw.causal(), impl=impl, return_lse=True)
        for x in results:
            with dual.dual_level():
                grad = dual.make_dual(torch.ones_like(x), torch.ones_like(x))
                with pytest.raises(mw.Unsupported, match='impl="reference"'):
                    torch.autograd.grad(x, given, grad, retain_graph=True)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch
def test_without_a_tangent_a_mode_computes_in_a_dual_level() -> None:
    q, k, v = tensors(dtype=torch.float32, q_len=5)
    with torch.autograd.forward_ad.dual_level(), Passing():
        found = attend(q, k, v, mw.causal())
    torch.testing.assert_close(found, attend(q, k, v, mw.causal()))


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:Attempted to insert")  # of torch
@pytest.mark.parametrize("mode", [contextlib.nullcontext, Passing])
@pytest.mark.parametrize("name", FORWARD_MODES)
def test_forward_mode_of_reference_in_every_mode(name: str, mode: Any) -> None:
    q, k, v = tensors(q_len=5)
    run = lambda x: attend(x, k, v, mw.causal(), impl="reference")  # noqa: E731
    with mode():
        found = tangent_of(name, run, q)
    torch.testing.assert_close(found, tangent_of(name, lambda x: naive(x, k, v), q))


def naive(q: Any, k: Any, v: Any) -> Any:
    """Causal attention, written out."""
    scores = q @ k.mT / q.shape[-1] ** 0.5
    later = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    return scores.masked_fill(later, -torch.inf).softmax(-1) @ v


@pytest.mark.parametrize("mode", [contextlib.nullcontext, Passing])
@pytest.mark.parametrize("impl", ["auto", "blocks"])
def test_second_derivatives_are_rejected_in_every_mode(impl: str, mode: Any) -> None:
    given = tensors(dtype=torch.float32, q_len=5).learning()
    with mode():
        out = attend(*given, mw.causal(), impl=impl)
        grads = torch.autograd.grad(out.square().sum(), given, create_graph=True)
        with pytest.raises(mw.Unsupported, match='impl="reference"'):
            torch.autograd.grad(grads[0].sum(), given)


def test_batches_of_gradients_in_a_mode() -> None:
    given = tensors(dtype=torch.float32, q_len=5).learning()
    with Passing():
        out = attend(*given, mw.causal())
    incoming = torch.randn(3, *out.shape)
    found = torch.autograd.grad(out, given, incoming, is_grads_batched=True)
    plain = attend(*given, mw.causal())
    expected = torch.autograd.grad(plain, given, incoming, is_grads_batched=True)
    torch.testing.assert_close(found, expected)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch
def test_forward_mode_of_reference() -> None:
    q, k, v = tensors(q_len=5)
    run = functools.partial(attend, mask=mw.window(back=2), impl="reference")
    _, tangent = torch.func.jvp(lambda x: run(x, k, v), (q,), (torch.ones_like(q),))
    step = 1e-6
    difference = (run(q + step, k, v) - run(q - step, k, v)) / (2 * step)
    torch.testing.assert_close(tangent, difference, atol=1e-7, rtol=1e-5)


@pytest.mark.parametrize("impl", ["auto", "blocks"])
@pytest.mark.parametrize("name", VARIED)
def test_vmap_over_empty_dimension(name: str, impl: str) -> None:
    q, k, v = (torch.zeros(0, *x.shape, dtype=torch.float32) for x in tensors(batch=2))
    out, lse = torch.vmap(lambda *x: attend(*x, VARIED[name], return_lse=True, impl=impl))(q, k, v)
    assert out.shape == q.shape
    assert lse.shape == q.shape[:-1]
    leaves = [x.requires_grad_() for x in (q, k, v)]
    total = torch.vmap(lambda *x: attend(*x, VARIED[name], impl=impl))(*leaves).sum()
    assert [g.shape for g in torch.autograd.grad(total, leaves)] == [q.shape] * 3


@pytest.mark.parametrize("dropout_p", [0.0, 0.4])
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing(reentrant: bool, dropout_p: float) -> None:
    given = tensors(batch=2).learning()

    def layer(*given: torch.Tensor) -> Any:
        q, k, v = (torch.tanh(x) for x in given)
        out, lse = attend(q, k, v, VARIED["by batch"], dropout_p=dropout_p, return_lse=True)
        return (out * lse.unsqueeze(-1)).square()

    found = []
    for run in (layer, lambda *x: checkpoint(layer, *x, use_reentrant=reentrant)):
        torch.manual_seed(0)
        out = run(*given)
        for x in given:
            x.grad = None
        out.sum().backward()
        found.append((out.detach(), *(x.grad for x in given)))
    assert all(torch.equal(x, y) for x, y in zip(*found, strict=True))


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("name", ["causal", "window", "holes", "sinks"])
def test_without_gradients_and_then_with(name: str, mode: Any) -> None:
    mask, given = MASKS[name] & mw.everything(), tensors().learning()
    with mode():
        quiet = attend(*given, mask)
    assert not quiet.requires_grad
    out = attend(*given, mask)
    assert torch.equal(out, quiet)
    assert all(x.isfinite().all() for x in gradients(out, given))


@pytest.mark.parametrize("dropout_p", [0.0, 0.4])
def test_autocast_gives_sdpas_dtype(dropout_p: float) -> None:
    given = tensors(dtype=torch.float32, dim=8).learning()
    with torch.autocast("cpu", torch.bfloat16):
        torch.manual_seed(0)
        out = attend(*given, mw.causal(), dropout_p=dropout_p)
        assert out.dtype == F.scaled_dot_product_attention(*given, is_causal=True).dtype
        out.float().square().sum().backward()
    assert all(x.grad is not None and x.grad.dtype == torch.float32 for x in given)
    halves = [x.detach().bfloat16() for x in given]
    torch.manual_seed(0)
    assert torch.equal(out, attend(*halves, mw.causal(), dropout_p=dropout_p))


def test_autocast_as_in_sdpa() -> None:
    q, k, v = tensors(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        mixed = attend(q, k.bfloat16(), v.bfloat16(), mw.causal())
        assert torch.equal(mixed, attend(q.bfloat16(), k.bfloat16(), v.bfloat16(), mw.causal()))
        assert attend(*tensors(), mw.causal()).dtype == torch.float64
    with torch.autocast("cpu", enabled=False), pytest.raises(mw.ArgumentError, match="dtype"):
        attend(q, k.bfloat16(), v.bfloat16(), mw.causal())


def test_backward_inside_autocast_is_as_exact_as_outside() -> None:
    grads = []
    for inside in (True, False):
        given = tensors(dtype=torch.float32, q_len=30).learning()
        torch.manual_seed(0)
        out = attend(*given, MASKS["window"], dropout_p=0.2)
        with torch.autocast("cpu", torch.bfloat16, enabled=inside):
            grads.append(gradients(out.square(), given))
    assert all(torch.equal(x, y) for x, y in zip(*grads, strict=True))
