"""FlexAttention's compilation: dynamic shapes where they work, static ones where they fail."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from maskwright.engine.backends import flex


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
