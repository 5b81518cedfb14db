"""Errors that users meet: the right type, and a message with the argument, its value and a fix."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pytest

import maskwright as mw

if TYPE_CHECKING:
    from collections.abc import Callable

torch = pytest.importorskip("torch")
X = torch.zeros(1, 2, 4, 8)

# A call, its error, what the message names (function, argument, value), and what the fix mentions.
CASES: dict[str, tuple[Callable[[], object], type[Exception], tuple[str, ...], str]] = {
    "negative window": (
        *(lambda: mw.window(back=-1), mw.ArgumentError),
        *(("window", "back", "-1"), "0 or more|None"),
    ),
    "padding without data": (
        *(lambda: mw.padding(), mw.ArgumentError),
        *(("padding",), "lengths|keep"),
    ),
    "padding longer than the keys": (
        *(lambda: mw.padding(lengths=[9]).on(4), mw.FrameError),
        *(("padding", "lengths", "9", "4"), "kv_len|shorten"),
    ),
    "two batch sizes": (
        *(lambda: (mw.padding(lengths=[1, 2]) & mw.padding(lengths=[1, 2, 3])).on(4),),
        *(mw.FrameError, ("batch", "2", "3"), "same|1"),
    ),
    "combined with an array": (
        *(lambda: mw.causal() & np.ones((2, 2)), mw.ArgumentError),
        *(("&", "ndarray"), "dense"),
    ),
    "used as a condition": (
        *(lambda: bool(mw.causal()), mw.TruthError),
        *(("mask",), "&"),
    ),
    "row outside the frame": (
        *(lambda: mw.causal().on(4).why(0, 9), mw.FrameError),
        *(("why", "key", "9"), "3"),
    ),
    "too large to build": (
        *(lambda: mw.causal().on(2_000_000).dense(), mw.SizeError),
        *(("dense", "GB"), "tiles|rows"),
    ),
    "misspelt atom": (
        *(lambda: mw.parse("windw(back=3)"), mw.TextError),
        *(("windw",), "window"),
    ),
    "JSON that is not a mask": (
        *(lambda: mw.from_json("{"), mw.TextError),
        *(("JSON",), "to_json"),
    ),
    "unknown target": (
        *(lambda: mw.lower(mw.causal().on(2), "torch.spda"), mw.ArgumentError),
        *(("torch.spda",), "torch.sdpa"),
    ),
    "mask that a target does not represent": (
        *(lambda: mw.lower(mw.stride(3).on(6), "flash.varlen"), mw.Unsupported),
        *(("flash.varlen", "stride"), "torch"),
    ),
    "tensor of three dimensions": (
        *(lambda: mw.attention(X[0], X, X), mw.ArgumentError),
        *(("attention", "q", "(2, 4, 8)"), "batch, heads"),
    ),
    "two dtypes": (
        *(lambda: mw.attention(X, X.half(), X), mw.ArgumentError),
        *(("attention", "float16", "float32"), "dtype"),
    ),
    "different head counts": (
        *(lambda: mw.attention(X, X[:, :1], X[:, :1]), mw.ArgumentError),
        *(("attention", "(1, 2, 4, 8)", "(1, 1, 4, 8)"), "enable_gqa"),
    ),
    "dropout of 1": (
        *(lambda: mw.attention(X, X, X, dropout_p=1.0), mw.ArgumentError),
        *(("attention", "dropout_p", "1.0"), "0"),
    ),
    "scale that is not finite": (
        *(lambda: mw.attention(X, X, X, scale=float("nan")), mw.ArgumentError),
        *(("attention", "scale", "nan"), "finite"),
    ),
    "unknown impl": (
        *(lambda: mw.attention(X, X, X, impl="fast"), mw.ArgumentError),
        *(("attention", "impl", "fast"), "native"),
    ),
    "tensor in place of a mask": (
        *(lambda: mw.attention(X, X, X, torch.ones(4, 4)), mw.ArgumentError),
        *(("attention", "mask", "Tensor"), "dense"),
    ),
    "bound to another size": (
        *(lambda: mw.attention(X, X, X, mw.causal().on(5)), mw.FrameError),
        *(("attention", "5", "4"), "[Bb]ind|unbound"),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_error_names_the_input_and_a_fix(name: str) -> None:
    call, kind, named, fix = CASES[name]
    with pytest.raises(kind) as error:
        call()
    message = str(error.value)
    assert isinstance(error.value, mw.MaskError)
    assert [part for part in named if part not in message] == []
    assert re.search(fix, message), message
    assert "\n" not in message


def test_target_that_refuses_names_others() -> None:
    refusing = [t for t in mw.capabilities().values() if t.supports != "every mask"]
    assert refusing
    assert [target.name for target in refusing if not target.alternatives] == []
