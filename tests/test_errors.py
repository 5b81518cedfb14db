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

# name: error, call, what the message names (function, argument, value), what the fix mentions
CASES: dict[str, tuple[type[Exception], Callable[[], object], tuple[str, ...], str]] = {
    "negative window": (mw.ArgumentError,
        lambda: mw.window(back=-1), ("window", "back", "-1"), "0 or more|None"),
    "padding without data": (mw.ArgumentError, lambda: mw.padding(), ("padding",), "lengths|keep"),
    "padding longer than the keys": (mw.FrameError,
        lambda: mw.padding(lengths=[9]).on(4), ("padding", "lengths", "9", "4"), "kv_len|shorten"),
    "two batch sizes": (mw.FrameError,
        lambda: (mw.padding(lengths=[1, 2]) & mw.padding(lengths=[1, 2, 3])).on(4),
        ("batch", "2", "3"), "same|1"),
    "combined with an array": (mw.ArgumentError,
        lambda: mw.causal() & np.ones((2, 2)), ("&", "ndarray"), "dense"),
    "used as a condition": (mw.TruthError, lambda: bool(mw.causal()), ("mask",), "&"),
    "row outside the frame": (mw.FrameError,
        lambda: mw.causal().on(4).why(0, 9), ("why", "key", "9"), "3"),
    "too large to build": (mw.SizeError,
        lambda: mw.causal().on(2_000_000).dense(), ("dense", "GB"), "tiles|rows"),
    "misspelt atom": (mw.TextError, lambda: mw.parse("windw(back=3)"), ("windw",), "window"),
    "JSON that is not a mask": (mw.TextError, lambda: mw.from_json("{"), ("JSON",), "to_json"),
    "unknown target": (mw.ArgumentError,
        lambda: mw.lower(mw.causal().on(2), "torch.spda"), ("torch.spda",), "torch.sdpa"),
    "mask that a target does not represent": (mw.Unsupported,
        lambda: mw.lower(mw.stride(3).on(6), "flash.varlen"), ("flash.varlen", "stride"), "torch"),
    "tensor of three dimensions": (mw.ArgumentError,
        lambda: mw.attention(X[0], X, X), ("attention", "q", "(2, 4, 8)"), "batch, heads"),
    "two dtypes": (mw.ArgumentError,
        lambda: mw.attention(X, X.half(), X), ("attention", "float16", "float32"), "dtype"),
    "different head counts": (mw.ArgumentError,
        lambda: mw.attention(X, X[:, :1], X[:, :1]),
        ("attention", "(1, 2, 4, 8)", "(1, 1, 4, 8)"), "enable_gqa"),
    "dropout of 1": (mw.ArgumentError,
        lambda: mw.attention(X, X, X, dropout_p=1.0), ("attention", "dropout_p", "1.0"), "0"),
    "scale that is not finite": (mw.ArgumentError,
        lambda: mw.attention(X, X, X, scale=float("nan")), ("attention", "scale", "nan"), "finite"),
    "unknown impl": (mw.ArgumentError,
        lambda: mw.attention(X, X, X, impl="fast"), ("attention", "impl", "fast"), "native"),
    "tensor in place of a mask": (mw.ArgumentError,
        lambda: mw.attention(X, X, X, torch.ones(4, 4)), ("attention", "mask", "Tensor"), "dense"),
    "bound to another size": (mw.FrameError,
        lambda: mw.attention(X, X, X, mw.causal().on(5)),
        ("attention", "5", "4"), "[Bb]ind|unbound"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_error_names_input_and_fix(name: str) -> None:
    kind, call, named, fix = CASES[name]
    with pytest.raises(kind) as error:
        call()
    message = str(error.value)
    assert isinstance(error.value, mw.MaskError)
    assert [part for part in named if part not in message] == []
    assert re.search(fix, message), message
    assert "\n" not in message


def test_restricted_targets_name_alternatives() -> None:
    refusing = [t for t in mw.capabilities().values() if t.supports != "every mask"]
    assert refusing
    assert [target.name for target in refusing if not target.alternatives] == []
