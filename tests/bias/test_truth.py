"""Every bias equals the plain loops of tests/_helpers/bias_truth.py, cell by cell."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
from hypothesis import given, note

from maskwright.bias import Bias, DistanceTerm, GridTerm, TensorTerm
from maskwright.bias.expr import BiasAtom, Multiple, Sum
from maskwright.bias.values import Values
from tests._helpers.bias_strategies import cases
from tests._helpers.bias_truth import truth

if TYPE_CHECKING:
    from maskwright import Frame


def expand(values: np.ndarray, frame: Frame) -> np.ndarray:
    return np.broadcast_to(values, (frame.batch, frame.heads, frame.q_len, frame.kv_len))


@given(cases())
def test_dense_is_the_truth(case: tuple[Bias, Frame]) -> None:
    bias, frame = case
    note(f"{bias!r}\n{frame}")
    dense = bias.dense(frame)
    assert dense.shape == (*bias.planes, frame.q_len, frame.kv_len)
    # Sums of float32 values are computed in float32.
    assert np.allclose(expand(dense, frame), truth(bias, frame), rtol=1e-5, atol=1e-5)


@given(cases())
def test_terms_are_as_documented(case: tuple[Bias, Frame]) -> None:
    """Each term is read by its documented index, in a loop, and the sum is the truth."""
    bias, frame = case
    note(f"{bias!r}\n{frame}")
    terms = bias.lower(frame)
    kinds = [
        (type(t), tuple(t.values.shape) if isinstance(t, TensorTerm) else t[1:]) for t in terms
    ]
    assert len(set(kinds)) == len(kinds)
    assert sum(isinstance(term, DistanceTerm) for term in terms) <= 1
    for term in terms:
        if isinstance(term, DistanceTerm):
            assert term.values.shape[1] == max(frame.q_len + frame.kv_len - 1, 0)
            assert term.values.flags.c_contiguous
    total = np.zeros((frame.batch, frame.heads, frame.q_len, frame.kv_len))
    for b, h, r, k in np.ndindex(total.shape):
        for term in terms:
            total[b, h, r, k] += read(term, b, h, r, k, frame)
    assert np.allclose(total, truth(bias, frame), rtol=1e-5, atol=1e-5)


def read(
    term: DistanceTerm | GridTerm | TensorTerm, b: int, h: int, r: int, k: int, frame: Frame
) -> float:
    values, q = term.values, frame.q_start + r
    if isinstance(term, DistanceTerm):
        at = k - q + term.zero
        assert 0 <= at < values.shape[1]
        return float(values[h % len(values), at])
    if isinstance(term, GridTerm):
        w = term.width
        y, x = k // w - q // w + term.height - 1, k % w - q % w + w - 1
        return float(values[h % len(values), y, x])
    at = (b, h, r, k)
    return float(values[tuple(i % n for i, n in zip(at, values.shape, strict=True))])


@given(cases())
def test_torch_values_give_equal_differentiable_tensors(case: tuple[Bias, Frame]) -> None:
    bias, frame = case
    note(f"{bias!r}\n{frame}")
    learnable = with_tensors(bias)
    leaves = [leaf for leaf in learnable.tensors if isinstance(leaf, torch.Tensor)]
    dense = learnable.dense(frame)
    if not leaves:
        assert isinstance(dense, np.ndarray)
        return
    assert np.allclose(expand(dense.detach().numpy(), frame), truth(bias, frame), atol=1e-5)
    if dense.numel():
        grads = torch.autograd.grad(dense.sum(), leaves)
        step = 0.5
        for leaf, grad in zip(leaves, grads, strict=True):  # linear: a difference is exact
            with torch.no_grad():
                before = float(learnable.dense(frame).sum())
                leaf += step
                after = float(learnable.dense(frame).sum())
                leaf -= step
            assert np.isclose((after - before) / step, float(grad.sum()), rtol=1e-9, atol=1e-7)


def with_tensors(bias: Bias) -> Bias:
    """The same bias with float64 tensors that require gradients in place of arrays."""
    if isinstance(bias, Sum):
        return Sum(tuple(with_tensors(term) for term in bias.terms))
    if isinstance(bias, Multiple):
        return Multiple(bias.factor, with_tensors(bias.term))
    assert isinstance(bias, BiasAtom)
    arguments = {
        key: Values(torch.tensor(x.data, dtype=torch.float64, requires_grad=True), x.what)
        if isinstance(x, Values)
        else x
        for key, x in bias._call()[1].items()
    }
    return type(bias)(**arguments)
