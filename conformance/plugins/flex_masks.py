"""The BlockMasks of PyTorch's tests of FlexAttention, in both runs; their attention is not computed.

A test passes if all its uncompiled calls of create_block_mask do; the rest of the test does not count.
`flex_masks_maskwright` compares each BlockMask with that of maskwright, read from the same mask_mod by
`where`. Tests without such a call are skipped.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch.nn.attention import flex_attention as module

import maskwright as mw
from conformance import flex

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

original = module.create_block_mask
signature = inspect.signature(original)
compared = False
calls: list[str | None] = []  # of this test: what differs, or None


def create_block_mask(*args: Any, **kwargs: Any) -> Any:
    """create_block_mask; its BlockMask is compared with ours."""
    theirs = original(*args, **kwargs)
    if not isinstance(theirs.kv_indices, torch._subclasses.FakeTensor):
        calls.append(difference(theirs, *args, **kwargs) if compared else None)
    return theirs


def difference(theirs: Any, *args: Any, **kwargs: Any) -> str | None:
    """How the BlockMask that maskwright makes of these arguments differs, or None."""
    call = signature.bind(*args, **kwargs)
    call.apply_defaults()
    options = call.arguments
    sizes = options["Q_LEN"], options["KV_LEN"], options["B"] or 1, options["H"] or 1
    try:
        bound = mw.where(options["mask_mod"]).on(*sizes, q_start=0)
        ours = mw.lower(bound, "torch.flex", block_size=options["BLOCK_SIZE"])
    except Exception as error:  # a test must not end here
        return f"{type(error).__name__}: {error}"
    return flex.block_difference(theirs, ours, options["separate_full_blocks"])


def flex_attention(query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG001
    """Zeros in the shape of the output."""
    out = query.new_zeros(*query.shape[:-1], value.shape[-1])
    lse = query.new_zeros(query.shape[:-1])
    if kwargs.get("return_aux") is not None:
        return out, module.AuxOutput(lse=lse)
    return (out, lse) if kwargs.get("return_lse") else out


def run(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call a function that a test compiles; a compiled create_block_mask is not compared."""
    count = len(calls)
    try:
        return function(*args, **kwargs)
    finally:
        del calls[count:]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Report the BlockMasks instead of the test."""
    report = yield
    if call.when == "call":
        problems = [problem for problem in calls if problem]
        if not calls:
            report.outcome = "skipped"
            report.longrepr = (str(item.path), 0, "no uncompiled create_block_mask")
        else:
            report.outcome = "failed" if problems else "passed"
            report.longrepr = problems[0] if problems else None
            vars(report).pop("wasxfail", None)
        calls.clear()
    return report


module.create_block_mask = create_block_mask
module.flex_attention = flex_attention
torch.compile = flex.uncompiled(run)
