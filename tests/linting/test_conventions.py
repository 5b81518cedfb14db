"""Random masks in every convention: correct ones have no findings, wrong ones the right code."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

import jax.numpy as jnp
import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

import maskwright as mw
from maskwright import lint
from maskwright.linting.codes import CODES
from tests._helpers.lint_masks import (
    INF,
    LOWEST,
    added,
)

if TYPE_CHECKING:
    from collections.abc import Callable


class Sample(NamedTuple):
    """A mask built with numpy, and its stated properties."""

    keep: np.ndarray  # (batch, 1, queries, keys)
    stated: dict[str, Any]
    real: np.ndarray  # (batch, queries): not padding


@st.composite
def samples(draw: st.DrawFn) -> Sample:
    size, batch = draw(st.integers(2, 12)), draw(st.integers(1, 3))
    q, k = np.arange(size)[:, None], np.arange(size)[None]
    keep = np.ones((batch, size, size), bool)
    real = np.ones((batch, size), bool)
    stated: dict[str, Any] = {}
    kind = draw(st.sampled_from(["padding", "documents", "neither"]))
    if kind == "padding":
        length = draw(st.lists(st.integers(1, size), min_size=batch, max_size=batch))
        left = draw(st.booleans())
        place = size - 1 - np.arange(size) if left else np.arange(size)
        real = place < np.array(length)[:, None]
        keep &= real[:, None]
        stated["padding"] = real if left else length
    if kind == "documents":
        cuts = draw(st.lists(st.booleans(), min_size=size, max_size=size))
        ids = np.broadcast_to(np.cumsum(cuts), (batch, size))
        keep &= ids[:, :, None] == ids[:, None]
        stated["documents"] = ids
    if kind == "neither" or draw(st.booleans()):
        keep &= k <= q
        stated["causal"] = True
        if draw(st.booleans()):
            stated["window"] = draw(st.integers(1, size))
            keep &= q - k < stated["window"]
    return Sample(keep[:, None], stated, real)


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


@given(samples(), st.sampled_from([*FORMS]))
def test_correct_mask_has_no_findings_in_any_convention(mask: Sample, form: str) -> None:
    build, how = FORMS[form]
    empty = ~mask.keep.any(axis=-1)[:, 0]
    if form in FINITE:  # the row of a padding query stays finite and is not reported
        empty = empty & mask.real
    report = lint(build(mask.keep), **mask.stated, **how)
    at_limit = ("fill-at-limit",) if form == "lowest" else ()
    assert report.codes == (("empty-row", *at_limit) if empty.any() else ()), report


@given(samples(), st.sampled_from([*FORMS]))
def test_complement_is_reported_as_inverted(mask: Sample, form: str) -> None:
    build, how = FORMS[form]
    report = lint(build(~mask.keep), **mask.stated, **how)
    assert "inverted" in report.codes, report


@given(samples(), st.data())
def test_one_visible_cell_too_many_is_reported(mask: Sample, data: st.DataObject) -> None:
    """One masked cell of a real query is made visible; the property that this violates is named."""
    b, _, q, k = np.nonzero(~mask.keep & mask.real[:, None, :, None])
    if not b.size:
        return
    at = data.draw(st.integers(0, b.size - 1))
    cell = (int(b[at]), 0, int(q[at]), int(k[at]))
    keep = mask.keep.copy()
    keep[cell] = True
    report = lint(keep, **mask.stated)
    ids = mask.stated.get("documents")
    broken = {
        "future-visible": "causal" in mask.stated and cell[3] > cell[2],
        "padding-visible": not mask.real[cell[0], cell[3]],
        "documents-leak": ids is not None and ids[cell[0], cell[2]] != ids[cell[0], cell[3]],
    }
    for code, expected in broken.items():
        assert (code in report.codes) == expected, report
        if expected:
            assert report[report.codes.index(code)].cell == cell
    if not any(broken.values()):
        assert any(code.startswith("window") for code in report.codes), report


@given(samples(), st.data())
def test_masked_token_is_reported(mask: Sample, data: st.DataObject) -> None:
    """The column of a real token is masked."""
    if not {"padding", "documents"} & set(mask.stated):
        return
    b, k = np.nonzero(mask.real)
    at = data.draw(st.integers(0, b.size - 1))
    keep = mask.keep.copy()
    keep[b[at], :, :, k[at]] = False
    report = lint(keep, **mask.stated)
    assert "real-key-hidden" in report.codes, report
    assert report[report.codes.index("real-key-hidden")].cell == (b[at], 0, k[at], k[at])


@given(st.integers(4, 40), st.data())
def test_window_off_by_one_is_reported_in_both_directions(size: int, data: st.DataObject) -> None:
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
    shape: list[int], values: list[float], dtype: str, to: str | None, stated: dict[str, Any]
) -> None:
    with np.errstate(all="ignore"):
        array = np.resize(np.array(values), shape).astype(dtype)
    report = lint(array, to=to, dtype="float16", **stated)
    assert set(report.codes) <= set(CODES)
    json.dumps(report.as_dict())
