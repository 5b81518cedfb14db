"""FlexAttention in compiled graphs, on the CPU: results, number of compilations, and refusals."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

import maskwright as mw
from maskwright.bias.terms import DistanceTerm, GridTerm, TensorTerm
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
