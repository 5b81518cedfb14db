"""Soft cap, bias and sinks under random masks against dense attention in float64, with gradients."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

import maskwright as mw
from maskwright.bias.terms import DistanceTerm, GridTerm, TensorTerm
from maskwright.engine.reference import reference
from tests._helpers.attention_inputs import HAS_KERNEL, error, largest_summand, tensors, tolerance
from tests._helpers.score_terms import (
    ScoreOptions,
    TermBias,
    attention_by_loops,
    exact_attention,
    score_options,
)
from tests._helpers.strategies import bind, cases
from tests.conftest import FAST, SHARES

CASES = int(os.environ.get("MASKWRIGHT_ENGINE_CASES", "200" if FAST else "2000"))
IMPLS = ["auto", "auto", "auto", "blocks", "sdpa"]
DTYPES = [torch.float32, torch.float32, torch.bfloat16, torch.float16, torch.float64]


@st.composite
def calls(draw: st.DrawFn, bound: mw.BoundMask) -> dict[str, Any]:
    """Sizes, dtypes and options of one call."""
    frame = bound.frame
    dtype = draw(st.sampled_from(DTYPES))
    group = draw(st.sampled_from([n for n in (1, 1, 2, 3) if frame.heads % n == 0]))
    dim, value_dim = draw(st.sampled_from([(8, 8), (8, 8), (1, 1), (4, 7), (9, 2), (64, 64)]))
    seed = draw(st.integers(0, 2**31))
    given = tensors(
        *(frame.batch, frame.heads, frame.q_len, frame.kv_len, dim, value_dim),
        *(frame.heads // group, dtype, seed),
    )
    made = torch.Generator().manual_seed(seed)
    own = dtype if draw(st.booleans()) else torch.float32
    return {
        "given": given,
        "options": draw(score_options(frame, own)),
        "grad": torch.randn(*given.q.shape[:3], value_dim, generator=made).to(dtype),
        "grad_lse": torch.randn(given.q.shape[:3], generator=made) if draw(st.booleans()) else None,
        "scale": draw(st.sampled_from([None, None, 0.3, -0.5])),
        "impl": draw(st.sampled_from(IMPLS)),
    }


def gradients(found: Any, call: dict[str, Any], leaves: Any) -> tuple[torch.Tensor, ...]:
    out, lse = found
    total = (out * call["grad"].to(out.dtype)).sum()
    if call["grad_lse"] is not None and lse is not None:
        total = total + (lse.masked_fill(lse.isinf(), 0.0) * call["grad_lse"]).sum()
    if not total.requires_grad:
        return tuple(torch.zeros_like(x) for x in leaves)
    return torch.autograd.grad(total, leaves, materialize_grads=True)


def check(bound: mw.BoundMask, call: dict[str, Any]) -> None:
    given, options, impl = call["given"].learning(), call["options"].leaves(), call["impl"]
    wants_lse = impl != "sdpa"
    if impl == "sdpa" and (options.softcap or options.sinks is not None or 0 in given.q.shape):
        impl = "auto"
    if not all(given.k.shape) and impl == "sdpa":
        impl = "auto"
    found = mw.attention(
        *(*given, bound),
        **options.arguments,
        scale=call["scale"],
        enable_gqa=True,
        impl=impl,
        return_lse=wants_lse,
    )
    out, lse = found if wants_lse else (found, None)
    doubles = tuple(x.detach().double().requires_grad_() for x in given)
    exact_options = call["options"].leaves(torch.float64)
    right = exact_attention(doubles, bound, exact_options, call["scale"])
    if not wants_lse:
        call = {**call, "grad_lse": None}
    dtype = given.q.dtype
    assert out.dtype == dtype
    length = max(*bound.shape[2:], 1)
    summand = largest_summand(given, call["grad"], call["scale"])
    bias = max(
        (float(x.detach().abs().max()) for x in options.bias.tensors if x.numel()), default=0
    )
    # Rounding errors of large scores are factors of the weights.
    large = max(1.0, bias)
    if impl == "sdpa":  # adds the bias in the dtype of q
        large *= 1 + 100 * torch.finfo(dtype).eps / torch.finfo(torch.float32).eps / 100
    assert error(out, right.out) <= large * tolerance(dtype, right.out, length)
    if lse is not None:
        kind = torch.float64 if dtype == torch.float64 else torch.float32
        assert error(lse, right.lse) <= large * tolerance(kind, right.lse, length)
    leaves, exact_leaves = (*given, *options.tensors), (*doubles, *exact_options.tensors)
    mine = gradients((out, lse), call, leaves)
    truth = gradients((right.out, right.lse), call, exact_leaves)
    cells = bound.frame.batch * bound.frame.heads * length  # summands of the gradient of a table
    for n, (one, other) in enumerate(zip(mine, truth, strict=True)):
        assert one.dtype == leaves[n].dtype
        assert one.shape == other.shape
        worst = dtype if n < 3 or torch.finfo(dtype).eps > torch.finfo(one.dtype).eps else one.dtype
        limit = large * tolerance(worst, other, length if n < 3 else length * cells, summand)
        assert error(one, other) <= limit, (n, error(one, other), limit)


@pytest.mark.parametrize("share", range(SHARES))
def test_random_calls(share: int) -> None:
    @settings(max_examples=CASES // SHARES)
    @given(data=st.data())
    def run(data: st.DataObject) -> None:
        bound = bind(*data.draw(cases()))
        check(bound, data.draw(calls(bound)))

    run()


@settings(max_examples=40)
@given(data=st.data())
def test_reference_is_the_definition(data: st.DataObject) -> None:
    bound = bind(*data.draw(cases()))
    frame = bound.frame
    given = tensors(frame.batch, frame.heads, frame.q_len, frame.kv_len)
    options = data.draw(score_options(frame, torch.float64))
    right = attention_by_loops(*given, bound, options)
    found = exact_attention(given, bound, options, None)
    torch.testing.assert_close((found.out, found.lse), right)


@settings(max_examples=60)
@given(data=st.data())
def test_gradients_are_finite_differences(data: st.DataObject) -> None:
    bound = bind(*data.draw(cases()))
    frame = bound.frame
    given = tensors(frame.batch, frame.heads, frame.q_len, frame.kv_len, 3).learning()
    options = data.draw(score_options(frame, torch.float64)).leaves()

    def attend(*leaves: torch.Tensor) -> Any:
        values = leaves[3 : 3 + len(options.bias.terms)]
        terms = [t._replace(values=x) for t, x in zip(options.bias.terms, values, strict=True)]
        sinks = None if options.sinks is None else leaves[-1]
        own = ScoreOptions(options.softcap, TermBias(tuple(terms)), sinks)
        out, lse = mw.attention(*leaves[:3], bound, **own.arguments, return_lse=True)
        return out, lse.masked_fill(lse.isinf(), 0.0)

    # gradcheck refuses expanded tensors.
    leaves = [x.detach().clone(memory_format=torch.contiguous_format) for x in options.tensors]
    inputs = (*given, *(x.requires_grad_() for x in leaves))
    assert torch.autograd.gradcheck(attend, inputs, fast_mode=True)


IMPL_DTYPES = [("blocks", torch.float32), ("reference", torch.float64)]
IMPL_DTYPES += [("native", torch.float32)] if HAS_KERNEL else []


def call(impl: str, dtype: torch.dtype, **options: Any) -> tuple[torch.Tensor, torch.Tensor]:
    given = tensors(2, 4, 9, 12, kv_heads=2, dtype=dtype)
    mask = mw.causal() & mw.padding(lengths=[12, 5])
    out, lse = mw.attention(*given, mask, enable_gqa=True, impl=impl, return_lse=True, **options)
    return out, lse


@pytest.mark.parametrize(("impl", "dtype"), IMPL_DTYPES)
def test_softcap_bounds_the_scores(impl: str, dtype: torch.dtype) -> None:
    """With a tiny cap all scores are nearly 0, so a row is the mean of its visible values."""
    q, k, v = tensors(1, 1, 6, dtype=dtype)
    out = mw.attention(1e3 * q, k, v, mw.causal(), softcap=1e-4, impl=impl)
    mean = v.cumsum(2) / torch.arange(1, 7)[:, None]
    torch.testing.assert_close(out, mean.to(dtype), atol=1e-3, rtol=0)


@pytest.mark.parametrize(("impl", "dtype"), IMPL_DTYPES)
def test_logsumexp_has_no_sink(impl: str, dtype: torch.dtype) -> None:
    without = call(impl, dtype, softcap=3.0)
    sinks = torch.tensor([-1.0, 0.0, 2.0, 100.0], dtype=dtype)
    out, lse = call(impl, dtype, softcap=3.0, sinks=sinks)
    torch.testing.assert_close(lse, without[1])
    factor = torch.sigmoid(lse - sinks[:, None].to(lse.dtype)).unsqueeze(-1).nan_to_num(0.0)
    torch.testing.assert_close(out, (without[0] * factor).to(dtype))
    assert out[:, 3].abs().max() < 1e-20


@pytest.mark.parametrize(("impl", "dtype"), IMPL_DTYPES)
def test_sink_of_minus_infinity_is_none(impl: str, dtype: torch.dtype) -> None:
    given = tensors(2, 4, 9, 12, kv_heads=2, dtype=dtype).learning()
    sinks = torch.full((4,), -torch.inf, dtype=dtype, requires_grad=True)
    mask = mw.causal() & mw.padding(lengths=[12, 0])
    out = mw.attention(*given, mask, enable_gqa=True, impl=impl, sinks=sinks)
    assert torch.equal(out, mw.attention(*given, mask, enable_gqa=True, impl=impl))
    *grads, sink_grad = torch.autograd.grad(out.square().sum(), (*given, sinks))
    assert all(x.isfinite().all() for x in grads)
    assert not sink_grad.any()


@pytest.mark.parametrize(("impl", "dtype"), IMPL_DTYPES)
def test_fully_masked_rows_with_sinks(impl: str, dtype: torch.dtype) -> None:
    given = tensors(2, 2, 5, dtype=dtype).learning()
    sinks = torch.ones(2, dtype=dtype, requires_grad=True)
    mask = mw.padding(lengths=[5, 0])
    out, lse = mw.attention(*given, mask, sinks=sinks, impl=impl, return_lse=True)
    assert not out[1].any()
    assert bool((lse[1] == -torch.inf).all())
    grads = torch.autograd.grad(out[1].sum(), (*given, sinks))
    assert not any(x.any() for x in grads)


@pytest.mark.parametrize(("impl", "dtype"), IMPL_DTYPES)
def test_bias_of_batch_and_head(impl: str, dtype: torch.dtype) -> None:
    """Equal numbers of batch rows and heads must not be confused."""
    given = tensors(3, 3, 7, dtype=dtype)
    bias = torch.randn(3, 3, 7, 7, dtype=dtype)
    for shape in ((3, 1, 1, 1), (1, 3, 1, 1), (1, 1, 7, 1), (1, 1, 1, 7), (7, 7), (3, 7, 7), (7,)):
        own = bias.flatten()[: torch.Size(shape).numel()].reshape(shape)
        out = mw.attention(*given, mw.causal(), bias=own, impl=impl)
        right = reference(*given, mw.causal().on(7), bias=own.double()).out
        torch.testing.assert_close(out.double(), right, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(("impl", "dtype"), IMPL_DTYPES)
def test_only_requested_terms_get_a_gradient(impl: str, dtype: torch.dtype) -> None:
    given = tensors(1, 2, 6, dtype=dtype)
    fixed, learnt = torch.randn(2, 11, dtype=dtype), torch.randn(1, 1, 6, 6, dtype=dtype)
    learnt.requires_grad_()
    bias = TermBias((DistanceTerm(fixed, 5), TensorTerm(learnt)))
    out = mw.attention(*given, mw.causal(), bias=bias, impl=impl)
    (found,) = torch.autograd.grad(out.square().sum(), (learnt,))
    other = learnt.detach().double().requires_grad_()
    exact = TermBias((DistanceTerm(fixed.double(), 5), TensorTerm(other)))
    right = exact_attention(
        tuple(x.double() for x in given), mw.causal().on(6), ScoreOptions(bias=exact), None
    )
    (truth,) = torch.autograd.grad(right.out.square().sum(), (other,))
    torch.testing.assert_close(found.double(), truth, atol=1e-5, rtol=1e-5)
    assert found.triu(1).any().item() is False


@pytest.mark.parametrize("impl", ["native", "blocks"] if HAS_KERNEL else ["blocks"])
def test_grid_of_swin(impl: str) -> None:
    """The values of a grid are those of the relative position index of Swin Transformer."""
    height, width, heads = 4, 3, 2
    table = torch.randn((2 * height - 1) * (2 * width - 1), heads)
    coordinates = torch.stack(
        torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    ).flatten(1)
    relative = (coordinates[:, :, None] - coordinates[:, None, :]).permute(1, 2, 0)
    index = (relative[..., 0] + height - 1) * (2 * width - 1) + relative[..., 1] + width - 1
    dense = table[index].permute(2, 0, 1)  # (heads, q, k), by q - k
    values = table.T.reshape(heads, 2 * height - 1, 2 * width - 1).flip(1, 2)  # by k - q
    given = tensors(2, heads, height * width, dtype=torch.float32)
    out = mw.attention(*given, bias=TermBias((GridTerm(values, height, width),)), impl=impl)
    torch.testing.assert_close(out, mw.attention(*given, bias=dense, impl="reference"))


def test_numbers_of_threads_do_not_change_bits() -> None:
    given = tensors(2, 4, 500, kv_heads=2, dim=8, dtype=torch.float32).learning()
    values = torch.randn(4, 999, requires_grad=True)
    shared = torch.randn(1, 1, 500, 500, requires_grad=True)
    per_key = torch.randn(1, 1, 1, 500, requires_grad=True)
    sinks = torch.randn(4, requires_grad=True)
    bias = TermBias((DistanceTerm(values, 499), TensorTerm(shared), TensorTerm(per_key)))
    leaves, found = (*given, values, shared, per_key, sinks), []
    threads = torch.get_num_threads()
    try:
        for count in (1, 2, 3, 4, 4):
            torch.set_num_threads(count)
            out = mw.attention(
                *given, mw.causal(), enable_gqa=True, bias=bias, sinks=sinks, softcap=4.0
            )
            found.append((out.detach(), *torch.autograd.grad(out.square().sum(), leaves)))
    finally:
        torch.set_num_threads(threads)
    for others in found[1:]:
        assert all(torch.equal(x, y) for x, y in zip(found[0], others, strict=True))


INVALID: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "softcap of 0": ({"softcap": 0.0}, mw.ArgumentError, "softcap is 0.0"),
    "softcap inf": ({"softcap": float("inf")}, mw.ArgumentError, "softcap is inf"),
    "softcap 1e40": ({"softcap": 1e40}, mw.ArgumentError, r"softcap is 1e\+40"),
    "softcap 1e-45": ({"softcap": 1e-45}, mw.ArgumentError, "softcap is 1e-45"),
    "scale 1e39": ({"scale": 1e39}, mw.ArgumentError, r"scale is 1e\+39"),
    "scale -1e39": ({"scale": -1e39}, mw.ArgumentError, r"scale is -1e\+39"),
    "scale NaN": ({"scale": float("nan")}, mw.ArgumentError, "scale is nan"),
    "huge integer": ({"scale": 10**400}, mw.ArgumentError, "scale is an integer"),
    "softcap text": ({"softcap": "30"}, mw.ArgumentError, "softcap is '30'"),
    "sinks of other heads": ({"sinks": torch.zeros(3)}, mw.ArgumentError, r"sinks has shape \(3,\)"),
    "sinks with NaN": ({"sinks": torch.tensor([0.0, torch.nan])}, mw.ArgumentError, "sinks contains NaN"),
    "fake sinks": ({"sinks": FakeTensorMode().from_tensor(torch.zeros(2))}, mw.ArgumentError, "FakeTensor"),
    "fake bias": ({"bias": FakeTensorMode().from_tensor(torch.zeros(5))}, mw.ArgumentError, "FakeTensor"),
    "float64 bias": ({"bias": torch.full((5,), -1e300, dtype=torch.float64)}, mw.ArgumentError, "float32"),
    "sinks of integers": ({"sinks": torch.zeros(2).long()}, mw.ArgumentError, "int64"),
    "bias of text": ({"bias": "alibi"}, mw.ArgumentError, "bias is"),
    "boolean bias": ({"bias": torch.ones(5, 5).bool()}, mw.ArgumentError, "bool"),
    "bias with inf": ({"bias": torch.full((5, 5), -torch.inf)}, mw.ArgumentError, "-inf.*from_additive"),
    "bias with NaN": ({"bias": torch.full((5,), torch.nan)}, mw.ArgumentError, "mask"),
    "wrong size": ({"bias": torch.zeros(4, 5)}, mw.FrameError, r"\(1, 1, 4, 5\)"),
    "five axes": ({"bias": torch.zeros(1, 1, 1, 5, 5)}, mw.ArgumentError, "four"),
    "distances": ({"bias": TermBias((DistanceTerm(torch.zeros(2, 8), 4),))}, mw.FrameError, "distances"),
    "small grid": ({"bias": TermBias((GridTerm(torch.zeros(2, 3, 3), 2, 2),))}, mw.FrameError, "grid"),
}  # fmt: skip


@pytest.mark.parametrize("name", INVALID)
def test_invalid_arguments(name: str) -> None:
    options, kind, text = INVALID[name]
    given = tensors(1, 2, 5, dtype=torch.float32)
    with pytest.raises(kind, match=text):
        mw.attention(*given, mw.causal(), **options)
    with pytest.raises(kind, match=text):
        mw.explain_backend(*given, mw.causal(), **options)


@pytest.mark.parametrize("options", [{"softcap": 2.0}, {"sinks": torch.zeros(2)}])
def test_sdpa_refuses(options: dict[str, Any]) -> None:
    with pytest.raises(mw.Unsupported, match=next(iter(options))):
        mw.attention(*tensors(1, 2, 5), mw.causal(), impl="sdpa", **options)


# -- large values ------------------------------------------------------------------------------

MIN, MAX = torch.finfo(torch.float32).min, torch.finfo(torch.float32).max
# Values that repeat along the keys of a row. Multiplied by log2(e), those beyond 2.36e38 overflow.
LARGE: dict[str, list[float]] = {
    "min": [MIN],
    "max": [MAX],
    "min or 0": [MIN, 0.0, 0.0],
    "max, min or 0": [MAX, MIN, 0.0],
    "two negative": [-3.4e38, -3.0e38],
    "two positive": [3.0e38, 3.1e38],
    "neighbours": [MIN, float(np.nextafter(np.float32(MIN), np.float32(0)))],
    "around the overflow": [-2.3e38, -2.4e38],
    "fill": [-1e9],
    "small fill": [-1e4],
}
LARGE_SIZES = [(40, 40), (3, 50), (130, 600)]


def check_large(
    impl: str, dtype: torch.dtype, pattern: list[float], size: tuple[int, int], **options: Any
) -> None:
    """Output and gradients against the softmax in float64 of the float32 scores."""
    q_len, kv_len = size
    given = tensors(1, 4, q_len, kv_len, 16, 16, 2, dtype)
    bias = torch.zeros(1, 1, q_len, kv_len)
    bias[:, :, ::2] = torch.tensor(pattern).repeat(kv_len)[:kv_len]
    learns = impl != "flex"
    leaves = [x.clone().requires_grad_(learns) for x in (*given, bias)]
    exact = [x.to(torch.promote_types(dtype, torch.float32)) for x in (*given, bias)]
    exact = [x.clone().requires_grad_() for x in exact]
    q, k, v, b = exact
    k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
    scores = (q @ k.mT / 4 + b).double()
    visible = torch.from_numpy(mw.causal().on(q_len, kv_len).dense())
    right = scores.masked_fill(~visible, -torch.inf).softmax(-1) @ v.double()
    out = mw.attention(
        *(*leaves[:3], mw.causal()), bias=leaves[3], impl=impl, enable_gqa=True, **options
    )
    limit = 40 * max(torch.finfo(dtype).eps, torch.finfo(torch.float32).eps)
    assert error(out, right) <= limit
    if not learns:
        return
    grad = torch.randn(right.shape, generator=torch.Generator().manual_seed(1))
    mine = torch.autograd.grad((out * grad.to(out.dtype)).sum(), leaves)
    truth = torch.autograd.grad((right * grad.double()).sum(), exact)
    for n, (one, other) in enumerate(zip(mine, truth, strict=True)):
        assert error(one, other) <= limit * max(1.0, float(other.abs().max())) * 4, n


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("impl", ["auto", "blocks", "sdpa"])
def test_large_bias(impl: str, dtype: torch.dtype, name: str) -> None:
    for size in LARGE_SIZES[:2]:
        check_large(impl, dtype, LARGE[name], size)


@pytest.mark.parametrize("name", ["min", "max, min or 0", "two negative", "two positive"])
def test_large_bias_in_reference(name: str) -> None:
    check_large("reference", torch.float32, LARGE[name], (40, 40))


def test_largest_scale_and_softcaps() -> None:
    q, k, v = tensors(1, 2, 20, dtype=torch.float32)
    for softcap in (None, 1e-30, 1e30):
        for impl in IMPLS[2:4]:
            out = mw.attention(q, k, v, scale=1e30, softcap=softcap, impl=impl)
            scores = q @ k.mT * 1e30
            if softcap is not None:
                scores = softcap * torch.tanh(scores / softcap)
            torch.testing.assert_close(out, scores.double().softmax(-1).float() @ v)


@pytest.mark.parametrize("sink", [MIN, -1e9, 1e9, MAX])
@pytest.mark.parametrize("value", [MIN, -1e9, 1e9, MAX])
@pytest.mark.skipif(not HAS_KERNEL, reason="the C kernel adds the sink to the sum itself")
def test_large_sinks_and_bias(value: float, sink: float) -> None:
    """A sink that equals the scores has the weight of one more key; "blocks" rounds it away."""
    for impl in ["auto"] if value == sink else ["auto", "blocks"]:
        given = tensors(1, 2, 20, dtype=torch.float32).learning()
        sinks = torch.full((2,), sink, requires_grad=True)
        bias = torch.full((1, 20), value)
        out = mw.attention(*given, bias=bias, sinks=sinks, impl=impl)
        keys = 21.0 if sink == value else 20.0 if sink < value else float("inf")
        mean = given.v.sum(2, keepdim=True) / keys
        torch.testing.assert_close(out, mean.expand_as(out))
        dv = torch.autograd.grad(out.sum(), given.v)[0]
        torch.testing.assert_close(dv, torch.full_like(dv, 20 / keys))
