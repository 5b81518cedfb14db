"""FlexAttention's compilation: dynamic shapes where they work, static ones where they fail."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

import maskwright as mw
from maskwright.engine.backends import flex
from maskwright.targets.torch_flex import request_lse


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """The values of `dynamic` that were run; dynamic shapes fail on the device "broken"."""
    ran: list[bool] = []

    def compile_(dynamic: bool) -> Any:
        def run(q: Any, **options: Any) -> str:
            ran.append(dynamic)
            if dynamic and q.device.type == "broken":
                raise RuntimeError("no dynamic shapes")
            return "out"

        return run

    monkeypatch.setattr(flex, "_compiled", compile_)
    monkeypatch.setattr(flex, "_STATIC_DEVICES", set())
    return ran


def tensor(device: str) -> Any:
    return SimpleNamespace(device=SimpleNamespace(type=device))


@pytest.mark.parametrize(("device", "dynamic"), [("cpu", False), ("cuda", True)])
def test_shapes_are_dynamic_except_on_the_cpu(
    device: str, dynamic: bool, compiled: list[bool]
) -> None:
    assert flex._run_compiled((tensor(device),), {}) == "out"
    assert compiled == [dynamic]


def test_device_without_dynamic_shapes_is_remembered(compiled: list[bool]) -> None:
    with pytest.warns(UserWarning, match="no dynamic shapes"):
        assert flex._run_compiled((tensor("broken"),), {}) == "out"
    assert flex._run_compiled((tensor("broken"),), {}) == "out"
    assert compiled == [True, False, False]


def test_logsumexp_in_a_graph() -> None:
    x, sinks = torch.randn(1, 2, 128, 16), torch.randn(2)

    def attend(x: torch.Tensor, sinks: torch.Tensor) -> Any:
        return flex.results_of(flex_attention(x, x, x, **request_lse()), sinks)

    compiled = torch.compile(attend, fullgraph=True, backend="eager")
    expected = mw.attention(x, x, x, sinks=sinks, return_lse=True)
    torch.testing.assert_close(compiled(x, sinks), expected)


def test_logsumexp_of_releases_without_aux_request() -> None:
    """FlexAttention returned the logsumexp itself."""
    out, lse, sinks = torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5), torch.randn(2)
    results = (flex.results_of((out, aux), sinks) for aux in (lse, SimpleNamespace(lse=lse)))
    for older, newer in zip(*results, strict=True):
        assert torch.equal(older, newer)
