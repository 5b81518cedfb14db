"""FlexAttention in compiled graphs, on the CPU: results, number of compilations, and refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend, EagerAndRecordGraphs
from torch._subclasses.fake_tensor import FakeTensorMode

import maskwright as mw
from maskwright.bias.terms import DistanceTerm, GridTerm, TensorTerm
from maskwright.engine import select
from maskwright.engine.backends import flex_graph
from tests._helpers.attention_inputs import error, tensors
from tests._helpers.score_terms import TermBias

FLOAT = torch.float32
MASKS = {
    "everything": (mw.everything(), {}),
    "causal": (mw.causal(), {}),
    "sinks": ((mw.window(back=40) | mw.keys(range(2))) & mw.causal(), {}),
    "padding": (mw.causal() & mw.padding(lengths=[20, 150]), {"batch": 2}),
    "by head": (mw.by_head([mw.causal(), mw.nothing()]), {}),
    "bound": (mw.causal().on(150), {}),
}


@pytest.fixture(autouse=True)
def reset() -> None:
    torch._dynamo.reset()


def attend(given: Any, mask: Any, **options: Any) -> Any:
    return mw.attention(*given, mask, enable_gqa=True, impl="flex", **options)


def compiled(**options: Any) -> tuple[Any, CompileCounterWithBackend]:
    counter = CompileCounterWithBackend(options.pop("backend", "aot_eager"))
    return torch.compile(attend, backend=counter, fullgraph=True, **options), counter


@pytest.mark.parametrize("name", MASKS)
def test_equals_reference(name: str) -> None:
    mask, sizes = MASKS[name]
    given = tensors(**sizes, heads=2, kv_heads=1, q_len=150, dim=8, dtype=FLOAT)
    run, _ = compiled(dynamic=True)
    right = mw.attention(*given, mask, enable_gqa=True, impl="reference")
    assert error(run(given, mask), right) <= 1e-5


def test_soft_cap_and_biases() -> None:
    given = tensors(heads=2, q_len=20, kv_len=48, dim=8, dtype=FLOAT)
    made = torch.Generator().manual_seed(1)
    terms = (
        DistanceTerm(torch.randn(2, 95, generator=made), 47),
        GridTerm(torch.randn(1, 11, 15, generator=made), 6, 8),
        TensorTerm(torch.randn(1, 2, 1, 48, generator=made)),
    )
    options = {"softcap": 2.0, "bias": TermBias(terms), "scale": 0.5}
    mask = mw.causal()

    def call(given: Any) -> Any:  # the options are constants of the graph
        return attend(given, mask, **options)

    run = torch.compile(call, backend="aot_eager", fullgraph=True)
    found = run(given)
    right = mw.attention(*given, mask, impl="reference", **options)
    assert error(found, right) <= 1e-5


def test_new_masks_and_lengths_compile_nothing() -> None:
    run, counter = compiled(dynamic=True)
    counts = []
    for length, back in ((150, 4), (150, 7), (300, 20), (129, 1)):  # more than one block of rows
        given, mask = tensors(q_len=length, dim=8, dtype=FLOAT), mw.window(back=back)
        assert error(run(given, mask), mw.attention(*given, mask, impl="reference")) <= 1e-5
        counts.append(counter.frame_count)
    assert counts == [counts[0]] * 4


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of inductor
def test_compiled_by_inductor() -> None:
    """With static shapes: PyTorch generates invalid C++ for dynamic ones on the CPU."""
    run, counter = compiled(backend="inductor", dynamic=False)
    given, mask = tensors(q_len=150, dim=16, dtype=FLOAT), mw.causal()
    with torch.no_grad():
        found, count = run(given, mask), counter.frame_count
        assert torch.equal(run(given, mask), found)
    assert error(found, mw.attention(*given, mask, impl="reference")) <= 1e-5
    assert counter.frame_count == count


def test_masks_with_many_intervals_are_refused() -> None:
    given, mask = tensors(q_len=48, dim=8, dtype=FLOAT), mw.causal() - mw.keys(range(0, 48, 5))
    run, _ = compiled()
    with pytest.raises(mw.errors.Unsupported, match="4 intervals per row, and this one has 10"):
        run(given, mask)


@pytest.mark.parametrize(
    ("options", "problem"),
    [({"dropout_p": 0.5}, "dropout"), ({"return_lse": True}, "logsumexp"), ({}, "backward")],
)
def test_calls_that_flex_attention_does_not_support_are_refused(
    options: dict[str, Any], problem: str
) -> None:
    given = tensors(q_len=48, dim=8, dtype=FLOAT)
    run, _ = compiled()
    with pytest.raises(Exception, match=problem):  # Dynamo's, which quotes ours
        run(given if options else given.learning(), mw.causal(), **options)


# ── the default ───────────────────────────────────────────────────────────────────────────────────

FEW = (mw.window(back=40) | mw.keys(range(2))) & mw.causal()
MANY = mw.causal() - mw.keys(range(0, 40, 5))


def default(given: Any, mask: Any, **options: Any) -> Any:
    return mw.attention(*given, mask, enable_gqa=True, **options)


def called_operators(counter: Any) -> list[set[str]]:
    """Which of FlexAttention and the operator each graph calls."""
    names = {"flex_attention": "flex", "maskwright.attend.default": "operator"}
    return [
        {names[str(node.target)] for node in graph.graph.nodes if str(node.target) in names}
        for graph in counter.graphs
    ]


@pytest.fixture
def default_on_cpu(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """A compiled call without `impl`, where FlexAttention is the default in graphs on the CPU too."""
    monkeypatch.setattr(select, "FLEX_GRAPH_DEVICES", ("cuda", "cpu"))
    counter = EagerAndRecordGraphs()
    return torch.compile(default, backend=counter, fullgraph=True, dynamic=True), counter


@pytest.mark.parametrize(("mask", "operator"), [(None, "flex"), (FEW, "flex"), (MANY, "operator")])
def test_number_of_intervals_decides_the_default(
    mask: Any, operator: str, default_on_cpu: tuple[Any, Any]
) -> None:
    run, counter = default_on_cpu
    given = tensors(heads=2, kv_heads=1, q_len=150, dim=16, dtype=FLOAT)
    right = mw.attention(*given, mask, enable_gqa=True, impl="reference")
    assert error(run(given, mask), right) <= 1e-5
    assert called_operators(counter) == [{operator}]


def test_masks_with_many_intervals_make_another_graph(default_on_cpu: tuple[Any, Any]) -> None:
    run, counter = default_on_cpu
    given = tensors(q_len=150, dim=16, dtype=FLOAT)
    for first in (2, 3, 40, 45, 4):
        mask = mw.causal() - mw.keys(range(0, first, 5))
        assert error(run(given, mask), mw.attention(*given, mask, impl="reference")) <= 1e-5
    assert sorted(map(str, called_operators(counter))) == ["{'flex'}", "{'operator'}"]


@pytest.mark.parametrize("options", [{"dropout_p": 0.5}, {"return_lse": True}, {}])
def test_default_is_the_operator_where_flex_attention_does_not_support_the_call(
    options: dict[str, Any], default_on_cpu: tuple[Any, Any]
) -> None:
    run, counter = default_on_cpu
    given = tensors(q_len=150, dim=16, dtype=FLOAT)
    run(given if options else given.learning(), FEW, **options)
    assert called_operators(counter) == [{"operator"}]


@pytest.mark.parametrize(
    ("mask", "dim", "dtype", "stored", "operator"),
    [
        (FEW, 16, torch.float16, False, "flex"),
        (MANY, 16, torch.float16, False, "operator"),
        (FEW, 8, torch.float16, False, "operator"),
        (FEW, 16, torch.float64, False, "operator"),
        (FEW, 16, torch.float16, True, "operator"),
    ],
)
def test_default_on_cuda(
    mask: Any,
    dim: int,
    dtype: torch.dtype,
    stored: bool,
    operator: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On fake tensors, with a stand-in for FlexAttention, whose fake implementation needs a GPU."""

    def flex_attention(q: Any, k: Any, v: Any, **options: Any) -> Any:
        assert options["block_mask"].kv_indices.device.type == "cuda"
        return q * v.shape[-1]

    monkeypatch.setattr(flex_graph, "flex_attention", flex_attention)
    monkeypatch.setattr(select, "stored_choice", lambda: "triton" if stored else None)
    counter = EagerAndRecordGraphs()
    run = torch.compile(default, backend=counter, fullgraph=True, dynamic=True)
    with FakeTensorMode(), torch.no_grad():
        q = torch.empty(2, 4, 150, dim, device="cuda", dtype=dtype)
        assert run((q, q, q), mask).shape == q.shape
    names = {str(node.target) for node in counter.graphs[0].graph.nodes}
    tables = "maskwright.block_mask_tables.default" in names
    assert (tables, "maskwright.attend.default" in names) == (
        operator == "flex",
        operator != "flex",
    )
