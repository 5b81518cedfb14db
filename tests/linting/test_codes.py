"""Every code: a mask with the problem is reported at its first cell, the correct mask is not."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
import torch

import maskwright as mw
from maskwright import LintReport, lint
from maskwright.linting.codes import CODES
from maskwright.messages import LANGUAGES, messages
from tests._helpers.lint_masks import (
    BOTH,
    EMPTY,
    INF,
    KEYS,
    LENGTHS,
    LOWEST,
    PACKED,
    PAST,
    REAL,
    SORTED,
    added,
)
from tests._helpers.message_reasons import reasons

if TYPE_CHECKING:
    from collections.abc import Callable


class Case(NamedTuple):
    """A code, its first cell, a call that reports it, and the correct call."""

    code: str
    cell: tuple[int, ...] | None
    bad: Callable[[], LintReport]
    good: Callable[[], LintReport]


def call(*args: Any, **options: Any) -> Callable[[], LintReport]:
    """A call of lint that is made later."""
    return partial(lint, *args, **options)


# name: code, first cell, a call that reports it, the correct call
CASES: dict[str, Case] = {
    # inverted
    "only the future is visible": Case("inverted", (0, 0, 0, 1), call(~PAST), call(PAST)),
    "inverted causal": Case("inverted", (0, 0, 0, 1),
        call(~PAST, causal=True), call(PAST, causal=True)),
    "True keeps where True masks": Case("inverted", (0, 0, 0, 1),
        call(torch.from_numpy(PAST), causal=True, to="drop"),
        call(torch.from_numpy(~PAST), causal=True, to="drop")),
    "inverted padding": Case("inverted", (0, 0, 0, 3),
        call(~REAL, padding=LENGTHS, axes="bk"),
        call(~REAL, padding=LENGTHS, axes="bk", to="drop")),
    "inverted 0/1 padding": Case("inverted", (0, 0, 0, 3),
        call((~KEYS).astype(int), padding=LENGTHS), call(KEYS.astype(int), padding=LENGTHS)),
    "padding inverted under a causal mask": Case("inverted", (0, 0, 3, 3),
        call(PAST & ~KEYS[:1], causal=True, padding=[3]),
        call(PAST & KEYS[:1], causal=True, padding=[3])),
    "inverted additive": Case("inverted", (0, 0, 0, 1),
        call(added(~PAST, -INF), causal=True), call(added(PAST, -INF), causal=True)),
    "inverted window, no property stated": Case("inverted", (0, 0, 0, 2),
        call(~mw.window(1, 1).on(6).dense()), call(mw.window(1, 1).on(6).dense())),
    "inverted mask": Case("inverted", (0, 0, 0, 0),
        call(~mw.padding(lengths=[3]), q_len=6, expects=mw.padding(lengths=[3])),
        call(mw.padding(lengths=[3]), q_len=6, expects=mw.padding(lengths=[3]))),
    # axes
    "batch on heads": Case("batch-on-heads", (0, 1, 3, 3),
        call(BOTH[:, 0], heads=2, padding=LENGTHS, causal=True),
        call(BOTH, heads=2, padding=LENGTHS, causal=True)),
    "batch on heads, no property stated": Case("batch-on-heads", None,
        call(BOTH[:, 0], batch=2, heads=2), call(BOTH[:, 0], batch=2, heads=2, axes="hqk")),
    "batch on the heads axis": Case("batch-on-heads", (0, 1, 0, 3),
        call(KEYS.swapaxes(0, 1), padding=LENGTHS), call(KEYS.swapaxes(0, 1), batch=2, heads=2)),
    "batch on queries": Case("batch-on-queries", (0, 0, 1, 2),
        call(SORTED, padding=[2, 4, 1, 3]),
        call(SORTED[:, None, None], padding=[2, 4, 1, 3], q_len=4)),
    "batch on queries, no property stated": Case("batch-on-queries", None,
        call(SORTED, batch=4), call(np.ones((4, 4), bool), batch=4)),
    "padding on queries": Case("padding-on-queries", (0, 0, 0, 3),
        call(REAL[:, None, :, None], padding=LENGTHS, kv_len=6),
        call(REAL[:, None, None, :], padding=LENGTHS, q_len=6)),
    "padding on queries, no property stated": Case("padding-on-queries", (0, 0, 0, 0),
        call(REAL[:, None, :, None]), call(REAL[:, None, None, :])),
    "batch rows align with heads": Case("does-not-broadcast", None,
        call(BOTH[:, 0], batch=2, heads=4), call(BOTH, batch=2, heads=4)),
    "batch rows align with queries": Case("does-not-broadcast", None,
        call(REAL, batch=2, q_len=6), call(REAL, batch=2, q_len=6, axes="bk")),
    "too few batch rows": Case("does-not-broadcast", None,
        call(BOTH, batch=3), call(BOTH, batch=2)),
    "(batch * heads, query, key) where True keeps": Case("does-not-broadcast", None,
        call(np.tile(PAST, (8, 1, 1)), batch=2, heads=4),
        call(np.tile(~PAST, (8, 1, 1)), batch=2, heads=4, to="drop", causal=True)),
    "more keys": Case("keys-mismatch", None,
        call(np.zeros((6, 8), np.float32), kv_len=6), call(np.zeros((6, 6), np.float32), kv_len=6)),
    "fewer keys than the padding mask": Case("keys-mismatch", None,
        call(PAST[:5, :5], padding=REAL), call(BOTH, padding=REAL)),
    "more queries": Case("queries-mismatch", None, call(PAST, q_len=5), call(PAST, q_len=6)),
    "bound to other keys": Case("keys-mismatch", None,
        call(mw.causal().on(6), kv_len=7), call(mw.causal().on(6), kv_len=6, causal=True)),
    "lengths beyond the keys": Case("does-not-fit", None,
        call(np.ones((2, 1, 6, 6), bool), padding=[3, 9]), call(KEYS, padding=[3, 6])),
    "a mask that does not fit": Case("does-not-fit", None,
        call(mw.padding(keep=REAL), q_len=5, kv_len=5), call(mw.padding(keep=REAL), q_len=6)),
    "five axes": Case("wrong-rank", None, call(KEYS[None]), call(KEYS)),
    "no axes": Case("wrong-rank", None, call(True), call([True])),
    "other axes than stated": Case("wrong-rank", None,
        call(KEYS, axes="bk"), call(KEYS, axes="bhqk")),
    "triu for tril": Case("queries-and-keys-swapped", (0, 0, 0, 1),
        call(torch.ones(6, 6).triu().bool(), causal=True),
        call(torch.ones(6, 6).tril().bool(), causal=True)),
    "triu for tril, with padding": Case("queries-and-keys-swapped", (0, 0, 0, 1),
        call(BOTH.swapaxes(-1, -2), causal=True, padding=LENGTHS),
        call(BOTH, causal=True, padding=LENGTHS)),
    # devices
    "two devices": Case("wrong-device", None,
        call(torch.ones(6, 6, device="meta"), device="cpu"),
        call(torch.from_numpy(PAST), device=torch.device("cpu"))),
    "an array of numpy": Case("wrong-device", None,
        call(PAST, device="cuda"),
        call(PAST, device="cpu")),
    "another device index": Case("wrong-device", None,
        call(torch.from_numpy(PAST), device="cuda:1"),
        call(torch.from_numpy(PAST), device="cpu:0")),
    "jax on another device": Case("wrong-device", None,
        call(jnp.asarray(PAST), device="gpu"),
        call(jnp.asarray(PAST), device=jnp.asarray(PAST).device)),
    "no values": Case("no-values", None,
        call(torch.ones(6, 6, device="meta")), call(torch.ones(6, 6, dtype=torch.int64))),
    # values
    "integers for SDPA": Case("wrong-dtype", None,
        call(torch.ones(6, 6, dtype=torch.int64).tril(), to="torch.sdpa", causal=True),
        call(torch.ones(6, 6, dtype=torch.bool).tril(), to="torch.sdpa", causal=True)),
    "integers for MultiheadAttention": Case("wrong-dtype", None,
        call(1 - PAST.astype(np.uint8), to="torch.mha", causal=True),
        call(~PAST, to="torch.mha", causal=True)),
    "floats that keep for jax": Case("wrong-dtype", None,
        call(PAST.astype(np.float32), to="jax", causal=True),
        call(PAST, to="jax", causal=True)),
    "0/1 floats": Case("zero-one-added", None,
        call(PAST.astype(np.float32), causal=True),
        call(PAST.astype(np.float32), causal=True, to="keep")),
    "bool added": Case("zero-one-added", None, call(PAST, to="additive"), call(PAST, to="keep")),
    "0/1 uint8 added": Case("zero-one-added", None,
        call(PAST.astype(np.uint8), to="additive"), call(PAST.astype(np.uint8))),
    "additive mask read as bool": Case("wrong-form", None,
        call(added(PAST, -INF), to="keep"), call(added(PAST, -INF), to="additive")),
    "~ of uint8": Case("integer-wrapped", (0, 0, 0, 1),
        call(~PAST.astype(np.uint8), to="drop", causal=True), call(~PAST, to="drop")),
    "~ of integers": Case("integer-wrapped", (0, 0, 0, 1),
        call(~PAST.astype(np.int64), to="drop", causal=True),
        call(1 - PAST.astype(np.int64), to="drop")),
    "- of uint8": Case("integer-wrapped", (0, 0, 0, 0),
        call(-PAST.astype(np.uint8)), call(PAST.astype(np.uint8))),
    "integers added": Case("integer-bias", None,
        call((1 - PAST.astype(int)) * -10_000, causal=True),
        call((1 - PAST.astype(np.float32)) * -10_000, causal=True)),
    "segment ids as a mask": Case("odd-values", (0, 0, 0, 4),
        call([[0, 0, 1, 1, 2, 2]]), call([[0, 0, 1, 1, 1, 1]])),
    "NaN": Case("nan-value", (0, 0, 0, 0),
        call(np.where(PAST, np.nan, -INF), causal=True),
        call(np.where(PAST, 0, -INF), causal=True)),
    "plus infinity": Case("positive-value", (0, 0, 0, 1),
        call(added(PAST, INF), causal=True), call(added(PAST, -INF), causal=True)),
    "positive fill value": Case("positive-value", (0, 0, 0, 1),
        call(added(PAST, 1e9), causal=True), call(added(PAST, -1e9), causal=True)),
    "small positive fill value": Case("positive-value", (0, 0, 0, 1),
        call(added(PAST, 2.0)), call(np.linspace(-2, 2, 36).reshape(6, 6))),  # a learned bias
    "bias as a mask": Case("bias-hides", (0, 0, 0, 1),
        call(mw.bias.alibi(2) + mw.bias.tensor(added(PAST, -1e9))),
        call(mw.bias.alibi(2) + mw.bias.tensor(np.linspace(-2, 2, 36).reshape(6, 6)))),
    "multiple of a learned bias": Case("bias-hides", None,
        call(-1e5 * mw.bias.relative(torch.tensor([[0.0, 0.0, 1.0]]))),
        call(-1e3 * mw.bias.relative(torch.tensor([[0.0, 0.0, 1.0]])))),
    "fill of -1": Case("fill-too-weak", (0, 0, 0, 1),
        call(added(PAST, -1), causal=True), call(added(PAST, -1000), causal=True)),
    "fill of -100": Case("fill-too-weak", (0, 0, 0, 1),
        call(torch.from_numpy(added(PAST, -100)).bfloat16()),
        call(torch.from_numpy(added(PAST, -1e4)).bfloat16())),
    "two masks summed": Case("summed-fills", (0, 0, 0, 3),
        call(added(PAST, -1e9) + added(KEYS, -1e9), causal=True, padding=LENGTHS),
        call(added(BOTH, -1e9), causal=True, padding=LENGTHS)),
    "two masks of the lowest float32 summed": Case("summed-fills", (0, 0, 0, 3),
        call(added(BOTH, LOWEST) + added(PAST | KEYS, -INF), causal=True),
        call(added(BOTH, LOWEST), causal=True)),
    "-1e9 in half precision": Case("fill-overflows", (0, 0, 0, 1),
        call(added(PAST, -1e9), dtype="float16"), call(added(PAST, -1e9), dtype="bfloat16")),
    "-1e8 in half precision": Case("fill-overflows", (0, 0, 0, 1),
        call(added(PAST, -1e8), dtype=torch.half), call(added(PAST, -1e4), dtype=torch.half)),
    "the lowest float32 in bfloat16": Case("fill-overflows", (0, 0, 0, 1),
        call(added(PAST, LOWEST), dtype=jnp.bfloat16), call(added(PAST, LOWEST), dtype=np.float32)),
    "the lowest float32 in an empty row": Case("fill-at-limit", (0, 0, 0, 0),
        call(added(EMPTY, LOWEST)), call(added(PAST, LOWEST))),
    "the lowest float16 in an empty row": Case("fill-at-limit", (0, 0, 0, 0),
        call(added(EMPTY, -65504, np.float16)), call(added(PAST, -65504, np.float16))),
    "the lowest float16 in the row of a padding query": Case("fill-at-limit", (0, 0, 0, 0),
        call(added(EMPTY, -65504, np.float16), causal=True, padding=[[0, 1, 1, 1, 1, 1]]),
        call(added(EMPTY, LOWEST), causal=True, padding=[[0, 1, 1, 1, 1, 1]])),
    # cells
    "an empty row": Case("empty-row", (0, 0, 0, 0), call(EMPTY), call(PAST)),
    "an empty sequence": Case("empty-row", (1, 0, 0, 0),
        call(mw.padding(lengths=[3, 0]), q_len=4), call(mw.padding(lengths=[3, 1]), q_len=4)),
    "left padding filled with -inf": Case("empty-row", (0, 0, 0, 0),
        call(added(PAST & ~REAL[:1], -INF), causal=True, padding=~REAL[:1]),
        call(added(PAST & ~REAL[:1], -1e9), causal=True, padding=~REAL[:1])),
    "a future cell": Case("future-visible", (0, 0, 0, 1),
        call(np.ones((6, 6), bool), causal=True), call(PAST, causal=True)),
    "tril one diagonal too high": Case("future-visible", (0, 0, 0, 1),
        call(np.tril(np.ones((6, 6), bool), 1), causal=True),
        call(np.tril(np.ones((6, 6), bool), 0), causal=True)),
    "additive times tril": Case("future-visible", (0, 0, 0, 1),
        call(added(PAST, LOWEST) * PAST, causal=True), call(added(PAST, LOWEST), causal=True)),
    "upper left with a cache": Case("aligned-upper-left", (0, 0, 0, 4),
        call(torch.ones(2, 6).tril().bool(), causal=True),
        call(torch.ones(2, 6).tril(4).bool(), causal=True)),
    "lower right where it should be upper left": Case("aligned-lower-right", (0, 0, 0, 1),
        call(torch.ones(2, 6).tril(4).bool(), causal=True, q_start=0),
        call(torch.ones(2, 6).tril().bool(), causal=True, q_start=0)),
    "one decoding step, upper left": Case("aligned-upper-left", (0, 0, 0, 5),
        call([[1, 0, 0, 0, 0, 0]], causal=True), call([[1, 1, 1, 1, 1, 1]], causal=True)),
    "no diagonal": Case("own-position-hidden", (0, 0, 0, 0),
        call(np.tril(PAST, -1), causal=True), call(PAST, causal=True)),
    "no diagonal, no property stated": Case("own-position-hidden", (0, 0, 0, 0),
        call(np.triu(np.ones((6, 6), bool)), to="drop"),
        call(np.triu(np.ones((6, 6), bool), 1), to="drop")),
    "padding not masked": Case("padding-visible", (0, 0, 0, 3),
        call(np.ones((6, 6), bool), padding=LENGTHS), call(KEYS, padding=LENGTHS)),
    "padding not masked in a decoder": Case("padding-visible", (0, 0, 3, 3),
        call(PAST, padding=LENGTHS, causal=True), call(BOTH, padding=LENGTHS, causal=True)),
    "one padding token not masked in a decoder": Case("padding-visible", (0, 0, 5, 5),
        call(mw.causal(), q_len=6, padding=[5, 6], causal=True),
        call(mw.causal() & mw.padding(lengths=[5, 6]), q_len=6, padding=[5, 6], causal=True)),
    "source padding not masked": Case("padding-visible", (0, 0, 0, 3),
        call(np.ones((2, 1, 4, 6), bool), padding=REAL), call(KEYS[:, :, :4], padding=REAL)),
    "a real token masked": Case("real-key-hidden", (0, 0, 2, 2),
        call(mw.causal() & mw.padding(lengths=[2, 6]), padding=REAL, causal=True),
        call(mw.causal() & mw.padding(lengths=[3, 6]), padding=REAL, causal=True)),
    "documents not masked": Case("documents-leak", (0, 0, 3, 0),
        call(PAST, causal=True, documents=[[3, 3]]), call(PACKED, causal=True, documents=[[3, 3]])),
    "documents by ids": Case("documents-leak", (0, 0, 3, 0),
        call(PAST, documents=[0, 0, 0, 1, 1, 1]), call(PACKED, documents=[0, 0, 0, 1, 1, 1])),
    "padding of a packed row": Case("documents-leak", (0, 0, 3, 0),
        call(PAST, documents=mw.documents(lengths=[[3, 2]])),
        call(PACKED, documents=mw.documents(lengths=[[3, 2]]))),
    "window of W + 1": Case("window-off-by-one", (0, 0, 3, 0),
        call(mw.window(back=3), q_len=9, window=3), call(mw.window(back=2), q_len=9, window=3)),
    "window of W - 1": Case("window-off-by-one", (0, 0, 2, 0),
        call(mw.window(back=1), q_len=9, window=3),
        call(mw.window(back=2) & mw.padding(lengths=[8, 9]), q_len=9, window=3)),
    "window one key too far ahead": Case("window-off-by-one", (0, 0, 0, 3),
        call(mw.window(1, 3).on(9).dense(), window=(1, 2)),
        call(mw.window(1, 2).on(9).dense(), window=(1, 2))),
    "window without keys ahead": Case("window-off-by-one", (0, 0, 0, 1),
        call(mw.window(1, 0), q_len=9, window=(1, 1)),
        call(mw.window(1, 1), q_len=9, window=(1, 1))),
    "one decoding step": Case("window-off-by-one", (0, 0, 0, 5),
        call(mw.window(back=4).step(9), window=4), call(mw.window(back=3).step(9), window=4)),
    "no window": Case("window-missing", (0, 0, 3, 0),
        call(mw.causal(), q_len=9, window=3), call(mw.causal(), q_len=9, window=(-1, 0))),
    "window too wide": Case("window-too-wide", (0, 0, 3, 0),
        call(mw.window(5), q_len=9, window=3), call(mw.window(5), q_len=9, window=6)),
    "window too narrow": Case("window-too-narrow", (0, 0, 2, 0),
        call(mw.window(1), q_len=9, window=6),
        call(mw.window(1) & mw.documents(lengths=[[2] * 4 + [1]]), q_len=9, window=6)),
    "another mask": Case("differs", (0, 0, 3, 0),
        call(PAST, expects=mw.window(back=2)), call(PAST, expects=mw.window(back=None))),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_problem_is_reported_at_first_cell(name: str) -> None:
    case = CASES[name]
    report = case.bad()
    assert case.code in report.codes, report
    found = report[report.codes.index(case.code)]
    assert found.cell == case.cell, report


@pytest.mark.parametrize("name", CASES)
def test_finding_has_texts_in_both_languages(name: str) -> None:
    for finding in CASES[name].bad():
        for reason in reasons(finding.reason):
            assert reason.code in messages("en")
        english, chinese = (finding.as_dict(lang) for lang in LANGUAGES)
        assert (english["message"], english["fix"]) == (finding.message, finding.fix)
        assert chinese["message"] != english["message"]
        assert {**english, "message": "", "fix": ""} == {**chinese, "message": "", "fix": ""}
        json.dumps(english, allow_nan=False)


@pytest.mark.parametrize("name", CASES)
def test_correct_mask_has_no_findings(name: str) -> None:
    assert CASES[name].good().ok, CASES[name].good()


def test_every_code_of_lint_has_case() -> None:
    assert {case.code for case in CASES.values()} == {
        code for code, entry in CODES.items() if entry.lint
    }


@pytest.mark.parametrize(
    "code",
    [
        "inverted",
        "batch-on-heads",
        "batch-on-queries",
        "fill-overflows",
        "integer-wrapped",
        "nan-value",
        "fill-too-weak",
    ],
)
def test_one_problem_is_reported_once(code: str) -> None:
    for case in CASES.values():
        if case.code == code:
            assert case.bad().codes == (code,)
