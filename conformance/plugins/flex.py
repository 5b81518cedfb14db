"""PyTorch's tests of FlexAttention without compilation, in both runs.

The tests compare compiled calls of flex_attention with uncompiled ones. `flex_maskwright` puts maskwright
in place of the compiled ones. Tests without a call that maskwright can express are skipped.
"""

from __future__ import annotations

from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.nn.attention import flex_attention as module

from conformance import flex

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

original = module.flex_attention
compiled: ContextVar[bool] = ContextVar("compiled", default=False)
replaced = False
calls = 0  # in this test, of those that can be expressed


def flex_attention(
    query: Any,
    key: Any,
    value: Any,
    score_mod: Any = None,
    block_mask: Any = None,
    scale: Any = None,
    enable_gqa: bool = False,
    return_lse: bool = False,
    kernel_options: Any = None,
    *,
    return_aux: Any = None,
) -> Any:
    """flex_attention, by maskwright where a test compiles it and maskwright can express the call."""
    global calls
    if compiled.get():
        call = flex.read_call((query, key, value), score_mod, block_mask, scale)
        calls += call is not None
        if call is not None and replaced:
            return flex.attend((query, key, value), call, enable_gqa, return_lse, return_aux)
    return original(
        query,
        key,
        value,
        score_mod,
        block_mask,
        scale,
        enable_gqa,
        return_lse,
        kernel_options,
        return_aux=return_aux,
    )


def run(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function that a test compiles."""
    token = compiled.set(True)
    try:
        return function(*args, **kwargs)
    finally:
        compiled.reset(token)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Skip tests without such a call."""
    global calls
    report = yield
    if call.when == "call":
        if not calls:
            report.outcome = "skipped"
            report.longrepr = (str(item.path), 0, "no compiled call that maskwright can express")
        calls = 0
    return report


module.flex_attention = flex_attention
torch.compile = flex.uncompiled(run)
