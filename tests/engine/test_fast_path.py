"""The fast path equals the general path bit for bit, and leaves to it what it cannot compute."""

from __future__ import annotations

import math
import struct
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

import maskwright as mw
from maskwright.engine import fast_path
from maskwright.engine.api import observe_attention, override_attention
from tests._helpers.attention_inputs import MASKS, NAN, T, sizes_of, tensors
from tests._helpers.native_kernel import needs_kernel

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = needs_kernel

LAYOUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "contiguous": lambda x: x.contiguous(),
    "heads last": lambda x: x.transpose(1, 2).contiguous().transpose(1, 2),
    "part of a cache": lambda x: torch.cat([x, x.new_full((*x.shape[:2], 3, x.shape[3]), NAN)], 2)[
        :, :, : x.shape[2]
    ],
    "every second row": lambda x: x.repeat_interleave(2, dim=2)[:, :, ::2],
    "dim first": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
    "expanded": lambda x: x[:1].expand(x.shape),
    "offset": lambda x: torch.cat([x.new_zeros(3), x.flatten()])[3:].view(x.shape),
}
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@pytest.fixture
def taken() -> Iterator[list[bool]]:
    """Whether each call so far was computed by the fast path."""
    found: list[bool] = []
    try_native = fast_path.try_native

    def record(*args: Any) -> Any:
        result = try_native(*args)
        found.append(result is not None)
        return result

    with patch.object(fast_path, "try_native", record):
        yield found


def results(given: Any, mask: Any, fast: bool, **options: Any) -> list[torch.Tensor]:
    """Output, logsumexp and gradients; those of the logsumexp too if it is returned."""
    learning = [x.detach().requires_grad_() for x in given]
    if fast:
        found = mw.attention(*learning, mask, **options)
    else:
        with patch.object(fast_path, "try_native", return_value=None):
            found = mw.attention(*learning, mask, **options)
    outputs = list(found) if isinstance(found, tuple) else [found]
    draw = torch.Generator().manual_seed(5)
    grads = [torch.randn(x.shape, generator=draw).to(x.dtype) for x in outputs]
    return [*outputs, *torch.autograd.grad(outputs, learning, grads)]


def assert_same(one: list[torch.Tensor], other: list[torch.Tensor]) -> None:
    for x, y in zip(one, other, strict=True):
        assert (x.dtype, x.shape, x.stride()) == (y.dtype, y.shape, y.stride())
        assert torch.equal(x.nan_to_num(7.0), y.nan_to_num(7.0))


@st.composite
def calls(draw: st.DrawFn) -> tuple[Any, Any, dict[str, Any]]:
    kv_heads = draw(st.sampled_from([1, 2, 3]))
    sizes = {
        "batch": draw(st.sampled_from([0, 1, 2, 3])),
        "heads": kv_heads * draw(st.sampled_from([1, 2])),
        "kv_heads": kv_heads,
        "q_len": draw(st.sampled_from([0, 1, 2, 9, 33])),
        "kv_len": draw(st.sampled_from([0, 1, 5, 33, 70])),
        "dim": draw(st.sampled_from([1, 2, 8, 17])),
        "value_dim": draw(st.sampled_from([1, 8, 24])),
        "dtype": draw(st.sampled_from(DTYPES)),
    }
    layouts = [draw(st.sampled_from(sorted(LAYOUTS))) for _ in range(3)]
    given = tensors(**sizes)
    if sizes["batch"]:
        given = tuple(LAYOUTS[name](x) for name, x in zip(layouts, given, strict=True))
    lengths = [draw(st.integers(0, sizes["kv_len"])) for _ in range(sizes["batch"])] or [0]
    mask = draw(
        st.sampled_from(
            [
                None,
                mw.causal(),
                mw.window(back=3),
                mw.nothing(),
                mw.causal() | mw.prefix(2),
                mw.stride(3),
                mw.causal() & mw.padding(lengths=lengths),
                mw.by_head([mw.causal(), *[mw.chunks(4)] * (sizes["heads"] - 1)]),
            ]
        )
    )
    options = {
        "scale": draw(st.sampled_from([None, 0.3, 1, np.float64(0.7)])),
        "return_lse": draw(st.booleans()),
        "q_start": draw(st.sampled_from([None, 0])),
        "enable_gqa": True,
    }
    return given, mask, options


@pytest.fixture
def without_dlpack() -> Iterator[None]:
    """Tensors are read by their attributes, as with versions of PyTorch without DLPack's C functions."""
    kernel = fast_path._kernel()
    types = (torch.Tensor, torch.strided, torch.empty_like, fast_path.empty_out, fast_path.DTYPES)
    kernel.set_types(*types, None)
    yield
    kernel.set_types(*types, getattr(torch.Tensor, "__dlpack_c_exchange_api__", None))


@given(calls())
def test_equals_general_path(call: Any) -> None:
    given, mask, options = call
    if mask is not None and mask._dims and mask._dims[0].batch not in (1, given[0].shape[0]):
        mask = mw.causal()
    fast, slow = (results(given, mask, fast, **options) for fast in (True, False))
    assert_same(fast, slow)
    with torch.no_grad():
        out = mw.attention(*given, mask, **options)
    outputs = list(out) if options["return_lse"] else [out]
    assert_same(outputs, slow[: len(outputs)])


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("bound", [False, True])
def test_equals_general_path_under_every_mask(name: str, bound: bool) -> None:
    sizes = sizes_of(name)
    given = tensors(**sizes, dtype=torch.float32)
    mask: Any = MASKS[name].on(T, **sizes) if bound else MASKS[name]
    for return_lse in (False, True):
        fast, slow = (results(given, mask, fast, return_lse=return_lse) for fast in (True, False))
        assert_same(fast, slow)


@pytest.mark.usefixtures("without_dlpack")
@pytest.mark.parametrize("name", MASKS)
def test_equals_general_path_without_dlpack(name: str) -> None:
    for dtype in DTYPES:
        given = tensors(**sizes_of(name), dtype=dtype)
        fast, slow = (results(given, MASKS[name], fast, return_lse=True) for fast in (True, False))
        assert_same(fast, slow)


@pytest.mark.usefixtures("without_dlpack")
def test_leaves_other_calls_without_dlpack(taken: list[bool]) -> None:
    given = tensors(dtype=torch.float32)
    mw.attention(*given, mw.causal())
    for name in ("subclass", "parameter", "meta", "float64", "negated", "no queries"):
        LEFT[name](given, mw.causal())
    assert taken == [True, *[False] * 6]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_takes_plain_tensors_in_any_layout_with_dense_rows(layout: str, taken: list[bool]) -> None:
    given = [LAYOUTS[layout](x) for x in tensors(batch=2, dtype=torch.float32)]
    assert torch.equal(mw.attention(*given, mw.causal()), results(given, mw.causal(), False)[0])
    assert taken == [layout != "dim first"]


def test_takes_autocast_and_inference_mode(taken: list[bool]) -> None:
    given = tensors(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        out = mw.attention(*given, mw.causal())
    assert out.dtype == torch.bfloat16
    with torch.inference_mode():
        assert mw.attention(*given, mw.causal()).is_inference()
    assert taken == [True, True]


class _Mode(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class _Subclass(torch.Tensor):
    pass


LEFT: dict[str, Callable[[Any, Any], Any]] = {
    "vmap": lambda x, mask: torch.vmap(lambda q: mw.attention(q, *x[1:], mask))(x[0][None]),
    "grad": lambda x, mask: torch.func.grad(lambda q: mw.attention(q, *x[1:], mask).sum())(x[0]),
    "subclass": lambda x, mask: mw.attention(x[0].as_subclass(_Subclass), *x[1:], mask),
    "parameter": lambda x, mask: mw.attention(torch.nn.Parameter(x[0]), *x[1:], mask),
    "meta": lambda x, mask: mw.attention(*(y.to("meta") for y in x), mask),
    "float64": lambda x, mask: mw.attention(*(y.double() for y in x), mask),
    "negated": lambda x, mask: mw.attention(torch._neg_view(x[0]), *x[1:], mask),
    "dropout": lambda x, mask: mw.attention(*x, mask, dropout_p=0.5),
    "soft cap": lambda x, mask: mw.attention(*x, mask, softcap=5.0),
    "sinks": lambda x, mask: mw.attention(*x, mask, sinks=torch.zeros(2)),
    "blocks": lambda x, mask: mw.attention(*x, mask, impl="blocks"),
    "dilated": lambda x, _: mw.attention(*x, mw.stride(2)),
    "no queries": lambda x, _: mw.attention(x[0][:, :, :0], *x[1:]),
}


@pytest.mark.parametrize("name", LEFT)
def test_leaves_other_calls(name: str, taken: list[bool]) -> None:
    LEFT[name](tensors(dtype=torch.float32), mw.causal())
    assert not any(taken)


def test_leaves_calls_within_modes_and_forward_mode(taken: list[bool]) -> None:
    given = tensors(dtype=torch.float32)
    with _Mode():
        mw.attention(*given)
    with torch.device("cpu"):
        mw.attention(*given)
    with forward_ad.dual_level():
        mw.attention(*given)
    assert not any(taken)


def test_leaves_overridden_and_observed_calls(taken: list[bool]) -> None:
    given = tensors(dtype=torch.float32)
    with override_attention(lambda *_: "mine"):
        assert mw.attention(*given) == "mine"
    seen = []

    def observer(call: Any, compute: Any) -> Any:
        seen.append(call.shape)
        return compute()

    with observe_attention(observer):
        mw.attention(*given)
    assert len(seen) == 1
    assert not taken


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"k": (1, 2, 9, 5)}, mw.ArgumentError),
        ({"k": (2, 2, 9, 4), "v": (3, 2, 9, 4)}, mw.ArgumentError),
        ({"k": (1, 3, 9, 4), "v": (1, 3, 9, 4)}, mw.ArgumentError),
        ({"v": (1, 2, 8, 4)}, mw.ArgumentError),
        ({"q": (1, 1, 2, 9, 4)}, mw.ArgumentError),
        ({"scale": math.nan}, mw.ArgumentError),
        ({"scale": "1"}, mw.ArgumentError),
        ({"dropout_p": 1.5}, mw.ArgumentError),
        ({"mask": "causal"}, mw.ArgumentError),
        ({"mask": mw.causal().on(8)}, mw.FrameError),
        ({"mask": mw.causal().on(9), "q_start": 3}, mw.FrameError),
        ({"mask": mw.padding(lengths=[1, 2, 3])}, mw.FrameError),
        ({"mask": mw.padding(keep=[[True] * 8])}, mw.FrameError),
    ],
)
def test_invalid_arguments_are_errors(change: dict[str, Any], error: Any) -> None:
    shapes = {"q": (1, 2, 9, 4), "k": (1, 2, 9, 4), "v": (1, 2, 9, 4)}
    call = {name: torch.zeros(change.get(name, shape)) for name, shape in shapes.items()}
    call |= {name: value for name, value in change.items() if name not in call}
    with pytest.raises(error):
        mw.attention(**call)


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit, ValueError])
def test_interrupts_of_functions_that_c_calls(kind: type[BaseException]) -> None:
    """Errors leave the call to the general path; what a signal handler raises is kept."""
    kernel = fast_path._kernel()
    dlpack = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)

    def interrupted(*_: Any) -> Any:
        raise kind

    given = tensors(dtype=torch.float32, value_dim=5)
    expected = mw.attention(*given)
    types = (torch.Tensor, torch.strided, torch.empty_like)
    try:
        kernel.set_types(*types, interrupted, fast_path.DTYPES, dlpack)
        if kind is ValueError:
            assert torch.equal(mw.attention(*given), expected)
        else:
            with pytest.raises(kind):
                mw.attention(*given)
    finally:
        kernel.set_types(*types, fast_path.empty_out, fast_path.DTYPES, dlpack)


def test_freed_storage_is_refused() -> None:
    given = tensors(dtype=torch.float32)
    base = torch.cat([torch.zeros(4096), given.q.flatten()])
    q = base[4096:].view(given.q.shape)
    base.untyped_storage().resize_(0)
    with pytest.raises(mw.Unsupported, match="empty storage"):
        mw.attention(q, *given[1:])


def test_data_of_a_mask_is_a_copy() -> None:
    given = tensors(dtype=torch.float32, q_len=9)
    keep = torch.ones(1, 9, dtype=torch.bool)
    mask = mw.padding(keep=keep)
    bound = mask.on(9)
    before = mw.attention(*given, mask), mw.attention(*given, bound)
    keep[:, 3:] = False
    after = mw.attention(*given, mask), mw.attention(*given, bound)
    assert all(torch.equal(x, y) for x, y in zip(before, after, strict=True))


def test_many_sizes_of_one_mask() -> None:
    """More than a mask keeps bound."""
    mask = mw.causal()
    for _ in range(2):
        for size in range(1, 40):
            given = tensors(dtype=torch.float32, q_len=size)
            assert_same(results(given, mask, True), results(given, mask, False))


def test_threads() -> None:
    """Each thread has its own tensors; they share the mask."""
    mask = mw.causal() & mw.padding(lengths=[30, T])
    given = [tensors(batch=2, dtype=torch.float32, seed=seed) for seed in range(8)]
    expected = [results(x, mask, False, return_lse=True) for x in given]

    def work(n: int) -> list[torch.Tensor]:
        return results(given[n % 8], mask, True, return_lse=True)

    with ThreadPoolExecutor(8) as pool:
        for n, found in enumerate(pool.map(work, range(200))):
            assert_same(found, expected[n % 8])


def test_second_derivative_is_refused() -> None:
    q, k, v = (x.requires_grad_() for x in tensors(dtype=torch.float32))
    out = mw.attention(q, k, v, mw.causal())
    (grad,) = torch.autograd.grad(out.sum(), q, create_graph=True)
    with pytest.raises(mw.Unsupported, match="differentiable once"):
        torch.autograd.grad(grad.sum(), k)


def test_batched_gradients() -> None:
    """vmap of a backward pass whose forward pass was a plain call."""
    q, k, v = (x.requires_grad_() for x in tensors(dtype=torch.float32, q_len=5))
    out = mw.attention(q, k, v, mw.causal())
    many = torch.randn(3, *out.shape)
    found = torch.vmap(lambda grad: torch.autograd.grad(out, q, grad, retain_graph=True)[0])(many)
    for grad, one in zip(many, found, strict=True):
        torch.testing.assert_close(torch.autograd.grad(out, q, grad, retain_graph=True)[0], one)


def test_hooks_of_saved_tensors_and_checkpointing() -> None:
    given = tensors(dtype=torch.float32)
    expected = results(given, mw.causal(), False)
    learning = [x.detach().requires_grad_() for x in given]
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x.double(), lambda x: x.float()):
        out = mw.attention(*learning, mw.causal())
    draw = torch.Generator().manual_seed(5)
    grad = torch.randn(out.shape, generator=draw)
    found = torch.autograd.grad(out, learning, grad)
    assert all(torch.equal(x, y) for x, y in zip(found, expected[1:], strict=True))
    again = torch.utils.checkpoint.checkpoint(
        lambda *x: mw.attention(*x, mw.causal()), *learning, use_reentrant=False
    )
    found = torch.autograd.grad(again, learning, grad)
    assert all(torch.equal(x, y) for x, y in zip(found, expected[1:], strict=True))


@pytest.mark.parametrize("rows", [9, fast_path.MAX_LSE_ROWS])
def test_hooks_that_change_what_was_saved(rows: int) -> None:
    """Another dtype or shape is not read as the memory of the saved tensor."""
    learning = [x.requires_grad_() for x in tensors(dtype=torch.float32, q_len=rows)]

    def gradients(unpack: Any) -> Any:
        with torch.autograd.graph.saved_tensors_hooks(lambda x: x, unpack):
            out = mw.attention(*learning, mw.window(back=3))
        return torch.autograd.grad(out.sum(), learning)

    for found, expected in zip(
        gradients(torch.Tensor.bfloat16), gradients(lambda x: x), strict=True
    ):
        torch.testing.assert_close(found, expected, rtol=0.1, atol=0.1)
    with pytest.raises((RuntimeError, mw.ArgumentError), match="shape"):
        gradients(lambda x: x[..., :1])


def test_unused_results_and_gradient_of_logsumexp_alone() -> None:
    q, k, v = (x.requires_grad_() for x in tensors(dtype=torch.float32))
    _, lse = mw.attention(q, k, v, mw.causal(), return_lse=True)
    found = torch.autograd.grad(lse.sum(), (q, k))
    with patch.object(fast_path, "try_native", return_value=None):
        _, lse = mw.attention(q, k, v, mw.causal(), return_lse=True)
    expected = torch.autograd.grad(lse.sum(), (q, k))
    assert all(torch.equal(x, y) for x, y in zip(found, expected, strict=True))


def test_modified_input_is_an_error_in_the_backward_pass() -> None:
    q, k, v = (x.requires_grad_() for x in tensors(dtype=torch.float32))
    scaled = k * 2
    out = mw.attention(q, scaled, v, mw.causal())
    with torch.no_grad():
        scaled.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@given(
    mask=st.sampled_from(
        [
            mw.everything(),
            mw.nothing(),
            mw.causal(),
            mw.window(back=3),
            mw.window(back=0),
            mw.recipes.sinks(4),
            mw.stride(3),
            mw.causal() & mw.padding(lengths=[40, 2]),
            mw.by_head([mw.causal(), mw.window(back=4)]),
        ]
    ),
    start=st.integers(1, 20),
    steps=st.integers(1, 6),
)
def test_decode_steps_equal_general_path(mask: Any, start: int, steps: int) -> None:
    """The intervals of a step are passed without arrays."""
    q, k, v = tensors(batch=2, q_len=40, kv_len=40, dtype=torch.float32)
    step = mask.on(40, batch=2, heads=q.shape[1]).step(start, kv_len=start + 1)
    for n in range(start, start + steps):
        given = q[:, :, n : n + 1], k[:, :, : n + 1], v[:, :, : n + 1]
        fast, slow = (results(given, step, fast, return_lse=True) for fast in (True, False))
        assert_same(fast, slow)
        step = step.next()


@pytest.mark.parametrize("ints", [[0, 1, 5, 3], [0, 1, -1, 3], [0, 1, 0, 99], [0, 2, 0, 3], [1, 1]])
def test_invalid_intervals_of_a_step_are_declined(ints: list[int]) -> None:
    kernel, (q, k, v) = fast_path._kernel(), tensors(q_len=1, kv_len=9, dtype=torch.float32)
    (_, _, q_len, kv_len), args = kernel.parse_qkv(q, k, v)
    spans = struct.pack(f"={7 + len(ints)}q", q_len, kv_len, 1, 1, 0, 0, 0, *ints)
    assert kernel.plain_forward(args, spans, (1, None, True), None, q) is None
