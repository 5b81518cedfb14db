"""Every planted fault gets its finding at its first cell, and its healthy twin gets none."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import maskwright as mw
from maskwright import Finding, LintReport, lint
from maskwright.checks.findings import CODES

if TYPE_CHECKING:
    from collections.abc import Callable

INF = np.inf
LOWEST = float(np.finfo(np.float32).min)
LENGTHS = [3, 6]

PAST = np.tril(np.ones((6, 6), bool))
REAL = np.arange(6) < np.array(LENGTHS)[:, None]  # (2, 6)
KEYS = np.broadcast_to(REAL[:, None, None], (2, 1, 6, 6))
BOTH = PAST & KEYS
SORTED = np.array([[1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 1, 0]], bool)
PACKED = np.kron(np.eye(2), np.ones((3, 3))).astype(bool) & PAST
EMPTY = PAST & (np.arange(6) > 0)  # the first query sees nothing


def added(keep: Any, fill: float, dtype: Any = np.float32) -> Any:
    return np.where(keep, 0.0, fill).astype(dtype)


class Plant(NamedTuple):
    """A code, its first cell, the call that has the fault, and the same call without it."""

    code: str
    cell: tuple[int, ...] | None
    bad: Callable[[], LintReport]
    good: Callable[[], LintReport]


PLANTS: dict[str, Plant] = {
    # inverted
    "sees only the future": Plant("inverted", (0, 0, 0, 1), lambda: lint(~PAST), lambda: lint(PAST)),
    "inverted causal": Plant(
        "inverted", (0, 0, 0, 1), lambda: lint(~PAST, causal=True), lambda: lint(PAST, causal=True)
    ),
    "True keeps where True drops": Plant(
        "inverted",
        (0, 0, 0, 1),
        lambda: lint(torch.from_numpy(PAST), causal=True, to="drop"),
        lambda: lint(torch.from_numpy(~PAST), causal=True, to="drop"),
    ),
    "inverted padding": Plant(
        "inverted",
        (0, 0, 0, 3),
        lambda: lint(~REAL, padding=LENGTHS, axes="bk"),
        lambda: lint(~REAL, padding=LENGTHS, axes="bk", to="drop"),
    ),
    "inverted 0/1 padding": Plant(
        "inverted",
        (0, 0, 0, 3),
        lambda: lint((~KEYS).astype(int), padding=LENGTHS),
        lambda: lint(KEYS.astype(int), padding=LENGTHS),
    ),
    "padding inverted under a causal mask": Plant(
        "inverted",
        (0, 0, 3, 3),
        lambda: lint(PAST & ~KEYS[:1], causal=True, padding=[3]),
        lambda: lint(PAST & KEYS[:1], causal=True, padding=[3]),
    ),
    "inverted additive": Plant(
        "inverted",
        (0, 0, 0, 1),
        lambda: lint(added(~PAST, -INF), causal=True),
        lambda: lint(added(PAST, -INF), causal=True),
    ),
    "inverted window, nothing stated": Plant(
        "inverted",
        (0, 0, 0, 2),
        lambda: lint(~mw.window(1, 1).on(6).dense()),
        lambda: lint(mw.window(1, 1).on(6).dense()),
    ),
    "inverted mask": Plant(
        "inverted",
        (0, 0, 0, 0),
        lambda: lint(~mw.padding(lengths=[3]), q_len=6, expects=mw.padding(lengths=[3])),
        lambda: lint(mw.padding(lengths=[3]), q_len=6, expects=mw.padding(lengths=[3])),
    ),
    # axes
    "batch on heads": Plant(
        "batch-on-heads",
        (0, 1, 3, 3),
        lambda: lint(BOTH[:, 0], heads=2, padding=LENGTHS, causal=True),
        lambda: lint(BOTH, heads=2, padding=LENGTHS, causal=True),
    ),
    "batch on heads, nothing stated": Plant(
        "batch-on-heads",
        None,
        lambda: lint(BOTH[:, 0], batch=2, heads=2),
        lambda: lint(BOTH[:, 0], batch=2, heads=2, axes="hqk"),
    ),
    "batch where heads should be": Plant(
        "batch-on-heads",
        (0, 1, 0, 3),
        lambda: lint(KEYS.swapaxes(0, 1), padding=LENGTHS),
        lambda: lint(KEYS.swapaxes(0, 1), batch=2, heads=2),
    ),
    "batch on queries": Plant(
        "batch-on-queries",
        (0, 0, 1, 2),
        lambda: lint(SORTED, padding=[2, 4, 1, 3]),
        lambda: lint(SORTED[:, None, None], padding=[2, 4, 1, 3], q_len=4),
    ),
    "batch on queries, nothing stated": Plant(
        "batch-on-queries",
        None,
        lambda: lint(SORTED, batch=4),
        lambda: lint(np.ones((4, 4), bool), batch=4),
    ),
    "padding on queries": Plant(
        "padding-on-queries",
        (0, 0, 0, 3),
        lambda: lint(REAL[:, None, :, None], padding=LENGTHS, kv_len=6),
        lambda: lint(REAL[:, None, None, :], padding=LENGTHS, q_len=6),
    ),
    "padding on queries, nothing stated": Plant(
        "padding-on-queries",
        (0, 0, 0, 0),
        lambda: lint(REAL[:, None, :, None]),
        lambda: lint(REAL[:, None, None, :]),
    ),
    "batch rows meet heads": Plant(
        "does-not-broadcast",
        None,
        lambda: lint(BOTH[:, 0], batch=2, heads=4),
        lambda: lint(BOTH, batch=2, heads=4),
    ),
    "batch rows meet queries": Plant(
        "does-not-broadcast",
        None,
        lambda: lint(REAL, batch=2, q_len=6),
        lambda: lint(REAL, batch=2, q_len=6, axes="bk"),
    ),
    "too few batch rows": Plant(
        "does-not-broadcast",
        None,
        lambda: lint(BOTH, batch=3),
        lambda: lint(BOTH, batch=2),
    ),
    "all pairs where True keeps": Plant(
        "does-not-broadcast",
        None,
        lambda: lint(np.tile(PAST, (8, 1, 1)), batch=2, heads=4),
        lambda: lint(np.tile(~PAST, (8, 1, 1)), batch=2, heads=4, to="drop", causal=True),
    ),
    "keys longer": Plant(
        "keys-mismatch",
        None,
        lambda: lint(np.zeros((6, 8), np.float32), kv_len=6),
        lambda: lint(np.zeros((6, 6), np.float32), kv_len=6),
    ),
    "keys shorter than the padding says": Plant(
        "keys-mismatch",
        None,
        lambda: lint(PAST[:5, :5], padding=REAL),
        lambda: lint(BOTH, padding=REAL),
    ),
    "queries longer": Plant(
        "queries-mismatch", None, lambda: lint(PAST, q_len=5), lambda: lint(PAST, q_len=6)
    ),
    "bound to other keys": Plant(
        "keys-mismatch",
        None,
        lambda: lint(mw.causal().on(6), kv_len=7),
        lambda: lint(mw.causal().on(6), kv_len=6, causal=True),
    ),
    "lengths beyond the keys": Plant(
        "does-not-fit",
        None,
        lambda: lint(np.ones((2, 1, 6, 6), bool), padding=[3, 9]),
        lambda: lint(KEYS, padding=[3, 6]),
    ),
    "a mask that does not fit": Plant(
        "does-not-fit",
        None,
        lambda: lint(mw.padding(keep=REAL), q_len=5, kv_len=5),
        lambda: lint(mw.padding(keep=REAL), q_len=6),
    ),
    "five axes": Plant("wrong-rank", None, lambda: lint(KEYS[None]), lambda: lint(KEYS)),
    "no axes": Plant("wrong-rank", None, lambda: lint(True), lambda: lint([True])),
    "other axes than said": Plant(
        "wrong-rank", None, lambda: lint(KEYS, axes="bk"), lambda: lint(KEYS, axes="bhqk")
    ),
    "triu for tril": Plant(
        "queries-and-keys-swapped",
        (0, 0, 0, 1),
        lambda: lint(torch.ones(6, 6).triu().bool(), causal=True),
        lambda: lint(torch.ones(6, 6).tril().bool(), causal=True),
    ),
    # devices
    "two devices": Plant(
        "wrong-device",
        None,
        lambda: lint(torch.ones(6, 6, device="meta"), device="cpu"),
        lambda: lint(torch.from_numpy(PAST), device=torch.device("cpu")),
    ),
    "another number": Plant(
        "wrong-device",
        None,
        lambda: lint(torch.from_numpy(PAST), device="cuda:1"),
        lambda: lint(torch.from_numpy(PAST), device="cpu:0"),
    ),
    "jax on another device": Plant(
        "wrong-device",
        None,
        lambda: lint(jnp.asarray(PAST), device="gpu"),
        lambda: lint(jnp.asarray(PAST), device=jnp.asarray(PAST).device),
    ),
    "no values": Plant(
        "no-values",
        None,
        lambda: lint(torch.ones(6, 6, device="meta")),
        lambda: lint(torch.ones(6, 6, dtype=torch.int64)),
    ),
    # values
    "0/1 floats": Plant(
        "zero-one-added",
        None,
        lambda: lint(PAST.astype(np.float32), causal=True),
        lambda: lint(PAST.astype(np.float32), causal=True, to="keep"),
    ),
    "truth values added": Plant(
        "zero-one-added", None, lambda: lint(PAST, to="additive"), lambda: lint(PAST, to="keep")
    ),
    "0/1 bytes added": Plant(
        "zero-one-added",
        None,
        lambda: lint(PAST.astype(np.uint8), to="additive"),
        lambda: lint(PAST.astype(np.uint8)),
    ),
    "added numbers read as truth": Plant(
        "wrong-form",
        None,
        lambda: lint(added(PAST, -INF), to="keep"),
        lambda: lint(added(PAST, -INF), to="additive"),
    ),
    "~ of bytes": Plant(
        "integer-wrapped",
        (0, 0, 0, 1),
        lambda: lint(~PAST.astype(np.uint8), to="drop", causal=True),
        lambda: lint(~PAST, to="drop"),
    ),
    "~ of integers": Plant(
        "integer-wrapped",
        (0, 0, 0, 1),
        lambda: lint(~PAST.astype(np.int64), to="drop", causal=True),
        lambda: lint(1 - PAST.astype(np.int64), to="drop"),
    ),
    "- of bytes": Plant(
        "integer-wrapped",
        (0, 0, 0, 0),
        lambda: lint(-PAST.astype(np.uint8)),
        lambda: lint(PAST.astype(np.uint8)),
    ),
    "whole numbers added": Plant(
        "integer-bias",
        None,
        lambda: lint((1 - PAST.astype(int)) * -10_000, causal=True),
        lambda: lint((1 - PAST.astype(np.float32)) * -10_000, causal=True),
    ),
    "segments for a mask": Plant(
        "odd-values",
        (0, 0, 0, 4),
        lambda: lint([[0, 0, 1, 1, 2, 2]]),
        lambda: lint([[0, 0, 1, 1, 1, 1]]),
    ),
    "NaN": Plant(
        "nan-value",
        (0, 0, 0, 0),
        lambda: lint(np.where(PAST, np.nan, -INF), causal=True),
        lambda: lint(np.where(PAST, 0, -INF), causal=True),
    ),
    "plus infinity": Plant(
        "positive-value",
        (0, 0, 0, 1),
        lambda: lint(added(PAST, INF), causal=True),
        lambda: lint(added(PAST, -INF), causal=True),
    ),
    "a sign lost": Plant(
        "positive-value",
        (0, 0, 0, 1),
        lambda: lint(added(PAST, 1e9), causal=True),
        lambda: lint(added(PAST, -1e9), causal=True),
    ),
    "a small sign lost": Plant(
        "positive-value",
        (0, 0, 0, 1),
        lambda: lint(added(PAST, 2.0)),
        lambda: lint(np.linspace(-2, 2, 36).reshape(6, 6)),  # a learned bias
    ),
    "fill of -1": Plant(
        "fill-too-weak",
        (0, 0, 0, 1),
        lambda: lint(added(PAST, -1), causal=True),
        lambda: lint(added(PAST, -1000), causal=True),
    ),
    "fill of -100": Plant(
        "fill-too-weak",
        (0, 0, 0, 1),
        lambda: lint(torch.from_numpy(added(PAST, -100)).bfloat16()),
        lambda: lint(torch.from_numpy(added(PAST, -1e4)).bfloat16()),
    ),
    "two masks summed": Plant(
        "summed-fills",
        (0, 0, 0, 3),
        lambda: lint(added(PAST, -1e9) + added(KEYS, -1e9), causal=True, padding=LENGTHS),
        lambda: lint(added(BOTH, -1e9), causal=True, padding=LENGTHS),
    ),
    "two masks of the lowest number summed": Plant(
        "summed-fills",
        (0, 0, 0, 3),
        lambda: lint(added(BOTH, LOWEST) + added(PAST | KEYS, -INF), causal=True),
        lambda: lint(added(BOTH, LOWEST), causal=True),
    ),
    "-1e9 in half precision": Plant(
        "fill-overflows",
        (0, 0, 0, 1),
        lambda: lint(added(PAST, -1e9), dtype="float16"),
        lambda: lint(added(PAST, -1e9), dtype="bfloat16"),
    ),
    "-1e8 in half precision": Plant(
        "fill-overflows",
        (0, 0, 0, 1),
        lambda: lint(added(PAST, -1e8), dtype=torch.half),
        lambda: lint(added(PAST, -1e4), dtype=torch.half),
    ),
    "the lowest float32 in bfloat16": Plant(
        "fill-overflows",
        (0, 0, 0, 1),
        lambda: lint(added(PAST, LOWEST), dtype=jnp.bfloat16),
        lambda: lint(added(PAST, LOWEST), dtype=np.float32),
    ),
    "the lowest float32 in an empty row": Plant(
        "fill-at-limit",
        (0, 0, 0, 0),
        lambda: lint(added(EMPTY, LOWEST)),
        lambda: lint(added(PAST, LOWEST)),
    ),
    "the lowest float16 in an empty row": Plant(
        "fill-at-limit",
        (0, 0, 0, 0),
        lambda: lint(added(EMPTY, -65504, np.float16)),
        lambda: lint(added(PAST, -65504, np.float16)),
    ),
    "the lowest float16 in a row of padding": Plant(
        "fill-at-limit",
        (0, 0, 0, 0),
        lambda: lint(added(EMPTY, -65504, np.float16), causal=True, padding=[[0, 1, 1, 1, 1, 1]]),
        lambda: lint(added(EMPTY, LOWEST), causal=True, padding=[[0, 1, 1, 1, 1, 1]]),
    ),
    # cells
    "an empty row": Plant("empty-row", (0, 0, 0, 0), lambda: lint(EMPTY), lambda: lint(PAST)),
    "an empty sequence": Plant(
        "empty-row",
        (1, 0, 0, 0),
        lambda: lint(mw.padding(lengths=[3, 0]), q_len=4),
        lambda: lint(mw.padding(lengths=[3, 1]), q_len=4),
    ),
    "left padding filled with -inf": Plant(
        "empty-row",
        (0, 0, 0, 0),
        lambda: lint(added(PAST & ~REAL[:1], -INF), causal=True, padding=~REAL[:1]),
        lambda: lint(added(PAST & ~REAL[:1], -1e9), causal=True, padding=~REAL[:1]),
    ),
    "a future cell": Plant(
        "future-visible",
        (0, 0, 0, 1),
        lambda: lint(np.ones((6, 6), bool), causal=True),
        lambda: lint(PAST, causal=True),
    ),
    "a triangle one too wide": Plant(
        "future-visible",
        (0, 0, 0, 1),
        lambda: lint(np.tril(np.ones((6, 6), bool), 1), causal=True),
        lambda: lint(np.tril(np.ones((6, 6), bool), 0), causal=True),
    ),
    "additive times tril": Plant(
        "future-visible",
        (0, 0, 0, 1),
        lambda: lint(added(PAST, LOWEST) * PAST, causal=True),
        lambda: lint(added(PAST, LOWEST), causal=True),
    ),
    "upper left with a cache": Plant(
        "aligned-upper-left",
        (0, 0, 0, 4),
        lambda: lint(torch.ones(2, 6).tril().bool(), causal=True),
        lambda: lint(torch.ones(2, 6).tril(4).bool(), causal=True),
    ),
    "lower right where it should be upper left": Plant(
        "aligned-lower-right",
        (0, 0, 0, 1),
        lambda: lint(torch.ones(2, 6).tril(4).bool(), causal=True, q_start=0),
        lambda: lint(torch.ones(2, 6).tril().bool(), causal=True, q_start=0),
    ),
    "one decoding step, upper left": Plant(
        "aligned-upper-left",
        (0, 0, 0, 5),
        lambda: lint([[1, 0, 0, 0, 0, 0]], causal=True),
        lambda: lint([[1, 1, 1, 1, 1, 1]], causal=True),
    ),
    "no diagonal": Plant(
        "own-position-hidden",
        (0, 0, 0, 0),
        lambda: lint(np.tril(PAST, -1), causal=True),
        lambda: lint(PAST, causal=True),
    ),
    "no diagonal, nothing stated": Plant(
        "own-position-hidden",
        (0, 0, 0, 0),
        lambda: lint(np.triu(np.ones((6, 6), bool)), to="drop"),
        lambda: lint(np.triu(np.ones((6, 6), bool), 1), to="drop"),
    ),
    "padding forgotten": Plant(
        "padding-visible",
        (0, 0, 0, 3),
        lambda: lint(np.ones((6, 6), bool), padding=LENGTHS),
        lambda: lint(KEYS, padding=LENGTHS),
    ),
    "padding forgotten in a decoder": Plant(
        "padding-visible",
        (0, 0, 3, 3),
        lambda: lint(PAST, padding=LENGTHS, causal=True),
        lambda: lint(BOTH, padding=LENGTHS, causal=True),
    ),
    "one token of padding forgotten in a decoder": Plant(
        "padding-visible",
        (0, 0, 5, 5),
        lambda: lint(mw.causal(), q_len=6, padding=[5, 6], causal=True),
        lambda: lint(mw.causal() & mw.padding(lengths=[5, 6]), q_len=6, padding=[5, 6], causal=True),
    ),
    "source padding forgotten": Plant(
        "padding-visible",
        (0, 0, 0, 3),
        lambda: lint(np.ones((2, 1, 4, 6), bool), padding=REAL),
        lambda: lint(KEYS[:, :, :4], padding=REAL),
    ),
    "a token too many hidden": Plant(
        "real-key-hidden",
        (0, 0, 2, 2),
        lambda: lint(mw.causal() & mw.padding(lengths=[2, 6]), padding=REAL, causal=True),
        lambda: lint(mw.causal() & mw.padding(lengths=[3, 6]), padding=REAL, causal=True),
    ),
    "documents forgotten": Plant(
        "documents-leak",
        (0, 0, 3, 0),
        lambda: lint(PAST, causal=True, documents=[[3, 3]]),
        lambda: lint(PACKED, causal=True, documents=[[3, 3]]),
    ),
    "documents by token": Plant(
        "documents-leak",
        (0, 0, 3, 0),
        lambda: lint(PAST, documents=[0, 0, 0, 1, 1, 1]),
        lambda: lint(PACKED, documents=[0, 0, 0, 1, 1, 1]),
    ),
    "padding of a packed row": Plant(
        "documents-leak",
        (0, 0, 3, 0),
        lambda: lint(PAST, documents=mw.documents(lengths=[[3, 2]])),
        lambda: lint(PACKED, documents=mw.documents(lengths=[[3, 2]])),
    ),
    "window of W + 1": Plant(
        "window-off-by-one",
        (0, 0, 3, 0),
        lambda: lint(mw.window(back=3), q_len=9, window=3),
        lambda: lint(mw.window(back=2), q_len=9, window=3),
    ),
    "window of W - 1": Plant(
        "window-off-by-one",
        (0, 0, 2, 0),
        lambda: lint(mw.window(back=1), q_len=9, window=3),
        lambda: lint(mw.window(back=2) & mw.padding(lengths=[8, 9]), q_len=9, window=3),
    ),
    "window one too far ahead": Plant(
        "window-off-by-one",
        (0, 0, 0, 3),
        lambda: lint(mw.window(1, 3).on(9).dense(), window=(1, 2)),
        lambda: lint(mw.window(1, 2).on(9).dense(), window=(1, 2)),
    ),
    "window not ahead": Plant(
        "window-off-by-one",
        (0, 0, 0, 1),
        lambda: lint(mw.window(1, 0), q_len=9, window=(1, 1)),
        lambda: lint(mw.window(1, 1), q_len=9, window=(1, 1)),
    ),
    "one decoding step": Plant(
        "window-off-by-one",
        (0, 0, 0, 5),
        lambda: lint(mw.window(back=4).step(9), window=4),
        lambda: lint(mw.window(back=3).step(9), window=4),
    ),
    "no window": Plant(
        "window-missing",
        (0, 0, 3, 0),
        lambda: lint(mw.causal(), q_len=9, window=3),
        lambda: lint(mw.causal(), q_len=9, window=(-1, 0)),
    ),
    "far too wide": Plant(
        "window-too-wide",
        (0, 0, 3, 0),
        lambda: lint(mw.window(5), q_len=9, window=3),
        lambda: lint(mw.window(5), q_len=9, window=6),
    ),
    "far too narrow": Plant(
        "window-too-narrow",
        (0, 0, 2, 0),
        lambda: lint(mw.window(1), q_len=9, window=6),
        lambda: lint(mw.window(1) & mw.documents(lengths=[[2] * 4 + [1]]), q_len=9, window=6),
    ),
    "another mask": Plant(
        "differs",
        (0, 0, 3, 0),
        lambda: lint(PAST, expects=mw.window(back=2)),
        lambda: lint(PAST, expects=mw.window(back=None)),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_fault_is_found(name: str) -> None:
    plant = PLANTS[name]
    report = plant.bad()
    assert plant.code in report.codes, report
    found = report[report.codes.index(plant.code)]
    assert found.cell == plant.cell, report
    for finding in report:  # one sentence says what is wrong, another one what to do
        for sentence in (finding.message, finding.fix):
            assert sentence.endswith(".")
            assert ". " not in sentence


@pytest.mark.parametrize("name", PLANTS)
def test_its_healthy_twin_gives_no_finding(name: str) -> None:
    assert PLANTS[name].good().ok, PLANTS[name].good()


def test_every_code_is_planted() -> None:
    assert {plant.code for plant in PLANTS.values()} == set(CODES)


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
def test_one_mistake_is_reported_once(code: str) -> None:
    for plant in PLANTS.values():
        if plant.code == code:
            assert plant.bad().codes == (code,)


# ── masks made by hand, in every convention ───────────────────────────────────────────────────────


class Made(NamedTuple):
    """A mask made by plain numpy, and what is stated about it."""

    keep: np.ndarray  # (batch, 1, queries, keys)
    facts: dict[str, Any]
    real: np.ndarray  # (batch, queries): what is no padding


@st.composite
def made(draw: st.DrawFn) -> Made:
    size, batch = draw(st.integers(2, 12)), draw(st.integers(1, 3))
    q, k = np.arange(size)[:, None], np.arange(size)[None]
    keep = np.ones((batch, size, size), bool)
    real = np.ones((batch, size), bool)
    facts: dict[str, Any] = {}
    kind = draw(st.sampled_from(["padding", "documents", "neither"]))
    if kind == "padding":
        length = draw(st.lists(st.integers(1, size), min_size=batch, max_size=batch))
        left = draw(st.booleans())
        place = size - 1 - np.arange(size) if left else np.arange(size)
        real = place < np.array(length)[:, None]
        keep &= real[:, None]
        facts["padding"] = real if left else length
    if kind == "documents":
        cuts = draw(st.lists(st.booleans(), min_size=size, max_size=size))
        ids = np.broadcast_to(np.cumsum(cuts), (batch, size))
        keep &= ids[:, :, None] == ids[:, None]
        facts["documents"] = ids
    if kind == "neither" or draw(st.booleans()):
        keep &= k <= q
        facts["causal"] = True
        if draw(st.booleans()):
            facts["window"] = draw(st.integers(1, size))
            keep &= q - k < facts["window"]
    return Made(keep[:, None], facts, real)


FORMS: dict[str, tuple[Callable[[np.ndarray], Any], dict[str, Any]]] = {
    "bool": (lambda keep: keep, {}),
    "torch": (torch.tensor, {"device": "cpu"}),
    "jax": (jnp.asarray, {}),
    "0/1": (lambda keep: keep.astype(np.int64), {}),
    "0/1 floats": (lambda keep: keep.astype(np.float32), {"to": "keep"}),
    "drop": (lambda keep: torch.tensor(~keep), {"to": "drop"}),
    "-inf": (lambda keep: added(keep, -INF), {"dtype": "float16"}),
    "-1e9": (lambda keep: added(keep, -1e9), {"to": "additive", "dtype": "float32"}),
    "lowest": (lambda keep: added(keep, LOWEST), {}),
    "half": (lambda keep: torch.tensor(added(keep, -1e4)).half(), {"dtype": torch.float16}),
    "bfloat16": (lambda keep: torch.tensor(added(keep, -1e9)).bfloat16(), {}),
}
FINITE = {"-1e9", "lowest", "half", "bfloat16"}


@given(made(), st.sampled_from([*FORMS]))
def test_a_right_mask_gives_no_finding_in_any_convention(mask: Made, form: str) -> None:
    build, how = FORMS[form]
    empty = ~mask.keep.any(axis=-1)[:, 0]
    if form in FINITE:  # a padded query's row stays finite, and is nobody's business
        empty = empty & mask.real
    report = lint(build(mask.keep), **mask.facts, **how)
    at_limit = ("fill-at-limit",) if form == "lowest" else ()
    assert report.codes == (("empty-row", *at_limit) if empty.any() else ()), report


@given(made(), st.sampled_from([*FORMS]))
def test_turned_over_it_is_inverted(mask: Made, form: str) -> None:
    build, how = FORMS[form]
    report = lint(build(~mask.keep), **mask.facts, **how)
    assert "inverted" in report.codes, report


@given(made(), st.data())
def test_one_cell_too_many_is_found(mask: Made, data: st.DataObject) -> None:
    """A cell of a real query that the mask hides is opened, and the statement it breaks is named."""
    b, _, q, k = np.nonzero(~mask.keep & mask.real[:, None, :, None])
    if not b.size:
        return
    at = data.draw(st.integers(0, b.size - 1))
    cell = (int(b[at]), 0, int(q[at]), int(k[at]))
    keep = mask.keep.copy()
    keep[cell] = True
    report = lint(keep, **mask.facts)
    ids = mask.facts.get("documents")
    broken = {
        "future-visible": "causal" in mask.facts and cell[3] > cell[2],
        "padding-visible": not mask.real[cell[0], cell[3]],
        "documents-leak": ids is not None and ids[cell[0], cell[2]] != ids[cell[0], cell[3]],
    }
    for code, expected in broken.items():
        assert (code in report.codes) == expected, report
        if expected:
            assert report[report.codes.index(code)].cell == cell
    if not any(broken.values()):
        assert any(code.startswith("window") for code in report.codes), report


@given(made(), st.data())
def test_a_key_too_many_is_hidden(mask: Made, data: st.DataObject) -> None:
    """A column of a real token is hidden."""
    if not {"padding", "documents"} & set(mask.facts):
        return
    b, k = np.nonzero(mask.real)
    at = data.draw(st.integers(0, b.size - 1))
    keep = mask.keep.copy()
    keep[b[at], :, :, k[at]] = False
    report = lint(keep, **mask.facts)
    assert "real-key-hidden" in report.codes, report
    assert report[report.codes.index("real-key-hidden")].cell == (b[at], 0, k[at], k[at])


@given(st.integers(4, 40), st.data())
def test_a_window_off_by_one_is_told_either_way(size: int, data: st.DataObject) -> None:
    wide = data.draw(st.integers(2, size - 2))
    q, k = np.arange(size)[:, None], np.arange(size)[None]
    for count, code in ((wide - 1, "off-by-one"), (wide, ""), (wide + 1, "off-by-one")):
        report = lint((k <= q) & (q - k < count), window=wide)
        assert report.codes == ((f"window-{code}",) if code else ()), report
    assert f"{wide + 1} keys" in report[0].message


VALUES = st.sampled_from([0, 1, -1, 2, -1e4, -1e9, INF, -INF, np.nan, LOWEST, 255, 254, 0.5])
DTYPES = ["bool", "int8", "uint8", "int64", "uint64", "float16", "float32", "float64"]


@given(
    st.lists(st.integers(0, 4), max_size=5),
    st.lists(VALUES, min_size=1, max_size=3),
    st.sampled_from(DTYPES),
    st.sampled_from([None, "keep", "drop", "additive"]),
    st.sampled_from([{}, {"causal": True}, {"padding": [2, 3]}, {"window": 2}, {"window": (0, 1)},
                     {"documents": [[1, 1]]}, {"expects": mw.causal()}, {"q_len": 3, "kv_len": 4},
                     {"batch": 2, "heads": 2}, {"q_start": -3, "causal": True}]),
)  # fmt: skip
def test_no_array_raises(
    shape: list[int], values: list[float], dtype: str, to: str | None, facts: dict[str, Any]
) -> None:
    with np.errstate(all="ignore"):
        array = np.resize(np.array(values), shape).astype(dtype)
    report = lint(array, to=to, dtype="float16", **facts)
    assert set(report.codes) <= set(CODES)
    json.dumps(report.as_dict())


# ── the report, the arguments ─────────────────────────────────────────────────────────────────────


def test_the_report_is_a_sequence_that_prints_a_line_a_finding() -> None:
    report = lint(np.ones((4, 4), bool), causal=True, documents=[[2, 2]])
    assert report.codes == ("future-visible", "documents-leak")
    assert [finding.code for finding in report] == list(report.codes)
    assert len(report) == 2
    assert not report.ok
    assert str(report).splitlines() == [str(finding) for finding in report]
    assert report[1].cell == (0, 0, 0, 2)
    assert "query in document 0, key in document 1" in report[1].message
    assert str(lint(mw.causal(), q_len=3)) == "no findings"


def test_a_report_is_neither_true_nor_false() -> None:
    with pytest.raises(mw.TruthError, match=r"report\.ok"):
        bool(lint(mw.causal(), q_len=3))


def test_findings_are_values() -> None:
    one, other = (lint(np.ones((2, 2), bool), causal=True) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    with pytest.raises(AttributeError):
        one[0].code = "other"  # type: ignore[misc]
    assert one.as_dict()["findings"][0] == {
        "code": "future-visible",
        "message": "Query 0 may see key 1, which comes later.",
        "fix": "Combine the mask with causal().",
        "cell": {"batch": 0, "head": 0, "query": 0, "key": 1},
    }
    assert Finding("differs", "a.", "b.").as_dict()["cell"] is None


def test_two_mistakes_are_both_found() -> None:
    """A value that can't be meant does not hide what is wrong with the cells."""
    report = lint(np.ones((6, 6), np.float32), causal=True, device="cuda")
    assert report.codes == ("wrong-device", "zero-one-added", "future-visible")


def test_a_message_names_batch_row_and_head_where_there_are_several() -> None:
    report = lint(BOTH | (np.arange(2) > 0)[:, None, None, None], heads=3, causal=True)
    assert report[0].cell == (1, 0, 0, 1)
    assert "Query 0 (batch row 1, head 0) may see key 1" in report[0].message


def test_the_masks_of_a_library_are_healthy() -> None:
    """What nn.Transformer and FlexAttention-style predicates make passes."""
    square = torch.nn.Transformer.generate_square_subsequent_mask(6)
    assert lint(square, to="drop", causal=True, dtype=torch.float32).ok
    assert lint(mw.where(lambda b, h, q, k: q >= k), q_len=6, causal=True).ok


def test_a_padded_row_may_be_opened_against_nan() -> None:
    """With left padding some open the rows of padding wholly, or at the query's own position."""
    left = ~REAL[:1]
    keep = PAST & left
    opened = np.where(keep.any(axis=1, keepdims=True), keep, True)
    assert lint(opened, causal=True, padding=left).ok
    assert lint(keep | np.eye(6, dtype=bool), causal=True, padding=left).ok
    opened[4, 0] = True  # a real query's row is judged as ever
    assert lint(opened, causal=True, padding=left).codes == ("padding-visible",)


def test_a_square_for_as_many_sequences_as_tokens_is_no_mistake() -> None:
    square = np.tril(np.ones((4, 4), bool))
    for keep in (square, square & (np.arange(4) != 1), mw.window(1, 1).on(4).dense()[0, 0]):
        assert lint(keep, batch=4).ok
    assert lint(np.zeros((4, 4), bool), batch=4).codes == ("empty-row",)


def test_a_mask_without_cells_has_no_findings() -> None:
    assert lint(np.zeros((0, 0), bool), causal=True).ok
    assert lint(np.zeros((2, 1, 4, 0), np.float32), padding=[0, 0]).ok
    assert lint(mw.causal(), q_len=0, causal=True).ok
    assert lint([[True]]).ok


def test_a_bias_is_no_mistake() -> None:
    """Distances added to scores, as ALiBi has them, are read as visible."""
    distance = np.arange(6)[None] - np.arange(6)[:, None]
    bias = np.where(PAST, 0.5 * distance, -INF)
    assert lint(bias, causal=True, dtype="float32").ok
    assert lint(bias, expects=mw.causal()).ok
    assert lint(np.where(PAST, 0.5 * distance, 0), causal=True).codes == ("future-visible",)


def test_a_large_array_is_read_in_a_few_passes() -> None:
    keep = np.tril(np.ones((4096, 4096), bool))
    assert lint(keep, causal=True, window=(-1, 0), padding=[4096]).ok
    keep[17, 4000] = True
    assert lint(keep, causal=True).codes == ("future-visible",)
    assert lint(keep, causal=True)[0].cell == (0, 0, 17, 4000)


def test_a_mask_of_a_million_queries_is_never_made_dense() -> None:
    mask = mw.window(back=511) & mw.documents(lengths=[[400_000, 600_000]])
    assert lint(mask, q_len=1_000_000, window=512, documents=[[400_000, 600_000]]).ok
    report = lint(mw.window(back=511), q_len=1_000_000, documents=[[400_000, 600_000]])
    assert report[0].cell == (0, 0, 400_000, 399_489)


def test_queries_of_other_tokens_than_the_keys() -> None:
    """Data about keys may not reach to the queries; it is used as far as it does."""
    one = REAL[:1]
    report = lint(np.ones((4, 6), bool), padding=one, causal=True, q_start=0)
    assert report.codes == ("future-visible", "padding-visible")
    report = lint(np.ones((6, 4), bool), causal=True, documents=[[0, 0, 1, 1]])
    assert report.codes == ("does-not-fit",)
    last = mw.queries([[0, 0, 0, 0, 1, 1]])  # fits queries that end at the last key only
    report = lint(PAST[:4], causal=True, expects=mw.causal() & last)
    assert report.codes == ("own-position-hidden", "differs")


def test_a_list_lies_on_no_device() -> None:
    assert lint([[1, 0], [1, 1]], device="cuda").ok


def test_sizes_come_from_the_data_where_it_tells() -> None:
    assert lint(mw.dense(PAST), causal=True).ok
    assert lint(mw.padding(keep=REAL)).ok
    assert lint(mw.documents(ids=[[0, 0, 1]])).ok
    assert lint(mw.everything(), padding=REAL).codes == ("padding-visible",)


BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "no size": (lambda: lint(mw.causal()), "Pass q_len"),
    "no mask": (lambda: lint("causal"), "of type str"),
    "None": (lambda: lint(None), "None"),
    "ragged": (lambda: lint([[1], [1, 0]]), "ragged"),
    "unknown consumer": (lambda: lint(PAST, to="sdpa"), "'keep' or 'drop' or 'additive'"),
    "unknown axes": (lambda: lint(PAST, axes="kq"), "'bqk'"),
    "axes of a mask": (lambda: lint(mw.causal(), q_len=3, axes="qk"), "Leave it out"),
    "negative size": (lambda: lint(PAST, q_len=-1), "q_len=-1 is less than 0"),
    "q_start of text": (lambda: lint(PAST, q_start="0"), "of type str"),
    "unknown dtype": (lambda: lint(PAST, dtype="float17"), "'float17'"),
    "dtype of integers": (lambda: lint(PAST, dtype=torch.int64), "'int64'"),
    "no dtype": (lambda: lint(PAST, dtype=3), "lint: dtype is"),
    "no device": (lambda: lint(PAST, device=3), "such as 'cuda:0'"),
    "causal of 1": (lambda: lint(PAST, causal=1), "True or False"),
    "window of 0": (lambda: lint(PAST, window=0), "less than 1"),
    "window of three": (lambda: lint(PAST, window=(1, 2, 3)), "has 3 numbers"),
    "window of -2": (lambda: lint(PAST, window=(-2, 0)), "less than 0"),
    "expects an array": (lambda: lint(PAST, expects=PAST), "Give a mask"),
    "padding of floats": (lambda: lint(PAST, padding=REAL * 1.0), "dtype float64"),
    "documents of text": (lambda: lint(PAST, documents="ab"), "of type str"),
}


@pytest.mark.parametrize("name", BAD)
def test_unusable_arguments_are_refused_in_one_sentence_and_a_fix(name: str) -> None:
    call, words = BAD[name]
    with pytest.raises(mw.ArgumentError) as caught:
        call()
    assert words in str(caught.value)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize("to", ["torch.mha", "torch.transformer"])
def test_a_target_names_its_own_polarity(to: str) -> None:
    drops = np.triu(np.ones((4, 4), bool), 1)
    assert mw.lint(drops, to=to, causal=True).ok
    assert mw.lint(~drops, to=to, causal=True).codes == ("inverted",)
    assert mw.lint(~drops, to="torch.sdpa", causal=True).ok
    assert mw.lint(np.where(drops, -np.inf, 0), to="torch.additive", causal=True).ok
    with pytest.raises(mw.ArgumentError, match=r"flash\.varlen takes no array of cells"):
        mw.lint(drops, to="flash.varlen")


@pytest.mark.parametrize("to", ["torch.sdpa", "hf", "torch.mha"])
def test_what_takes_floats_too_is_given_them_without_a_finding(to: str) -> None:
    bias = np.where(np.tri(4, dtype=bool), 0.0, -np.inf)
    assert mw.lint(bias, to=to, causal=True).ok


def test_a_row_that_sees_nothing_is_fine_where_the_target_gives_zero() -> None:
    keep = (mw.causal() & mw.padding(keep=[[0, 1, 1, 1]])).on(4).dense()
    assert mw.lint(keep, to="torch.sdpa", causal=True).ok
    assert mw.lint(keep, to="keep", causal=True).codes == ("empty-row",)
    finite = np.where(keep, 0.0, -1e9)  # there SDPA spreads the row over all keys
    assert "empty-row" in mw.lint(finite, to="torch.sdpa", causal=True).codes


def test_three_axes_are_batch_queries_and_keys_to_keras() -> None:
    keep = (mw.causal() & mw.padding(lengths=[3, 6])).on(6).dense()[:, 0]
    assert mw.lint(keep, to="keras", batch=2, heads=2, causal=True).ok


def test_what_holds_no_values_is_refused() -> None:
    from torch.nn.attention.bias import causal_lower_right

    bias = causal_lower_right(2, 6)
    with pytest.raises(mw.ArgumentError, match="holds no values"):
        mw.recognize(bias)
    with pytest.raises(mw.ArgumentError, match="where it has no values"):
        mw.recognize(torch.ones(4, 4, device="meta"))
    with pytest.raises(mw.ArgumentError, match="lint: to is of type list"):
        mw.lint([[1, 0], [1, 1]], to=[])
