"""Tensors that are not plain memory on the CPU: computed right, or refused, never read blindly."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.tensor import DTensor, Replicate
from torch.testing._internal.two_tensor import TwoTensor

import maskwright as mw
from tests._helpers.attention_inputs import BACKEND_NAMES, gradients, tensors
from tests._helpers.run_python import run_python

CAUSAL = mw.causal()


@pytest.mark.parametrize("impl", BACKEND_NAMES)
def test_another_default_device(impl: str) -> None:
    given = tensors(dtype=torch.float32).learning()
    right = mw.attention(*given, CAUSAL, impl=impl, return_lse=True)
    grads = gradients(right[0].square(), given)
    with torch.device("meta"):
        found = mw.attention(*given, CAUSAL, impl=impl, return_lse=True)
        again = gradients(found[0].square(), given)
        torch.manual_seed(0)
        dropped = mw.attention(*given, CAUSAL, impl=impl, dropout_p=0.5)
    assert all(torch.equal(x, y) for x, y in zip((*found, *again), (*right, *grads), strict=True))
    torch.manual_seed(0)
    assert torch.equal(dropped, mw.attention(*given, CAUSAL, impl=impl, dropout_p=0.5))


@pytest.mark.parametrize("impl", ["auto", *BACKEND_NAMES])
@pytest.mark.parametrize("place", range(3))
def test_fake_tensor_among_real_ones(place: int, impl: str) -> None:
    given = list(tensors(dtype=torch.float32))
    given[place] = FakeTensorMode().from_tensor(given[place])
    with pytest.raises(Exception, match=r"[Ff]ake"):
        mw.attention(*given, CAUSAL, impl=impl)


@pytest.mark.parametrize("impl", ["auto", *BACKEND_NAMES])
def test_dtensor_is_rejected(impl: str) -> None:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        mesh = dist.device_mesh.init_device_mesh("cpu", (1,))
        given = [DTensor.from_local(x, mesh, [Replicate()]) for x in tensors(dtype=torch.float32)]
        with pytest.raises(mw.Unsupported, match=r"q is a DTensor.*to_local"):
            mw.attention(*given, CAUSAL, impl=impl)
        plain = [x.to_local() for x in given]
        assert mw.attention(*plain, CAUSAL, impl=impl).isfinite().all()
    finally:
        dist.destroy_process_group()


@pytest.mark.parametrize("place", range(3))
def test_wrapper_subclass_is_rejected(place: int) -> None:
    given: list[Any] = list(tensors(dtype=torch.float32))
    given[place] = TwoTensor(given[place], given[place].clone())
    with pytest.raises(mw.Unsupported, match=f"{'qkv'[place]} is a TwoTensor"):
        mw.attention(*given, CAUSAL)


class Named(torch.Tensor):
    """A subclass without data of its own."""


@pytest.mark.parametrize("kind", [Named, torch.nn.Parameter])
def test_other_subclasses_are_computed(kind: Any) -> None:
    given = tensors(dtype=torch.float32)
    right = mw.attention(*given, CAUSAL)
    wrapped = [x.as_subclass(Named) if kind is Named else kind(x) for x in given]
    found = mw.attention(*wrapped, CAUSAL)
    assert torch.equal(torch.Tensor(found.detach()), right)


@pytest.mark.parametrize("impl", BACKEND_NAMES)
def test_zero_tensors_of_autograd(impl: str) -> None:
    q, k, v = tensors(dtype=torch.float32)
    zero = torch._efficientzerotensor(v.shape)
    assert zero._is_zerotensor()
    out, lse = mw.attention(q, k, zero, CAUSAL, impl=impl, return_lse=True)
    assert not out.any()
    assert lse.isfinite().all()
    found = mw.attention(zero, k, v, CAUSAL, impl=impl)
    torch.testing.assert_close(found, mw.attention(torch.zeros_like(q), k, v, CAUSAL, impl=impl))


@pytest.mark.parametrize("impl", [*BACKEND_NAMES, "sdpa", "flex", "reference"])
@pytest.mark.parametrize("place", range(3))
def test_freed_storage_is_rejected(place: int, impl: str) -> None:
    given = tensors(dtype=torch.float32)
    given[place].untyped_storage().resize_(0)
    with pytest.raises(mw.Unsupported, match="empty storage"):
        mw.attention(*given, CAUSAL, impl=impl)


@pytest.mark.parametrize("name", ["bias", "sinks"])
def test_freed_storage_of_scores_is_rejected(name: str) -> None:
    given = tensors(dtype=torch.float32)
    heads, q_len, kv_len = given.q.shape[1], given.q.shape[2], given.k.shape[2]
    x = {"bias": torch.zeros(heads, q_len, kv_len), "sinks": torch.zeros(heads)}[name]
    x.untyped_storage().resize_(0)
    with pytest.raises(mw.Unsupported, match="empty storage"):
        mw.attention(*given, CAUSAL, **{name: x})


@pytest.mark.parametrize("impl", ["auto", *BACKEND_NAMES])
@pytest.mark.parametrize("place", range(2))
def test_freed_storage_of_gradients_is_rejected(place: int, impl: str) -> None:
    given = tensors(dtype=torch.float32).learning()
    results = mw.attention(*given, CAUSAL, impl=impl, return_lse=True)
    grads = [torch.ones_like(x) for x in results]
    grads[place].untyped_storage().resize_(0)
    with pytest.raises(mw.Unsupported, match="empty storage"):
        torch.autograd.grad(results, given, grads)


def test_sinks_may_be_zeros_of_autograd() -> None:
    given = tensors(dtype=torch.float32)
    zeros = torch.zeros(given.q.shape[1])
    found = mw.attention(*given, CAUSAL, sinks=torch._efficientzerotensor(zeros.shape))
    assert torch.equal(found, mw.attention(*given, CAUSAL, sinks=zeros))


@pytest.mark.parametrize("impl", BACKEND_NAMES)
def test_lazy_negation_is_resolved(impl: str) -> None:
    plain = tensors(dtype=torch.float32).learning()
    out, lse = mw.attention(*plain, CAUSAL, impl=impl, return_lse=True)
    grads = torch.autograd.grad((out, lse), plain, (torch.sin(out), torch.cos(lse)))
    lazy = [torch._neg_view(-x.detach()).requires_grad_() for x in plain]
    assert all(x.is_neg() for x in lazy)
    found = mw.attention(*lazy, CAUSAL, impl=impl, return_lse=True)
    incoming = tuple(torch._neg_view(-x.detach()) for x in (torch.sin(out), torch.cos(lse)))
    again = torch.autograd.grad(found, lazy, incoming)
    assert all(torch.equal(x, y) for x, y in zip((*found, *again), (out, lse, *grads), strict=True))


FREED_CASES = """
import sys, torch, maskwright as mw
impl, name = sys.argv[1:]
dtype = torch.float64 if impl == "reference" else torch.float32
q, k, v = (torch.randn(1, 2, 300, 16, dtype=dtype, requires_grad=True) for _ in range(3))
bias = torch.randn(1, 2, 300, 300, dtype=dtype, requires_grad=True)
sinks = torch.randn(2, dtype=dtype, requires_grad=True)
options = {x: y for x, y in (("bias", bias), ("sinks", sinks)) if x == name}
out, lse = mw.attention(q, k, v, mw.causal(), impl=impl, return_lse=True, **options)
tensors = {"q": q, "k": k, "v": v, "out": out, "lse": lse, "bias": bias, "sinks": sinks}
grad = torch.ones(out.shape, dtype=dtype)
tensors[name].untyped_storage().resize_(0)
try:
    out.backward(grad)
except mw.Unsupported as error:
    print(error)
"""


SAVED = ("q", "k", "v", "out", "lse", "bias", "sinks")


@pytest.mark.parametrize(
    ("impl", "name"),
    [
        *((impl, name) for impl in BACKEND_NAMES for name in SAVED),
        *(("reference", name) for name in "qkv"),  # the others are not read in the backward pass
    ],
)
def test_storage_freed_before_the_backward_pass(impl: str, name: str) -> None:
    done = run_python(FREED_CASES, impl, name)
    assert done.returncode == 0, done.stderr
    assert "empty storage" in done.stdout


@pytest.mark.parametrize("impl", BACKEND_NAMES)
def test_data_of_another_shape_before_the_backward_pass(impl: str) -> None:
    given = tensors(dtype=torch.float32).learning()
    out = mw.attention(*given, CAUSAL, impl=impl)
    given.k.data = torch.zeros(1, 2, 4, 4)
    with pytest.raises(mw.AttentionError, match="the backward pass"):
        out.sum().backward()


class Opaque(torch.Tensor):
    """A wrapper subclass that does not tell which tensors it wraps."""

    @staticmethod
    def __new__(cls, x: torch.Tensor) -> Any:
        return torch.Tensor._make_wrapper_subclass(cls, x.shape, dtype=x.dtype)

    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: Any) -> Any:
        raise NotImplementedError(func)


@pytest.mark.parametrize("place", range(3))
@pytest.mark.parametrize("impl", BACKEND_NAMES)
def test_opaque_wrapper_subclass_is_rejected(impl: str, place: int) -> None:
    given: list[Any] = list(tensors(dtype=torch.float32))
    given[place] = Opaque(given[place])
    with pytest.raises(mw.Unsupported, match=f"{'qkv'[place]} is a Opaque"):
        mw.attention(*given, CAUSAL, impl=impl)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
@pytest.mark.parametrize("name", ["q", "k", "v", "bias", "sinks"])
def test_nested_tensors_are_rejected(name: str, layout: torch.layout) -> None:
    plain = dict(zip("qkv", tensors(dtype=torch.float32), strict=True))
    nested = torch.nested.nested_tensor([torch.zeros(3, 2, 4), torch.zeros(5, 2, 4)], layout=layout)
    with pytest.raises(mw.ArgumentError, match=f"{name} is a sparse or nested tensor"):
        mw.attention(**{**plain, name: nested}, mask=CAUSAL)


@pytest.mark.parametrize("name", ["bias", "sinks"])
def test_scores_of_eight_bits_and_sparse_ones_are_rejected(name: str) -> None:
    given = tensors(dtype=torch.float32)
    for x in (torch.zeros(2).to(torch.float8_e4m3fn), torch.zeros(2).to_sparse()):
        with pytest.raises(mw.ArgumentError, match=f"attention: {name}"):
            mw.attention(*given, CAUSAL, **{name: x})


CALLS_WITHOUT_VALUES: dict[str, dict[str, Any]] = {
    "plain": {},
    "logsumexp": {"return_lse": True},
    "dropout": {"dropout_p": 0.5},
    "no weight": {"dropout_p": 1.0},
    "bias and soft cap": {"bias": mw.bias.alibi(2), "softcap": 2.0},
    "padding": {"mask": CAUSAL & mw.padding(lengths=[3, 50])},
    "sdpa": {"impl": "sdpa"},
    "reference": {"impl": "reference"},
}


@pytest.mark.parametrize("name", CALLS_WITHOUT_VALUES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_tensors_without_values_give_the_shape(name: str, dtype: torch.dtype) -> None:
    options = {"mask": CAUSAL, **CALLS_WITHOUT_VALUES[name]}
    qkv = tensors(batch=2, kv_len=50, value_dim=8, dtype=dtype)
    expected = mw.attention(*qkv, **options)

    def check(*given: torch.Tensor) -> None:
        result = mw.attention(*given, **options)
        pairs = (
            [(result, expected)]
            if isinstance(result, torch.Tensor)
            else zip(result, expected, strict=True)
        )
        for x, right in pairs:
            assert (x.shape, x.dtype, x.device) == (right.shape, right.dtype, given[0].device)

    check(*(x.to("meta") for x in qkv))
    with FakeTensorMode() as mode:
        check(*(mode.from_tensor(x) for x in qkv))


@pytest.mark.parametrize("place", ["meta", "fake"])
def test_gradients_of_tensors_without_values(place: str) -> None:
    qkv = [x.to("meta") for x in tensors(dtype=torch.float32)]
    if place == "fake":
        mode = FakeTensorMode()
        qkv = [mode.from_tensor(x) for x in tensors(dtype=torch.float32)]
    qkv = [x.requires_grad_() for x in qkv]
    out = torch.nn.functional.scaled_dot_product_attention(*qkv, attn_mask=CAUSAL)
    for grad, x in zip(torch.autograd.grad(out.sum(), qkv), qkv, strict=True):
        assert (grad.shape, grad.dtype, grad.device) == (x.shape, x.dtype, x.device)


def test_flex_refuses_fake_tensors() -> None:
    with FakeTensorMode() as mode, pytest.raises(mw.Unsupported, match="FakeTensors"):
        mw.attention(*map(mode.from_tensor, tensors(dtype=torch.float32)), CAUSAL, impl="flex")
