"""The kernels in Triton's interpreter against dense attention in float64, for all masks."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import maskwright as mw
from maskwright.engine.backends.triton import config, launch
from maskwright.engine.backends.triton.launch import run_backward, run_forward
from maskwright.engine.backends.triton.score_args import ScoreTerms
from tests._helpers.attention_inputs import T, error
from tests._helpers.calls import call_of
from tests._helpers.triton_cases import (
    CASES,
    DECODE_CASES,
    DTYPES,
    Case,
    TritonCall,
    exact,
    make_call,
    peer_errors,
)

NAMES = ("out", "dq", "dk", "dv")
# The interpreter computes masked cells too, whose exponentials may overflow, and rows that are not used.
pytestmark = pytest.mark.filterwarnings(
    "ignore:.*encountered in:RuntimeWarning", "ignore:All-NaN slice encountered:RuntimeWarning"
)


def assert_as_exact_as_pytorch(made: TritonCall, found: Any, truth: Any) -> None:
    """Errors of at most twice those of PyTorch, of gradients five times; see `peer_errors`.

    An error of PyTorch that is smaller than one rounding of the largest entry counts as one.
    """
    eps = torch.finfo(made.call.tensors[0].dtype).eps
    for name, mine, right, peer in zip(NAMES, found, truth, peer_errors(made), strict=False):
        limit = (2 if name == "out" else 5) * max(peer, eps) * float(right.abs().max())
        assert error(mine, right) <= limit, (name, error(mine, right), limit)


def assert_lse(found: torch.Tensor, right: torch.Tensor) -> None:
    largest = float(right[right.isfinite()].abs().max()) if right.isfinite().any() else 0.0
    assert found.dtype == torch.float32
    assert error(found, right) <= 4e-7 * (2 + largest)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_forward_and_backward(case: Case) -> None:
    made = make_call(case)
    out, lse = run_forward(made.call, made.terms)
    grads = run_backward(made.call, (out, lse), made.grad_out, made.grad_lse, made.terms)
    truth = exact(made)
    assert [x.dtype for x in (out, *grads[:3])] == [made.call.tensors[0].dtype] * 4
    assert_as_exact_as_pytorch(made, (out, *grads[:3]), (truth.out, *truth.grads))
    assert_lse(lse, truth.lse)
    if truth.dsinks is not None:
        terms = made.call.shape.batch * made.call.shape.q_len
        eps = torch.finfo(made.call.tensors[0].dtype).eps
        limit = eps * math.sqrt(terms) * max(1.0, float(truth.dsinks.abs().max()))
        assert error(grads.sinks, truth.dsinks) <= limit


@pytest.mark.parametrize("case", DECODE_CASES, ids=str)
def test_decode(case: Case) -> None:
    made = make_call(case)
    out, lse = run_forward(made.call, made.terms)
    truth = exact(made)
    assert_as_exact_as_pytorch(made, (out,), (truth.out,))
    assert_lse(lse, truth.lse)


def set_tile(monkeypatch: pytest.MonkeyPatch, block_m: int, block_n: int, block_k: int = 0) -> None:
    tile = config.Config(block_m, block_n, 1, 1, block_k)
    rest = config.INTERPRETED[4:]
    monkeypatch.setattr(config, "INTERPRETED", config.Configs(tile, tile, tile, tile, *rest))


@pytest.mark.parametrize("blocks", [(16, 16), (16, 64), (64, 16)])
@pytest.mark.parametrize("mask", ["causal", "sinks", "holes", "by head", "scattered"])
def test_results_do_not_depend_on_the_tile(
    mask: str, blocks: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_tile(monkeypatch, *blocks)
    test_forward_and_backward(Case(mask, "float32", "gqa"))
    test_decode(Case(mask, "float32", "decode"))


@pytest.mark.parametrize("variant", ["gqa", "odd dims", "fewer queries", "scores", "dropout"])
@pytest.mark.parametrize("mask", ["causal", "holes", "by head", "empty sequence"])
def test_products_in_pieces_of_the_head_dim(
    mask: str, variant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on NVIDIA in float32, with pieces of 16 columns of which the last is not full."""
    set_tile(monkeypatch, 32, 16, block_k=16)
    test_forward_and_backward(Case(mask, "float32", variant))


@pytest.mark.parametrize("dtype", DTYPES)
def test_products_in_pieces_that_are_wider_than_the_head_dim(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on NVIDIA for a small head_dim that is no power of two."""
    set_tile(monkeypatch, 16, 16, block_k=64)
    test_forward_and_backward(Case("holes", dtype, "odd dims"))


@pytest.mark.parametrize("which", ["q", "k", "v", "grad"])
def test_masked_values_have_no_influence_on_products_in_pieces(
    which: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_tile(monkeypatch, 32, 16, block_k=16)
    test_masked_values_that_are_not_finite_have_no_influence("holes", which, math.nan)


def test_repeated_runs_are_equal() -> None:
    made = make_call(Case("by head", "float16", "dropout"))
    runs = []
    for _ in range(2):
        out, lse = run_forward(made.call)
        grads = run_backward(made.call, (out, lse), made.grad_out)
        runs.append((out, lse, *grads[:3]))
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


@pytest.mark.parametrize("dim", [5, 16, 24])
def test_rows_are_contiguous_and_aligned_in_the_kernels(dim: int) -> None:
    """Tensors with other strides or addresses are copied, with the same values."""
    plain = torch.randn(2, 3, 7, dim)
    flat = torch.randn(2 * 3 * 7 * dim + 1)
    others = (
        plain.transpose(1, 2).contiguous().transpose(1, 2),
        plain[..., ::2],
        flat[1:].view(2, 3, 7, dim),
        plain[:, :, :, :1].expand(-1, -1, -1, dim),
    )
    for x in (plain, *others):
        found = launch.aligned_rows(x)
        assert launch.is_aligned(found)
        assert torch.equal(found, x)
        assert launch.is_aligned(launch.empty_gradient(found))
    assert (launch.aligned_rows(plain) is plain) == (dim % launch.ALIGNMENT == 0)


SIZES = [(0, 5), (5, 0), (1, 1), (1, 40), (40, 1), (33, 65)]


@pytest.mark.parametrize(("q_len", "kv_len"), SIZES)
@pytest.mark.parametrize(("batch", "heads"), [(1, 1), (2, 2), (0, 1), (3, 1)])
def test_sizes(q_len: int, kv_len: int, batch: int, heads: int) -> None:
    bound = mw.causal().on(q_len, kv_len, batch, heads, q_start=0)
    draw = torch.Generator().manual_seed(1)
    tensors = tuple(
        torch.randn(batch, heads, length, 8, generator=draw) for length in (q_len, kv_len, kv_len)
    )
    call, ones = call_of(tensors, bound, scale=0.5), torch.ones_like(tensors[0])
    out, lse = run_forward(call)
    grads = run_backward(call, (out, lse), ones)
    truth = exact(TritonCall(call, ScoreTerms(), ones, torch.zeros(())))
    exact_results = (truth.out, truth.lse, *truth.grads)
    for found, right in zip((out, lse, *grads[:3]), exact_results, strict=True):
        assert found.shape == right.shape
        assert error(found, right) <= 1e-5


@pytest.mark.parametrize(("dim", "v_dim"), [(1, 1), (16, 256), (80, 16), (129, 64), (256, 256)])
def test_head_dims(dim: int, v_dim: int) -> None:
    made = make_call(Case("causal", "float32", "plain"))
    draw = torch.Generator().manual_seed(2)
    sizes = zip(made.call.tensors, (dim, dim, v_dim), strict=True)
    tensors = tuple(torch.randn(*x.shape[:3], width, generator=draw) for x, width in sizes)
    grad = torch.randn(*tensors[0].shape[:3], v_dim, generator=draw)
    made = made._replace(call=call_of(tensors, made.call.mask), grad_out=grad)
    out, lse = run_forward(made.call)
    grads = run_backward(made.call, (out, lse), grad, made.grad_lse)
    truth = exact(made)
    assert_as_exact_as_pytorch(made, (out, *grads[:3]), (truth.out, *truth.grads))


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("which", ["q", "k", "v", "grad"])
@pytest.mark.parametrize(
    "mask", ["causal", "holes", "documents", "by head", "padding", "scattered"]
)
def test_masked_values_that_are_not_finite_have_no_influence(
    mask: str, which: str, value: float
) -> None:
    """Results are the same bit by bit, except in rows and keys that a visible cell connects."""
    dtype = ("float32", "float16", "bfloat16")[len(mask + which) % 3]
    made = make_call(Case(mask, dtype, "plain"))
    seen = torch.from_numpy(made.call.mask.dense()).expand(*made.call.tensors[0].shape[:3], T)
    results = []
    for entry in (None, value):
        named = dict(zip(("q", "k", "v"), (x.clone() for x in made.call.tensors), strict=True))
        named["grad"] = made.grad_out.clone()
        if entry is not None:
            named[which][:, :, 20, 3] = entry
        *tensors, grad = named.values()
        call = made.call.with_tensors(tensors)
        out, lse = run_forward(call)
        grads = run_backward(call, (out, lse), grad)
        results.append((out, lse, *grads[:3]))
    if which in ("q", "grad"):
        rows = torch.zeros_like(seen[..., 0])
        rows[:, :, 20] = True
    else:
        rows = seen[..., 20]
    keys = (seen & rows[..., None]).any(2)  # of rows with a gradient that is not finite
    for name, clean, found in zip(("out", "lse", "q", "k", "v"), *results, strict=True):
        spoiled = keys if name in ("k", "v") else rows
        if which == "grad" and name in ("out", "lse"):
            spoiled = torch.zeros_like(rows)
        assert torch.equal(clean[~spoiled], found[~spoiled]), name


def test_keys_and_rows_that_no_cell_reads_may_hold_anything() -> None:
    made = make_call(Case("both sides padded", "float32", "plain"))
    seen = torch.from_numpy(made.call.mask.dense()).expand(*made.call.tensors[0].shape[:3], T)
    results = []
    for entry in (1.0, math.nan):
        q, k, v, grad = (x.clone() for x in (*made.call.tensors, made.grad_out))
        for x, used in ((q, seen.any(3)), (k, seen.any(2)), (v, seen.any(2)), (grad, seen.any(3))):
            x[~used] = entry
        call = made.call.with_tensors((q, k, v))
        out, lse = run_forward(call)
        results.append((out, lse, *run_backward(call, (out, lse), grad)[:3]))
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("which", ["q", "k", "v"])
@pytest.mark.parametrize("mask", ["causal", "scattered"])
def test_visible_values_that_are_not_finite_are_not_hidden(
    mask: str, which: str, value: float
) -> None:
    """A row of the output is not finite where the reference's is not, and right where it is finite."""
    from maskwright.engine.reference import reference

    made = make_call(Case(mask, "float32", "plain"))
    named = dict(zip(("q", "k", "v"), (x.clone() for x in made.call.tensors), strict=True))
    named[which][:, :, 20, 3] = value
    tensors = tuple(named.values())
    out, lse = run_forward(made.call.with_tensors(tensors))
    right = reference(*(x.double() for x in tensors), made.call.mask, made.call.scale)
    for found, other in ((out, right.out), (lse, right.lse)):
        assert not (found.isfinite() & ~other.isfinite()).any()
        both = found.isfinite()
        assert error(found[both], other[both]) <= 1e-4


@pytest.mark.parametrize("dtype", DTYPES)
def test_masked_keys_have_no_influence_on_a_decode_step(dtype: str) -> None:
    made = make_call(Case("window", dtype, "one query"))
    clean = run_forward(made.call, made.terms)
    q, k, v = (x.clone() for x in made.call.tensors)
    first = T - 6  # of the window, within a tile
    k[:, :, :first], v[:, :, :first] = math.nan, math.inf
    found = run_forward(made.call.with_tensors((q, k, v)), made.terms)
    assert all(torch.equal(a, b) for a, b in zip(clean, found, strict=True))
    v[:, :, first] = math.inf
    assert not run_forward(made.call.with_tensors((q, k, v)), made.terms)[0].isfinite().any()
