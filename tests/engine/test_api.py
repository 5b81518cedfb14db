"""Overrides and observers of `attention` apply to the current thread and context only."""

from __future__ import annotations

import contextvars
import threading
from typing import Any

import pytest
import torch

import maskwright as mw
from maskwright.engine import api
from maskwright.engine.api import observe_attention, override_attention
from tests._helpers.attention_inputs import tensors

GIVEN = tensors(dtype=torch.float32)


def marked(q: Any, k: Any, v: Any, mask: Any, options: Any) -> Any:
    """An override that returns what it was called with."""
    return "overridden", mask, options


def in_thread(call: Any) -> Any:
    """The result of a call in another thread."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]


def attend(**options: Any) -> Any:
    return mw.attention(*GIVEN, mw.causal(), **options)


def test_override_gets_every_option() -> None:
    with override_attention(marked):
        name, mask, options = attend(
            scale=0.5,
            softcap=2.0,
            bias="bias",
            sinks="sinks",
            dropout_p=0.1,
            enable_gqa=True,
            q_start=0,
            impl="blocks",
            return_lse=True,
        )
    assert (name, mask) == ("overridden", mw.causal())
    assert options == (0.5, 0.1, True, 0, "blocks", True, 2.0, "bias", "sinks")
    assert isinstance(attend(), torch.Tensor)


def test_override_is_local_to_thread_and_context() -> None:
    before = contextvars.copy_context()
    with override_attention(marked):
        assert attend()[0] == "overridden"
        assert isinstance(in_thread(attend), torch.Tensor)
        assert isinstance(before.run(attend), torch.Tensor)
        assert contextvars.copy_context().run(attend)[0] == "overridden"


def test_two_threads_with_overrides_of_their_own() -> None:
    barrier, found = threading.Barrier(2), {}

    def run(name: str) -> None:
        with override_attention(lambda *_: name):
            barrier.wait()
            found[name] = {attend() for _ in range(200)}
            barrier.wait()

    threads = [threading.Thread(target=run, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {"a": {"a"}, "b": {"b"}}


def test_observers_see_parameters_and_results() -> None:
    seen: list[Any] = []

    def observer(call: Any, compute: Any) -> Any:
        result = compute()
        seen.append((call, result))
        return result

    right = attend()
    with observe_attention(observer):
        assert torch.equal(attend(dropout_p=0.0), right)
        in_thread(attend)
    attend()
    ((call, (out, lse)),) = seen
    assert call.mask == mw.causal().on(48, heads=2)
    assert call.shape == (1, 2, 2, 48, 48, 4, 4)
    assert all(x is y for x, y in zip(call.tensors, GIVEN, strict=True))
    assert torch.equal(out, right)
    assert lse.shape == (1, 2, 48)


def test_observers_nest() -> None:
    order: list[str] = []

    def named(name: str) -> Any:
        def observer(call: Any, compute: Any) -> Any:
            order.append(name)
            return compute()

        return observer

    with observe_attention(named("outer")), observe_attention(named("inner")):
        attend()
    assert order == ["outer", "inner"]


def test_hooks_are_removed_after_error() -> None:
    with pytest.raises(ZeroDivisionError), override_attention(marked):
        raise ZeroDivisionError
    assert api._hooks == 0
    assert isinstance(attend(), torch.Tensor)


def test_override_inside_torch_compile() -> None:
    torch._dynamo.reset()
    run = torch.compile(lambda: attend() + 1, backend="eager")
    right = attend() + 1
    assert torch.equal(run(), right)
    with override_attention(lambda *_: torch.zeros(2)):
        assert torch.equal(run(), torch.ones(2))
    assert torch.equal(run(), right)
    torch._dynamo.reset()
