"""The report, the arguments, and correct masks that look unusual."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import maskwright as mw
from maskwright import Finding, lint
from maskwright.linting.cells import CELL_CHECKS, CellInput
from maskwright.linting.codes import make_finding
from maskwright.messages import Reason
from tests._helpers.lint_masks import (
    BOTH,
    INF,
    PAST,
    REAL,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def test_report_is_sequence_that_prints_one_line_per_finding() -> None:
    report = lint(np.ones((4, 4), bool), causal=True, documents=[[2, 2]])
    assert report.codes == ("future-visible", "documents-leak")
    assert [finding.code for finding in report] == list(report.codes)
    assert len(report) == 2
    assert not report.ok
    assert str(report).splitlines() == [str(finding) for finding in report]
    assert report[1].cell == (0, 0, 0, 2)
    assert "query in document 0, key in document 1" in report[1].message
    assert str(lint(mw.causal(), q_len=3)) == "no findings"


def test_report_has_no_truth_value() -> None:
    with pytest.raises(mw.TruthError, match=r"report\.ok"):
        bool(lint(mw.causal(), q_len=3))


def test_findings_are_data() -> None:
    one, other = (lint(np.ones((2, 2), bool), causal=True) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    with pytest.raises(AttributeError):
        one[0].code = "other"  # type: ignore[misc]
    assert one.as_dict()["findings"][0] == {
        "code": "future-visible",
        "severity": "error",
        "message": "Query 0 attends to key 1, a later position.",
        "fix": "Combine the mask with causal().",
        "cell": {"batch": 0, "head": 0, "query": 0, "key": 1},
        "reason": {
            "code": "future-visible.message",
            "params": {
                "query": 0,
                "key": 1,
                "at": {"code": "lint.at_anywhere", "params": {"batch": 0, "head": 0}},
            },
        },
    }
    assert Finding("nan-value", Reason("nan-value.message")).as_dict()["cell"] is None
    assert pickle.loads(pickle.dumps(one)) == one


def test_check_is_registered_with_one_decorator(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(CELL_CHECKS, "entries", dict(CELL_CHECKS.entries))

    @CELL_CHECKS.register("differs")
    def check(given: CellInput) -> Iterator[Finding]:
        if given.spans.cells() > 10:
            yield make_finding("differs", message="toy.message", cells=given.spans.cells())

    [finding] = lint(np.ones((4, 4), bool), causal=False, padding=[4])
    assert (finding.code, finding.message) == ("differs", "toy.message (cells=16)")
    assert lint(PAST[:4, :4], causal=True).ok


def test_two_findings() -> None:
    """A problem of the values does not mask a problem of the cells."""
    report = lint(np.ones((6, 6), np.float32), causal=True, device="cuda")
    assert report.codes == ("wrong-device", "zero-one-added", "future-visible")


def test_message_names_batch_row_and_head_where_there_are_several() -> None:
    report = lint(BOTH | (np.arange(2) > 0)[:, None, None, None], heads=3, causal=True)
    assert report[0].cell == (1, 0, 0, 1)
    assert "Query 0 (batch row 1, head 0) attends to key 1" in report[0].message


def test_masks_of_other_libraries_have_no_findings() -> None:
    """Masks of nn.Transformer and FlexAttention-style predicates."""
    square = torch.nn.Transformer.generate_square_subsequent_mask(6)
    assert lint(square, to="drop", causal=True, dtype=torch.float32).ok
    assert lint(mw.where(lambda b, h, q, k: q >= k), q_len=6, causal=True).ok


def test_row_of_padding_query_may_be_visible_to_avoid_nan() -> None:
    """With left padding, all keys or the own position of a padding query may be visible."""
    left = ~REAL[:1]
    keep = PAST & left
    opened = np.where(keep.any(axis=1, keepdims=True), keep, True)
    assert lint(opened, causal=True, padding=left).ok
    assert lint(keep | np.eye(6, dtype=bool), causal=True, padding=left).ok
    opened[4, 0] = True  # the row of a real query is checked
    assert lint(opened, causal=True, padding=left).codes == ("padding-visible",)


def test_square_mask_with_batch_size_equal_to_q_len_has_no_findings() -> None:
    square = np.tril(np.ones((4, 4), bool))
    for keep in (square, square & (np.arange(4) != 1), mw.window(1, 1).on(4).dense()[0, 0]):
        assert lint(keep, batch=4).ok
    assert lint(np.zeros((4, 4), bool), batch=4).codes == ("empty-row",)


def test_mask_without_cells_has_no_findings() -> None:
    assert lint(np.zeros((0, 0), bool), causal=True).ok
    assert lint(np.zeros((2, 1, 4, 0), np.float32), padding=[0, 0]).ok
    assert lint(mw.causal(), q_len=0, causal=True).ok
    assert lint([[True]]).ok


def test_bias_has_no_findings() -> None:
    """Distances that are added to the scores, as in ALiBi, are visible."""
    distance = np.arange(6)[None] - np.arange(6)[:, None]
    bias = np.where(PAST, 0.5 * distance, -INF)
    assert lint(bias, causal=True, dtype="float32").ok
    assert lint(bias, expects=mw.causal()).ok
    assert lint(np.where(PAST, 0.5 * distance, 0), causal=True).codes == ("future-visible",)


def test_large_array() -> None:
    keep = np.tril(np.ones((4096, 4096), bool))
    assert lint(keep, causal=True, window=(-1, 0), padding=[4096]).ok
    keep[17, 4000] = True
    assert lint(keep, causal=True).codes == ("future-visible",)
    assert lint(keep, causal=True)[0].cell == (0, 0, 17, 4000)


def test_array_that_repeats_same_memory() -> None:
    """It has 2**38 cells, which could not be read one by one."""
    shape = (2**12, 2**12, 128, 128)
    causal = np.broadcast_to(np.tri(128, dtype=bool), shape)
    assert lint(causal, causal=True).codes == ()
    assert lint(causal, causal=True, to="drop").codes == ("inverted",)
    assert lint(causal, kv_len=7).codes == ("keys-mismatch",)
    assert lint(causal, batch=3).codes == ("does-not-broadcast",)
    fill = torch.zeros(128, 128).masked_fill(~torch.tril(torch.ones(128, 128)).bool(), -1e9)
    assert lint(fill.expand(shape), causal=True).codes == ()


def test_mask_of_million_queries_is_not_made_dense() -> None:
    mask = mw.window(back=511) & mw.documents(lengths=[[400_000, 600_000]])
    assert lint(mask, q_len=1_000_000, window=512, documents=[[400_000, 600_000]]).ok
    report = lint(mw.window(back=511), q_len=1_000_000, documents=[[400_000, 600_000]])
    assert report[0].cell == (0, 0, 400_000, 399_489)


def test_queries_that_are_not_tokens_of_keys() -> None:
    """Data about keys may not cover the queries; it is used where it does."""
    one = REAL[:1]
    report = lint(np.ones((4, 6), bool), padding=one, causal=True, q_start=0)
    assert report.codes == ("future-visible", "padding-visible")
    report = lint(np.ones((6, 4), bool), causal=True, documents=[[0, 0, 1, 1]])
    assert report.codes == ("does-not-fit",)
    last = mw.queries([[0, 0, 0, 0, 1, 1]])  # fits queries that end at the last key only
    report = lint(PAST[:4], causal=True, expects=mw.causal() & last)
    assert report.codes == ("own-position-hidden", "differs")


def test_list_has_no_device() -> None:
    assert lint([[1, 0], [1, 1]], device="cuda").ok


def test_sizes_are_inferred_from_data() -> None:
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
    "expects an array": (lambda: lint(PAST, expects=PAST), "Pass a mask"),
    "padding of floats": (lambda: lint(PAST, padding=REAL * 1.0), "dtype float64"),
    "documents of text": (lambda: lint(PAST, documents="ab"), "of type str"),
}


@pytest.mark.parametrize("name", BAD)
def test_invalid_arguments_raise_with_fix(name: str) -> None:
    call, words = BAD[name]
    with pytest.raises(mw.ArgumentError) as caught:
        call()
    assert words in str(caught.value)
    assert str(caught.value).endswith(".")


@pytest.mark.parametrize("to", ["torch.mha", "torch.transformer"])
def test_target_implies_convention(to: str) -> None:
    drops = np.triu(np.ones((4, 4), bool), 1)
    assert mw.lint(drops, to=to, causal=True).ok
    assert mw.lint(~drops, to=to, causal=True).codes == ("inverted",)
    assert mw.lint(~drops, to="torch.sdpa", causal=True).ok
    assert mw.lint(np.where(drops, -np.inf, 0), to="torch.additive", causal=True).ok
    with pytest.raises(mw.ArgumentError, match=r"flash\.varlen takes no array of cells"):
        mw.lint(drops, to="flash.varlen")


@pytest.mark.parametrize("to", ["torch.sdpa", "hf", "torch.mha"])
def test_additive_mask_for_target_that_adds_floats_has_no_findings(to: str) -> None:
    bias = np.where(np.tri(4, dtype=bool), 0.0, -np.inf)
    assert mw.lint(bias, to=to, causal=True).ok


def test_empty_row_has_no_finding_if_target_returns_zero() -> None:
    keep = (mw.causal() & mw.padding(keep=[[0, 1, 1, 1]])).on(4).dense()
    assert mw.lint(keep, to="torch.sdpa", causal=True).ok
    assert mw.lint(keep, to="keep", causal=True).codes == ("empty-row",)
    finite = np.where(keep, 0.0, -1e9)  # softmax is uniform over all keys
    assert "empty-row" in mw.lint(finite, to="torch.sdpa", causal=True).codes


def test_three_axes_are_batch_query_and_key_in_keras() -> None:
    keep = (mw.causal() & mw.padding(lengths=[3, 6])).on(6).dense()[:, 0]
    assert mw.lint(keep, to="keras", batch=2, heads=2, causal=True).ok


def test_masks_without_values_raise() -> None:
    from torch.nn.attention.bias import causal_lower_right

    bias = causal_lower_right(2, 6)
    with pytest.raises(mw.ArgumentError, match="holds no values"):
        mw.recognize(bias)
    with pytest.raises(mw.ArgumentError, match="where it has no values"):
        mw.recognize(torch.ones(4, 4, device="meta"))
    with pytest.raises(mw.ArgumentError, match="lint: to is of type list"):
        mw.lint([[1, 0], [1, 1]], to=[])
