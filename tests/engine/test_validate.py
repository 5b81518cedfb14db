"""Invalid arguments of `attention` raise errors that name the argument, the value and a fix."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import maskwright as mw
from tests._helpers.attention_inputs import Tensors, tensors

if TYPE_CHECKING:
    from collections.abc import Callable

BASE = tensors(batch=2, heads=4, q_len=5, kv_len=6, dim=3)


def changed(**parts: Any) -> tuple[Any, ...]:
    return tuple(BASE._replace(**parts))


def call(given: Any = BASE, mask: Any = None, **options: Any) -> Callable[[], Any]:
    return lambda: mw.attention(*given, mask, **options)


def sized(**sizes: int) -> torch.Tensor:
    return tensors(**{"batch": 2, "heads": 4, "q_len": 6, "dim": 3, **sizes}).k


TENSORS: dict[str, tuple[Callable[[], Any], str]] = {
    "k is an array": (call(changed(k=np.zeros((2, 4, 6, 3)))), "k is of type ndarray"),
    "k is None": (call(changed(k=None)), "k is None"),
    "v is a list": (call(changed(v=[1.0])), "v is of type list"),
    "three axes": (call([x[0] for x in BASE]), r"q has shape \(4, 5, 3\)"),
    "k has five axes": (call(changed(k=BASE.k[None])), r"k has shape \(1, 2, 4, 6, 3\)"),
    "v has no axes": (call(changed(v=torch.tensor(1.0))), r"v has shape \(\)"),
    "two dtypes": (call(changed(k=BASE.k.float())), "dtype float64, float32, float64"),
    "integers": (call(Tensors(*(x.int() for x in BASE))), "dtype int32, int32, int32"),
    "complex": (call(Tensors(*(x.to(torch.complex64) for x in BASE))), "one floating-point dtype"),
    "eighths": (call(Tensors(*(x.to(torch.float8_e5m2) for x in BASE))), "dtype float8_e5m2"),
    "booleans": (call(Tensors(*(x.bool() for x in BASE))), "dtype bool"),
    "two devices": (call(changed(k=BASE.k.to("meta"))), "on cpu, meta and cpu"),
    "sparse": (call(changed(q=BASE.q.to_sparse())), "q is a sparse or nested tensor"),
    "batches of q": (call(changed(q=sized(batch=3, q_len=5))), "batch sizes differ"),
    "batches of v": (call(changed(v=sized(batch=3))), "batch sizes differ"),
    "heads of v": (call(changed(v=sized(heads=2))), "k and v have different heads or lengths"),
    "lengths of v": (call(changed(v=sized(q_len=7))), "k and v have different heads or lengths"),
    "head_dim": (call(changed(k=sized(dim=4))), "different head_dim"),
    "groups unasked for": (
        call(changed(k=sized(heads=2), v=sized(heads=2))),
        "different numbers of heads.*Pass enable_gqa=True",
    ),
    "uneven groups": (
        call(changed(k=sized(heads=3), v=sized(heads=3)), enable_gqa=True),
        "heads of q are not a multiple",
    ),
    "no key heads": (
        call(changed(k=sized(heads=0), v=sized(heads=0)), enable_gqa=True),
        "heads of q are not a multiple",
    ),
}
NUMBERS: dict[str, tuple[Callable[[], Any], str]] = {
    **{
        f"scale {scale!r}": (call(scale=scale), "scale is .* finite number")
        for scale in (math.nan, math.inf, "1", torch.ones(1), torch.tensor(math.nan))
    },
    "learnable scale": (call(scale=torch.ones((), requires_grad=True)), "Multiply q by"),
    **{
        f"dropout {p!r}": (call(dropout_p=p), "dropout_p is .* Expected")
        for p in (1.1, -0.1, math.nan, 2, "0.1", None)
    },
    **{
        f"q_start {start!r}": (call(mask=mw.causal(), q_start=start), "q_start")
        for start in ("0", 1.5, True)
    },
    **{f"impl {impl!r}": (call(impl=impl), "impl is") for impl in ("fast", None, 3)},
    "mask is a tensor": (call(mask=torch.ones(5, 6)), r"of type Tensor.*mw\.dense"),
    "mask is an array": (call(mask=np.ones((5, 6))), "of type ndarray"),
    "mask is text": (call(mask="causal"), "of type str"),
    "mask is True": (call(mask=True), "of type bool"),
}
THREE_HEADS = [mw.causal(), mw.causal(), mw.everything()]
FRAMES: dict[str, tuple[Callable[[], Any], str]] = {
    "queries": (call(mask=mw.causal().on(4, 6)), "bound to 4 queries and 6 keys"),
    "keys": (call(mask=mw.causal().on(5)), "bound to 5 queries and 5 keys"),
    "batch": (call(mask=mw.padding(lengths=[1, 2, 3]).on(5, 6)), "batch 3 and 1 heads"),
    "heads": (call(mask=mw.by_head(THREE_HEADS).on(5, 6)), "batch 1 and 3 heads"),
    "q_start": (call(mask=mw.causal().on(5, 6), q_start=0), "q_start=0.*q_start=1"),
    "unbound batch": (call(mask=mw.padding(lengths=[1, 2, 3])), "batch=2.*3"),
    "unbound heads": (call(mask=mw.by_head([mw.causal()] * 3)), "heads=4.*3"),
    "unbound lengths": (call(mask=mw.padding(lengths=[9])), "lengths contains 9"),
    "unbound data": (call(mask=mw.dense(np.ones((3, 3), bool))), "dense"),
}


@pytest.mark.parametrize("name", [*TENSORS, *NUMBERS])
def test_wrong_arguments(name: str) -> None:
    run, words = {**TENSORS, **NUMBERS}[name]
    with pytest.raises(mw.AttentionError, match=words) as error:
        run()
    assert len(str(error.value)) < 300


@pytest.mark.parametrize("name", FRAMES)
def test_masks_that_do_not_fit(name: str) -> None:
    run, words = FRAMES[name]
    with pytest.raises(mw.FrameError, match=words):
        run()


@pytest.mark.parametrize(
    "mask",
    [object(), 3, "causal()", mw.causal, mw.Mask],
    ids=["object", "int", "str", "function", "class"],
)
def test_values_that_are_no_mask(mask: Any) -> None:
    with pytest.raises(mw.ArgumentError, match="Pass a maskwright mask"):
        mw.attention(*tensors(), mask)


@pytest.mark.parametrize("layout", ["bound to one", "to all", "unbound", "twice"])
def test_masks_that_fit(layout: str) -> None:
    mask = mw.causal()
    bound = {
        "bound to one": mask.on(5, 6),
        "to all": mask.on(5, 6, batch=2, heads=4),
        "unbound": mask,
        "twice": mask.on(5, 6, batch=7, heads=9),  # the same in all of them
    }[layout]
    right = mw.attention(*BASE, mw.dense(mask.on(5, 6).dense()))
    torch.testing.assert_close(mw.attention(*BASE, bound), right)


def test_fitting_q_start_may_be_said_again() -> None:
    bound = mw.causal().on(5, 6, q_start=0)
    found = mw.attention(*BASE, bound, q_start=0)
    torch.testing.assert_close(found, mw.attention(*BASE, mw.causal(), q_start=0))
    assert not torch.equal(found, mw.attention(*BASE, mw.causal()))


@pytest.mark.parametrize(
    "number", [np.float64(0.5), np.float32(0.5), np.array(0.5), torch.tensor(0.5)], ids=repr
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_numbers_of_numpy_and_torch_are_numbers(number: Any, dtype: torch.dtype) -> None:
    q, k, v = (x.to(dtype) for x in BASE)
    for name in ("scale", "softcap"):
        result = mw.attention(q, k, v, mw.causal(), q_start=np.int64(1), **{name: number})
        assert torch.equal(result, mw.attention(q, k, v, mw.causal(), **{name: 0.5}))
    torch.manual_seed(0)
    dropped = mw.attention(q, k, v, dropout_p=number)
    torch.manual_seed(0)
    assert torch.equal(dropped, mw.attention(q, k, v, dropout_p=0.5))
    assert mw.explain_backend(q, k, v, scale=number).work.tiles
    mw.attention(q, k, v, scale=1, dropout_p=0)


def test_mask_remembers_few_frames() -> None:
    mask = mw.window(back=2)
    for length in range(1, 60):
        mw.attention(*tensors(q_len=length), mask)
    assert len(mask._bounds.values) <= 16
