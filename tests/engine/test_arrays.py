"""Attention of numpy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import maskwright as mw
from tests._helpers.native_kernel import needs_kernel
from tests._helpers.run_python import run_python

pytestmark = needs_kernel


def arrays(*shapes: tuple[int, ...], dtype: Any = np.float32) -> list[Any]:
    draw = np.random.default_rng(0)
    return [draw.standard_normal(shape).astype(dtype) for shape in shapes]


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
@pytest.mark.parametrize("step", [1, 2])
def test_arrays_equal_tensors(dtype: Any, step: int) -> None:
    given = [x[..., ::step] for x in arrays((2, 4, 20, 16), *[(2, 2, 30, 16)] * 2, dtype=dtype)]
    mask = mw.window(back=7)
    found = mw.attention(*given, mask, enable_gqa=True, return_lse=True)
    tensors = [torch.from_numpy(np.ascontiguousarray(x)) for x in given]
    expected = mw.attention(*tensors, mask, enable_gqa=True, return_lse=True, impl="native")
    for mine, theirs in zip(found, expected, strict=True):
        assert np.array_equal(mine, theirs.numpy())


def test_no_framework_is_needed() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import numpy as np, maskwright as mw\n"
        "x = np.ones((1, 1, 3, 2), np.float32)\n"
        "print(mw.attention(x, x, x, mw.causal()).sum())"
    )
    done = run_python(code)
    assert done.stdout.strip() == "6.0", done.stderr


X = np.ones((1, 2, 3, 4), np.float32)


@pytest.mark.parametrize(
    ("given", "options", "error", "message"),
    [
        ((X, X, [1]), {}, mw.ArgumentError, "v is of type list"),
        ((X.astype(float),) * 3, {}, mw.ArgumentError, "q has dtype float64"),
        ((X[0], X[0], X[0]), {}, mw.ArgumentError, r"q has dtype float32 and shape \(2, 3, 4\)"),
        ((X.repeat(2, 1), X, X), {}, mw.ArgumentError, "enable_gqa"),
        ((X, X, X), {"impl": "blocks"}, mw.Unsupported, "takes torch tensors"),
        ((X, X, X), {"dropout_p": 1.5}, mw.ArgumentError, "dropout_p"),
        ((X[..., :0],) * 3, {}, mw.Unsupported, "head_dim 1 to 256"),
    ],
)
def test_unsupported_input_is_rejected(
    given: tuple[Any, ...], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        mw.attention(*given, **options)


def test_dropout_with_seed_of_numpy() -> None:
    x = np.random.default_rng(0).normal(size=(1, 2, 70, 8)).astype(np.float32)
    found = []
    for seed in (1, 1, 2):
        np.random.seed(seed)
        found.append(mw.attention(x, x, x, mw.causal(), dropout_p=0.5))
    assert np.array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2])


def test_sizes_of_one_and_missing_dimensions_broadcast() -> None:
    random = np.random.default_rng(0)
    shapes = ((1, 4, 5, 8), (3, 1, 6, 8), (4, 6, 8))
    q, k, v = (random.standard_normal(shape, np.float32) for shape in shapes)
    whole = [np.ascontiguousarray(np.broadcast_to(x, (3, 4, *x.shape[-2:]))) for x in (q, k, v)]
    mask = mw.causal() & mw.padding(lengths=[2, 4, 6])
    assert np.array_equal(mw.attention(q, k, v, mask), mw.attention(*whole, mask))
    assert mw.explain_backend(q, k, v, mask) == mw.explain_backend(*whole, mask)
