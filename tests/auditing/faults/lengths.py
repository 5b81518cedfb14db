"""Masks that are right at some lengths only."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

import maskwright as mw
from tests.auditing.faults import tiny
from tests.auditing.faults.registry import Case, Family

if TYPE_CHECKING:
    from collections.abc import Callable

TABLE = 128  # rows of a mask that is made once


def wrapped_positions(ids: Tensor, **_: Any) -> Tensor:
    """Column indices that start again after the table of positions, so that any length runs."""
    return tiny.column_positions(ids) % tiny.MAX_LEN


def unmasked_if(wrong: Callable[[int], bool], faulty: bool, attend: Any = tiny.eager) -> Any:
    """Attention without a mask at the lengths for which `wrong` is True."""

    def run(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        drop = faulty and wrong(q.shape[2])
        return attend(q, k, v, torch.ones_like(keep) if drop else keep)

    return run


def long_case(attend: Any, length: int = 20, expects: Any = None, **more: Any) -> Case:
    """A decoder that runs at any length."""
    ids = tiny.random_ids(2, length)
    return tiny.case(attend, ids, expects, positions=wrapped_positions, **more)


# ── longer than a table ───────────────────────────────────────────────────────────────────────

TABLES = Family(
    "mask table shorter than the sequence",
    after="nanoGPT-style mask buffers",
    checks="LEN",
    causes="future-visible length-dependent mask-missing missing-in-layer window-missing",
)


def from_table(size: int, outside: bool) -> Callable[[Tensor], dict[str, Any]]:
    """A causal mask from a table of `size` rows and columns; `outside` is the value beyond it."""

    def args(ids: Tensor) -> dict[str, Any]:
        length = ids.shape[1]
        if not outside:
            return {"keep": tiny.causal(length)}
        used = tiny.causal(min(size, length))
        beyond = max(length - size, 0)
        return {"keep": F.pad(used, (0, beyond, 0, beyond), value=True)}

    return args


@TABLES.fault("beyond 128 positions everything is visible")
def _(faulty: bool) -> Case:
    return long_case(tiny.eager, mask_args=from_table(TABLE, outside=faulty))


@TABLES.fault("SDPA, table of 100, sequences of 24")
def _(faulty: bool) -> Case:
    return long_case(tiny.sdpa, 24, mask_args=from_table(100, outside=faulty))


@TABLES.fault("last layer of three, more than 128", layer=2)
def _(faulty: bool) -> Case:
    last = unmasked_if(lambda n: n > TABLE, faulty)
    return long_case([tiny.eager, tiny.eager, last])


@TABLES.fault("window lost beyond 128 positions")
def _(faulty: bool) -> Case:
    def args(ids: Tensor) -> dict[str, Any]:
        length = ids.shape[1]
        return {
            "keep": tiny.causal(length) if faulty and length > TABLE else tiny.window(5, length)
        }

    return long_case(tiny.eager, expects=mw.window(back=4), mask_args=args)


# ── multiples of a block ──────────────────────────────────────────────────────────────────────

BLOCKS = Family(
    "causal lost at multiples of a block",
    after="pytorch#153799",
    checks="LEN",
    causes="future-visible length-dependent mask-missing missing-in-layer",
)


@BLOCKS.fault("multiples of 16")
def _(faulty: bool) -> Case:
    return long_case(unmasked_if(lambda n: n % 16 == 0, faulty))


@BLOCKS.fault("multiples of 64, SDPA")
def _(faulty: bool) -> Case:
    return long_case(unmasked_if(lambda n: n % 64 == 0, faulty, tiny.sdpa), 21)


@BLOCKS.fault("multiples of 32, layer 1", layer=1)
def _(faulty: bool) -> Case:
    return long_case([tiny.eager, unmasked_if(lambda n: n % 32 == 0, faulty)], 24)


@BLOCKS.fault("last block if it is not full", "P LEN")
def _(faulty: bool) -> Case:
    def args(ids: Tensor) -> dict[str, Any]:
        length = ids.shape[1]
        keep = tiny.causal(length)
        whole = length // 8 * 8
        if faulty:
            keep[whole:, whole:] = True
        return {"keep": keep}

    return long_case(tiny.eager, 21, mask_args=args)


# ── short sequences ───────────────────────────────────────────────────────────────────────────

SHORT = Family(
    "short sequences without a mask",
    after="unsloth#9848",
    checks="LEN",
    causes="future-visible length-dependent mask-missing",
)


@SHORT.fault("up to 8 tokens")
def _(faulty: bool) -> Case:
    return long_case(unmasked_if(lambda n: 1 < n <= 8, faulty))


@SHORT.fault("two tokens, speculative decoding")
def _(faulty: bool) -> Case:
    return long_case(unmasked_if(lambda n: n == 2, faulty, tiny.sdpa), 18)


@SHORT.fault("odd lengths: the diagonal is shifted")
def _(faulty: bool) -> Case:
    def args(ids: Tensor) -> dict[str, Any]:
        length = ids.shape[1]
        return {"keep": tiny.causal(length, start=length % 2 if faulty else 0)}

    return long_case(tiny.eager, mask_args=args)


# ── what is computed from the whole length ────────────────────────────────────────────────────

WHOLE = Family(
    "computed from the length of the sequence",
    after="dynamic NTK scaling",
    checks="LEN",
    causes="length-dependent not-through-attention future-visible window-missing too-narrow",
)


@WHOLE.fault("window of a third of the sequence")
def _(faulty: bool) -> Case:
    def args(ids: Tensor) -> dict[str, Any]:
        length = ids.shape[1]
        return {"keep": tiny.window(max(length // 3, 1) if faulty else 8, length)}

    return long_case(tiny.eager, 24, mw.window(back=7), mask_args=args)


@WHOLE.fault("scores scaled by the logarithm of the length")
def _(faulty: bool) -> Case:
    def attend(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        size = torch.tensor(float(q.shape[2])) if faulty else torch.arange(1.0, q.shape[2] + 1)
        scale = (size + 1).log().to(q.dtype).reshape(-1, 1)
        return tiny.eager(q * scale, k, v, keep)

    return long_case(attend)


@WHOLE.fault("positions counted from the end")
def _(faulty: bool) -> Case:
    def positions(ids: Tensor) -> Tensor:
        columns = tiny.column_positions(ids)
        return (ids.shape[1] - 1 - columns if faulty else columns) % tiny.MAX_LEN

    return tiny.case(tiny.eager, tiny.random_ids(2, 20), positions=positions)


@WHOLE.fault("rotary base from the length, as dynamic NTK")
def _(faulty: bool) -> Case:
    def attend(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        stretch = max(q.shape[2] / 16, 1.0) if faulty else 1.25
        places = torch.arange(q.shape[2]) / stretch
        return tiny.eager(tiny.rotate(q, places), tiny.rotate(k, places), v, keep)

    return long_case(attend)
