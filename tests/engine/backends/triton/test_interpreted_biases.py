"""Gradients of biases and sinks in Triton's interpreter, and several terms of one kind."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import maskwright as mw
from maskwright.bias.terms import DistanceTerm, GridTerm, TensorTerm
from tests._helpers.attention_inputs import error, tensors
from tests._helpers.score_terms import TermBias

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-2, torch.bfloat16: 1e-1}
MADE = torch.Generator()
T = 20  # more than one tile of the kernel
MASKS = {
    "causal": mw.causal(),
    "window": mw.window(back=6),
    "nothing": mw.nothing(),
    "padding": mw.causal() & mw.padding(lengths=[13, T]),
    "by head": mw.by_head([mw.causal(), mw.window(back=3) - mw.keys([2, 3])]),
    "scattered": mw.where(lambda b, h, q, k: (q * 31 + k * 17) % 5 == 0),
}


def sizes_of(name: str) -> dict[str, int]:
    return {"batch": MASKS[name].on(T).shape[0], "heads": 2}


def values(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=MADE).to(dtype).requires_grad_()


def results(
    impl: str, name: str, terms: tuple[Any, ...], sinks: Any = None, **sizes: Any
) -> list[torch.Tensor]:
    """Output, logsumexp and all gradients of one call."""
    given = tensors(**sizes_of(name), **sizes).learning()
    bias = TermBias(terms) if terms else None
    out, lse = mw.attention(
        *given, MASKS[name], bias=bias, sinks=sinks, softcap=2.0, enable_gqa=True,
        impl=impl, return_lse=True,
    )  # fmt: skip
    total = out.float().sin().sum() + lse.float().masked_fill(lse.isinf(), 0.0).cos().sum()
    leaves = [*given, *(term.values for term in terms if term.values.requires_grad)]
    leaves += [] if sinks is None else [sinks]
    grads = torch.autograd.grad(total, leaves, materialize_grads=True)
    return [out.detach(), lse.detach(), *grads]


def assert_equal_to_reference(
    name: str, terms: tuple[Any, ...], sinks: Any = None, **sizes: Any
) -> None:
    found, right = (results(impl, name, terms, sinks, **sizes) for impl in ("triton", "reference"))
    limit = TOLERANCES[sizes["dtype"]]
    for mine, other in zip(found, right, strict=True):
        largest = float(other.abs().masked_fill(other.isinf(), 0.0).max())
        assert mine.dtype == other.dtype or mine is found[1]  # the logsumexp is float32
        assert error(mine, other) <= limit * max(1.0, largest)


def term(kind: str, batch: int, heads: int, q_len: int, dtype: torch.dtype) -> Any:
    """A bias term whose gradient is a sum of a certain kind."""
    made = {
        "distance": lambda: DistanceTerm(values(heads, 2 * T, dtype=dtype), T),
        "shared distance": lambda: DistanceTerm(values(1, 2 * T - 1, dtype=dtype), T - 1),
        "grid": lambda: GridTerm(values(heads, 5, 15, dtype=dtype), 3, 8),
        "shared grid": lambda: GridTerm(values(1, 3, 37, dtype=dtype), 2, 19),
        "cells": lambda: TensorTerm(values(1, heads, q_len, T, dtype=dtype)),
        "shared cells": lambda: TensorTerm(values(batch, 1, q_len, T, dtype=dtype)),
        "keys": lambda: TensorTerm(values(batch, 1, 1, T, dtype=dtype)),
        "rows": lambda: TensorTerm(values(1, heads, q_len, 1, dtype=dtype)),
        "one value": lambda: TensorTerm(values(1, heads, 1, 1, dtype=dtype)),
    }
    return made[kind]()


KINDS = (
    *("distance", "shared distance", "grid", "shared grid", "cells", "shared cells", "keys"),
    *("rows", "one value"),
)


@pytest.mark.parametrize(
    ("name", "dtype", "q_len"),
    [
        ("padding", torch.bfloat16, 17),
        ("by head", torch.float16, T),
        ("scattered", torch.float32, 19),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_gradient_of_a_term(kind: str, name: str, dtype: torch.dtype, q_len: int) -> None:
    sizes = sizes_of(name)
    MADE.manual_seed(3)
    made = term(kind, sizes["batch"], sizes["heads"], q_len, dtype)
    assert_equal_to_reference(name, (made,), q_len=q_len, kv_len=T, kv_heads=1, dtype=dtype)


@pytest.mark.parametrize("kind", ["distance", "grid", "cells", "keys", "rows"])
def test_gradients_of_few_queries_and_of_no_visible_key(kind: str) -> None:
    for name, q_len in (("causal", 2), ("nothing", 9)):
        MADE.manual_seed(3)
        made = term(kind, 1, 2, q_len, torch.float32)
        assert_equal_to_reference(name, (made,), q_len=q_len, kv_len=T, dtype=torch.float32)


def test_several_terms_of_each_kind() -> None:
    MADE.manual_seed(4)
    shapes = ((1, 1, T, 1), (1, 2, 1, T), (1, 2, T, T))
    terms = (
        *(DistanceTerm(values(2, 2 * T - 1), T - 1), DistanceTerm(values(1, 2 * T + 3), T + 1)),
        *(GridTerm(values(n, 3, 23), 2, 12) for n in (1, 2)),
        GridTerm(values(2, 1, 39), 1, 20),  # of another size
        *(TensorTerm(values(*shape)) for shape in shapes),
    )
    assert_equal_to_reference("scattered", terms, values(2), q_len=T, dtype=torch.float32)


def test_a_term_without_gradient_among_others() -> None:
    MADE.manual_seed(5)
    fixed = TensorTerm(values(1, 1, 1, T).detach())
    terms = (fixed, DistanceTerm(values(2, 2 * T - 1), T - 1))
    assert_equal_to_reference("window", terms, values(2), q_len=T, dtype=torch.float32)


def test_dropout_applies_to_the_gradients_of_biases() -> None:
    found = []
    for impl in ("triton", "blocks"):
        MADE.manual_seed(6)
        given = tensors(q_len=T, dtype=torch.float32).learning()
        terms = (term("distance", 1, 2, T, torch.float32), term("keys", 1, 2, T, torch.float32))
        torch.manual_seed(3)
        out = mw.attention(*given, MASKS["window"], bias=TermBias(terms), dropout_p=0.4, impl=impl)
        leaves = [made.values for made in terms]
        found.append(torch.autograd.grad(out.sin().sum(), leaves))
    assert all(error(a, b) <= 2e-5 for a, b in zip(*found, strict=True))


def test_slopes_and_tables_of_the_public_biases() -> None:
    found = []
    for impl in ("triton", "reference"):
        MADE.manual_seed(7)
        given = tensors(q_len=T, dtype=torch.float32).learning()
        slopes, table, grid = values(2), values(8, 2), values(57, 2)
        bias = mw.bias.alibi(slopes) + mw.bias.t5(table, max_distance=20)
        bias = bias + mw.bias.grid(grid, 2, 10)
        out = mw.attention(*given, mw.causal(), bias=bias, impl=impl)
        found.append((out, *torch.autograd.grad(out.sin().sum(), (*given, slopes, table, grid))))
    assert all(error(a, b) <= 5e-5 for a, b in zip(*found, strict=True))


def test_repeated_gradients_are_equal() -> None:
    runs = []
    for _ in range(2):
        MADE.manual_seed(8)
        terms = tuple(term(kind, 2, 2, T, torch.float16) for kind in ("distance", "keys"))
        runs.append(results("triton", "padding", terms, values(2), q_len=T, dtype=torch.float16))
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_a_compiled_graph_has_the_gradients_of_biases() -> None:
    given = tensors(q_len=20, dtype=torch.float32).learning()
    MADE.manual_seed(9)
    made, mask = term("keys", 1, 2, 20, torch.float32), mw.causal()
    bias = TermBias((made,))

    def attend(impl: str, *given: torch.Tensor) -> torch.Tensor:
        found: torch.Tensor = mw.attention(*given, mask, bias=bias, impl=impl)
        return found

    compiled = torch.compile(attend, backend="aot_eager", fullgraph=True)
    found, right = (
        torch.autograd.grad(run(impl, *given).sin().sum(), (*given, made.values))
        for run, impl in ((compiled, "triton"), (attend, "reference"))
    )
    assert all(error(a, b) <= 2e-5 for a, b in zip(found, right, strict=True))
