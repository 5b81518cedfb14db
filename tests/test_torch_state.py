"""What `_torch_state` says of tensors and modes, and that nothing else asks `torch._C`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode

import maskwright as mw
from maskwright import _torch_state as state

SOURCE = Path(mw.__file__).parent
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.jit


def test_one_module_reads_private_functions() -> None:
    readers = {path.name for path in SOURCE.rglob("*.py") if "torch._C" in path.read_text()}
    assert readers == {"_torch_state.py"}


def seen_by(run: Any, question: Any) -> list[Any]:
    """The answers to a question about the tensor that a function passes on."""
    answers: list[Any] = []

    def ask(x: torch.Tensor) -> torch.Tensor:
        answers.append(question(x))
        return x.sin()

    run(ask, torch.randn(3))
    return answers


TRANSFORMS = {
    "none": lambda f, x: f(x),
    "vmap": lambda f, x: torch.func.vmap(f)(x[None]),
    "grad": lambda f, x: torch.func.grad(lambda y: f(y).sum())(x),
    "jvp": lambda f, x: torch.func.jvp(f, (x,), (x,)),
    "make_fx": lambda f, x: make_fx(f)(x),
    "fake": lambda f, x: f(FakeTensorMode().from_tensor(x)),
    "meta": lambda f, x: f(x.to("meta")),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_values_are_readable_outside_of_transforms_and_graphs(name: str) -> None:
    assert seen_by(TRANSFORMS[name], state.has_values) == [name == "none"]


def test_values_are_not_read_while_torch_compile_traces() -> None:
    def choose(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if state.has_values(x) else x - 1

    x = torch.zeros(2)
    assert choose(x).tolist() == [1, 1]
    assert torch.compile(choose, backend="eager", fullgraph=True)(x).tolist() == [-1, -1]


@pytest.mark.parametrize("name", ["vmap", "grad", "jvp"])
def test_transforms_are_seen(name: str) -> None:
    assert seen_by(TRANSFORMS[name], lambda _: state.is_transformed()) == [True]
    assert seen_by(TRANSFORMS[name], lambda _: state.is_observed()) == [True]
    assert not state.is_observed()


def test_modes_and_tracers_are_observers() -> None:
    with TorchFunctionMode():
        assert state.is_observed()
        assert not state.is_transformed()
    with FakeTensorMode():
        assert state.is_observed()
    with forward_ad.dual_level():
        assert state.is_observed()
    answers = seen_by(lambda f, x: torch.jit.trace(f, x), lambda _: state.is_observed())
    assert answers[0]


def test_tangents_are_found_at_every_level() -> None:
    x = torch.randn(3)
    assert not state.has_tangent(x)
    with forward_ad.dual_level():
        assert not state.has_tangent(x)
        assert state.has_tangent(x, forward_ad.make_dual(x, x))
    both = lambda f, x: torch.func.jvp(torch.func.vmap(f), (x[None],), (x[None],))  # noqa: E731
    assert seen_by(both, state.has_tangent) == [True]


def test_autocast_casts_what_sdpa_casts() -> None:
    single, double = torch.randn(2), torch.randn(2).double()
    assert state.autocast(single, double) == (single, double)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert [x.dtype for x in state.autocast(single, double, None)[:2]] == [
            torch.bfloat16,
            torch.float64,
        ]
        with state.without_autocast("cpu"):
            assert not torch.is_autocast_enabled("cpu")
    assert state.autocast(single.to("meta"))[0].is_meta


def test_backward_passes_and_saved_tensor_hooks() -> None:
    x = torch.randn(2, requires_grad=True)
    seen = []
    y = x.sin()
    y.register_hook(lambda _: seen.append(state.is_in_backward()))
    y.sum().backward()
    assert seen == [True]
    assert not state.is_in_backward()
    assert not state.has_saved_tensor_hooks()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        assert state.has_saved_tensor_hooks()
