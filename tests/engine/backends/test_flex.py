"""FlexAttention's compilation: dynamic shapes where they work, static ones where they fail."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.nn.attention.flex_attention import flex_attention

import maskwright as mw
from maskwright.engine.backends import flex
from tests._helpers.calls import call_of


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
    assert flex._run_compiled(tensor(device)) == "out"
    assert compiled == [dynamic]


def test_device_without_dynamic_shapes_is_remembered(compiled: list[bool]) -> None:
    with pytest.warns(UserWarning, match="no dynamic shapes"):
        assert flex._run_compiled(tensor("broken")) == "out"
    assert flex._run_compiled(tensor("broken")) == "out"
    assert compiled == [True, False, False]


def call_with_sinks() -> Any:
    x = torch.randn(1, 2, 128, 16)
    return call_of((x, x, x), sinks=torch.randn(2), return_lse=True)


def test_sinks_in_a_graph() -> None:
    call = call_with_sinks()

    def attend(*tensors: torch.Tensor) -> Any:
        return flex.run(flex_attention, call.with_tensors(tensors), None, 0)

    found = torch.compile(attend, backend="eager")(*call.tensors)
    expected = mw.attention(*call.tensors[:3], sinks=call.tensors[3], return_lse=True)
    torch.testing.assert_close(found, expected)


def test_logsumexp_of_releases_without_aux_request() -> None:
    """FlexAttention returned the logsumexp itself."""
    call = call_with_sinks()
    out, lse = torch.randn(1, 2, 128, 16), torch.randn(1, 2, 128)
    results = (
        flex.run(lambda *_, aux=aux, **__: (out, aux), call, None, 0)
        for aux in (lse, SimpleNamespace(lse=lse))
    )
    for older, newer in zip(*results, strict=True):
        assert torch.equal(older, newer)
