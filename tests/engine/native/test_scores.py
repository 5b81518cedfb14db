"""Soft cap, bias and sinks in the kernel against float64, on every instruction set."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
import torch

import maskwright as mw
from maskwright.bias.terms import DistanceTerm, GridTerm, TensorTerm
from maskwright.engine.dropout import dropout_keep
from maskwright.engine.native import score_args as score_args_module
from tests._helpers.attention_inputs import INF, NAN, tensors
from tests._helpers.native_kernel import isa, needs_kernel
from tests._helpers.sampling import subset_of_cases
from tests._helpers.score_terms import ScoreOptions, TermBias, exact_attention
from tests.engine.test_scores import LARGE, LARGE_SIZES, check_large

__all__ = ["isa"]
pytestmark = [needs_kernel, pytest.mark.usefixtures("isa")]

MASKS = {
    "causal": mw.causal(),
    "everything": mw.everything(),
    "window": mw.window(back=70),
    "holes": mw.causal() - mw.keys(range(0, 5000, 7)),
    "dilated": mw.window(back=200) & mw.stride(3),
    "by head": mw.by_head([mw.causal(), mw.window(back=3), mw.nothing(), mw.chunks(40)]),
    "by batch": mw.by_batch([mw.causal(), mw.window(back=200)]),
}
SIZES = [(1, 2100), (2, 4200), (13, 400), (400, 13), (300, 700), (210, 210), (7, 7)]


def random_options(pick: random.Random, sizes: tuple[int, int, int, int], q_start: int) -> Any:
    """One to four terms of any kind, a soft cap and sinks."""
    batch, heads, q_len, kv_len = sizes
    made = torch.Generator().manual_seed(pick.randrange(2**31))
    terms: list[Any] = []
    for kind in pick.choice(["d", "g", "t", "k", "dt", "dgt", "kd", "r", "dgtk", ""]):
        own_heads = pick.choice([1, heads])
        own_batch = pick.choice([1, batch])
        if kind == "d":
            values = torch.randn(own_heads, q_len + kv_len + 1, generator=made)
            terms.append(DistanceTerm(values, q_start + q_len))
        elif kind == "g":
            width = pick.choice([3, 7, 32, 50])
            height = -(-max(q_start + q_len, kv_len) // width)
            shape = (own_heads, 2 * height - 1, 2 * width - 1)
            terms.append(GridTerm(torch.randn(shape, generator=made), height, width))
        elif kind == "r":
            shape = (own_batch, own_heads, pick.choice([1, q_len]), 1)
            terms.append(TensorTerm(torch.randn(shape, generator=made)))
        elif kind == "k":
            terms.append(TensorTerm(torch.randn(own_batch, own_heads, 1, kv_len, generator=made)))
        elif pick.random() < 0.5:
            values = torch.randn(own_batch, own_heads, kv_len, q_len, generator=made)
            terms.append(TensorTerm(values.transpose(2, 3)))
        else:
            values = torch.randn(own_batch, own_heads, q_len, kv_len, generator=made)
            terms.append(TensorTerm(values))
    sinks = 2 * torch.randn(heads, generator=made) if pick.random() < 0.6 else None
    return ScoreOptions(pick.choice([None, 2.0, 30.0]), TermBias(tuple(terms)), sinks)


@pytest.mark.parametrize("seed", subset_of_cases(range(24), 2))
def test_many_blocks(seed: int) -> None:
    pick = random.Random(seed)
    name, (q_len, kv_len) = pick.choice(list(MASKS)), pick.choice(SIZES)
    batch, heads, kv_heads = 2, 4, pick.choice([1, 2, 4])
    dtype = pick.choice([torch.float32, torch.float32, torch.bfloat16, torch.float16])
    dropout_p = pick.choice([0.0, 0.0, 0.3])
    q_start = max(kv_len - q_len, 0)
    bound = MASKS[name].on(q_len, kv_len, batch, heads, q_start)
    dim, value_dim = pick.choice([(16, 16), (64, 64), (24, 40)])
    given = tensors(batch, heads, q_len, kv_len, dim, value_dim, kv_heads, dtype, seed)
    options = random_options(pick, (batch, heads, q_len, kv_len), q_start)
    compare(bound, given, options, dropout_p, seed)


def compare(bound: mw.BoundMask, given: Any, options: Any, dropout_p: float, seed: int) -> None:
    """Output, logsumexp and all gradients against float64."""
    leaves, own = given.learning(), options.leaves()
    torch.manual_seed(seed)
    found = mw.attention(
        *(*leaves, bound),
        **own.arguments,
        enable_gqa=True,
        dropout_p=dropout_p,
        impl="native",
        return_lse=True,
    )
    doubles = tuple(x.detach().double().requires_grad_() for x in given)
    exact = options.leaves(torch.float64)
    out, lse, weights = exact_attention(doubles, bound, exact, None)
    if dropout_p:
        torch.manual_seed(seed)
        number = int(torch.randint(2**62, ()))
        rows, keys = (np.arange(n) for n in weights.shape[2:])
        keep = dropout_keep(number, dropout_p, *weights.shape[:2], rows, keys)
        group = weights.shape[1] // doubles[2].shape[1]
        dropped = weights * torch.from_numpy(keep) / (1 - dropout_p)
        out = dropped @ doubles[2].repeat_interleave(group, 1)
    made = torch.Generator().manual_seed(seed)
    grads = [torch.randn(x.shape, generator=made) for x in (out, lse)]
    results = []
    for (o, s), inputs in (
        (found, (*leaves, *own.tensors)),
        ((out, lse), (*doubles, *exact.tensors)),
    ):
        total = (o * grads[0].to(o.dtype)).sum()
        total = total + (s.masked_fill(s == -INF, 0.0) * grads[1].to(s.dtype)).sum()
        results.append((o, s, *torch.autograd.grad(total, inputs, materialize_grads=True)))
    length = max(bound.shape[2:])
    for n, (mine, true) in enumerate(zip(*results, strict=True)):
        finite = true.isfinite()
        assert torch.equal(mine.isfinite(), finite), n
        eps = torch.finfo(torch.float32 if n == 1 else given.q.dtype).eps
        error = (mine.double() - true)[finite].abs().max().item() if finite.any() else 0.0
        largest = true[finite].abs().max().item() if finite.any() else 0.0
        allowed = 6 * eps * math.sqrt(length) * max(largest, 3.0)
        assert error <= allowed, (n, error, allowed)


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_large_bias(name: str, dtype: torch.dtype) -> None:
    """In decode and in tiles of several key blocks."""
    for size in LARGE_SIZES:
        check_large("native", dtype, LARGE[name], size)


@pytest.mark.parametrize("shape", [(1, 1), (2, 1), (1, 4)])
def test_large_shared_tensor(shape: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    """A shared tensor whose gradient is computed one (batch, kv_head) after the other."""
    monkeypatch.setattr(score_args_module, "MAX_PARTIAL_BYTES", 0)
    given = tensors(2, 4, 150, 260, 16, 16, 2, torch.float32)
    values = torch.randn(*shape, 150, 260)
    bound = mw.causal().on(150, 260, 2, 4)
    options = ScoreOptions(5.0, TermBias((TensorTerm(values),)))
    threads = torch.get_num_threads()
    try:
        for count in (1, 3):
            torch.set_num_threads(count)
            compare(bound, given, options, 0.0, 0)
    finally:
        torch.set_num_threads(threads)


@pytest.mark.parametrize("value", [NAN, INF, -INF])
@pytest.mark.parametrize("rows", [2, 40])
def test_masked_cells_hold_anything(value: float, rows: int) -> None:
    given = tensors(1, 2, rows, 300, 16, 16, 1, torch.float32)
    hidden = torch.arange(300) % 3 == 1
    mask = mw.everything() - mw.keys(hidden.nonzero().flatten().tolist())
    mask = mw.by_head([mask, mask & mw.window(back=20)])
    options = ScoreOptions(
        3.0,
        TermBias((DistanceTerm(torch.randn(2, 700), 350), TensorTerm(torch.randn(1, 1, 1, 300)))),
        torch.randn(2),
    )
    found = []
    for filler in (0.0, value):
        leaves, own = given.learning(), options.leaves()
        with torch.no_grad():
            leaves.k[:, :, hidden] = filler
            leaves.v[:, :, hidden] = filler
        out = mw.attention(*leaves, mask, **own.arguments, enable_gqa=True, impl="native")
        grads = torch.autograd.grad(out.square().sum(), (*leaves, *own.tensors))
        found.append((out.detach(), *grads))
    for one, other in zip(*found, strict=True):
        assert one.isfinite().all()
        torch.testing.assert_close(one, other)


def test_infinite_scores_are_capped() -> None:
    q, k, v = tensors(1, 1, 20, 20, dtype=torch.float32)
    q, k = q.abs() + 0.5, -k.abs() - 0.5
    q[:, :, 0] = INF
    out, lse = mw.attention(q, k, v, softcap=2.0, impl="native", return_lse=True)
    torch.testing.assert_close(out[0, 0, 0], v[0, 0].mean(0))  # all scores of the row are -2
    assert float(lse[0, 0, 0]) == pytest.approx(math.log(20) - 2, abs=1e-5)


def test_arrays_of_numpy() -> None:
    given = tensors(2, 4, 40, 60, 8, 8, 2, torch.float32)
    options = random_options(random.Random(5), (2, 4, 40, 60), 20)
    options = ScoreOptions(4.0, options.bias, torch.randn(4))
    right = mw.attention(*given, mw.causal(), **options.arguments, enable_gqa=True)
    terms = [term._replace(values=term.values.numpy()) for term in options.bias.terms]
    arguments = {**options.arguments, "bias": TermBias(tuple(terms))}
    arguments["sinks"] = arguments["sinks"].numpy()
    arrays = [x.numpy() for x in given]
    found = mw.attention(*arrays, mw.causal(), **arguments, enable_gqa=True)
    assert isinstance(found, np.ndarray)
    np.testing.assert_allclose(found, right.numpy(), atol=1e-6)


def test_too_many_terms_fall_back_to_blocks() -> None:
    given = tensors(1, 1, 5, dtype=torch.float32)
    shapes = [(1, 1, 5, 5), (1, 1, 1, 5), (1, 1, 5, 1), (1, 1, 1, 1)]
    terms = [TensorTerm(torch.randn(shape)) for shape in shapes]
    bias = TermBias((*terms, DistanceTerm(torch.randn(1, 9), 4)))
    choice = mw.explain_backend(*given, mw.causal(), bias=bias)
    assert choice.backend == "blocks"
    assert "bias terms" in choice.reason
    with pytest.raises(mw.Unsupported, match="bias terms"):
        mw.attention(*given, mw.causal(), bias=bias, impl="native")
