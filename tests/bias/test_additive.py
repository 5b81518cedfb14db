"""`from_additive`: a tensor that is added to the scores, as a mask and a bias."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the usual name
from hypothesis import given
from hypothesis import strategies as st

import maskwright as mw
from tests._helpers.strategies import arrays

SHAPES = [(), (4,), (3, 4), (1, 4), (3, 1), (2, 3, 4), (2, 2, 3, 4), (2, 1, 1, 4), (1, 2, 3, 1)]
LOWEST = torch.finfo(torch.float32).min


@st.composite
def additive(draw: st.DrawFn) -> np.ndarray:
    kinds = draw(arrays(draw(st.sampled_from(SHAPES)), 0, 3))
    values = np.array([-math.inf, 0.0, 1.5, -2.0], np.float32)
    return np.asarray(values[kinds])


@given(additive(), st.booleans())
def test_attention_under_mask_and_bias_is_sdpa_of_tensor(array: np.ndarray, learn: bool) -> None:
    given = torch.from_numpy(array).requires_grad_(learn)
    q, k, v = (
        torch.randn(2, 2, n, 8, generator=torch.Generator().manual_seed(n)) for n in (3, 4, 4)
    )
    mask, bias = mw.from_additive(given)
    masked = np.broadcast_to(array == -math.inf, (2, 2, 3, 4))
    assert bool((mask.on(3, 4, 2, 2).dense() == ~masked).all())
    result = mw.attention(q, k, v, mask, bias=bias)
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=given.expand(2, 2, 3, 4))
    rows = torch.from_numpy(~masked.all(-1))  # SDPA returns NaN in the other rows
    torch.testing.assert_close(result[rows], expected[rows])
    if not learn:
        assert (bias is None) == bool(((array == 0) | np.isneginf(array)).all())
        return
    assert bias is not None
    mine, theirs = (
        torch.autograd.grad(out[rows].square().sum(), given)[0] for out in (result, expected)
    )
    if bool(rows.all()):
        torch.testing.assert_close(mine, theirs)
    assert bool(mine.isfinite().all())
    assert bool((mine[given == -math.inf] == 0).all())


@given(additive())
def test_array_and_tensor_are_read_alike(array: np.ndarray) -> None:
    mask, bias = mw.from_additive(array)
    other, other_bias = mw.from_additive(torch.from_numpy(array))
    assert mask == other
    assert (bias is None) == (other_bias is None)
    if bias is not None and other_bias is not None:
        frame = mw.everything().on(3, 4, 2, 2).frame
        assert np.array_equal(bias.dense(frame), other_bias.dense(frame))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_smallest_number_is_a_bias(dtype: torch.dtype) -> None:
    lowest = torch.finfo(dtype).min
    mask, bias = mw.from_additive(torch.tensor([[lowest, 0.0], [-math.inf, 0.0]], dtype=dtype))
    assert mask.on(2).dense()[0, 0].tolist() == [[True, True], [False, True]]
    assert bias is not None
    assert bias.on(2).dense()[0, 0].tolist() == [[lowest, 0.0], [0.0, 0.0]]


WRONG = {
    "NaN": ([0.0, math.nan], "NaN|nan"),
    "positive infinity": ([0.0, math.inf], "inf"),
    "integers": ([0, 1], "int64"),
    "booleans": ([True, False], "bool"),
    "five axes": (np.zeros((1, 1, 1, 2, 2)), "four axes"),
    "text": ("causal", "str"),
}


@pytest.mark.parametrize("name", WRONG)
def test_other_values_are_refused(name: str) -> None:
    value, problem = WRONG[name]
    inputs: list[Any] = [value]
    if name != "text":
        inputs.append(torch.tensor(value))
    for one in inputs:
        with pytest.raises(mw.ArgumentError, match=problem):
            mw.from_additive(one)


def test_values_that_cannot_be_read_are_refused() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(), pytest.raises(mw.Unsupported, match="from_additive"):
        mw.from_additive(torch.zeros(2, 2))
    with pytest.raises(mw.Unsupported, match="from_additive"):
        mw.from_additive(torch.zeros(2, 2, device="meta"))
    with pytest.raises(mw.Unsupported, match="from_additive"):
        torch.vmap(lambda x: mw.from_additive(x)[1] or x)(torch.zeros(2, 2))
