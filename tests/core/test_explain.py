"""The explanations of `why`, one for each way a cell is decided."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import maskwright as mw
from maskwright.messages import LANGUAGES, messages
from tests._helpers.message_reasons import reasons
from tests._helpers.strategies import bind, cases

c = mw.causal()
bound = (c & mw.padding(lengths=[3])).on(4)
either = (mw.window(back=1) | mw.keys([0])).on(6)
nested = (c & (mw.chunks(2) | mw.prefix(1))).on(6)
REASONS = [  # the explanation of a cell, whether it is visible, and parts of the text
    (bound.why(0, 2), False, ("query 0", "key 2", "causal()", "2 > 0", "padding(...)")),
    (bound.why(3, 3), False, ("padding(...)", "key 3 is padding of sequence 0", "causal()")),
    ((c & mw.chunks(4)).on(4).why(2, 1), True, ("causal()", "1 ≤ 2", "chunks(4)", "chunk 0")),
    (either.why(5, 0), True, ("keys(...)", "key 0 is selected")),
    (either.why(5, 1), False, ("window(back=1)", "1 < 5 - 1", "keys(...)", "not selected")),
    (mw.window(back=2, ahead=1).on(6).why(3, 2), True, ("3 - 2 ≤ 2 ≤ 3 + 1",)),
    (mw.window(back=2, ahead=None).on(6).why(3, 5), True, ("5 ≥ 3 - 2",)),
    (mw.window(back=None, ahead=1).on(6).why(3, 5), False, ("5 > 3 + 1",)),
    ((~mw.keys([1])).on(3).why(0, 1), False, ("~keys(...)", "key 1 is selected")),
    (mw.padding(lengths=[2]).T.on(3).why(2, 0), False, ("padding(...).T", "key 2 is padding")),
    (mw.by_head([c, mw.window(back=0)]).on(3).why(2, 0, head=1), False, ("head 1", "0 < 2 - 0")),
    (nested.why(5, 2), False, ("query in chunk 2", "key in chunk 1", "prefix of 1", "causal()")),
    (mw.documents(lengths=[[2, 1]]).on(4).why(0, 2), False, ("document 0", "document 1")),
    (mw.documents(ids=[[0, -1]]).on(2).why(0, 1), False, ("document 0", "padding")),
    (c.on(2, kv_len=4).why(0, 3), False, ("query 0 (position 2)", "3 > 2")),
    (mw.stride(3).on(6).why(5, 2), True, ("(5 - 2) mod 3 = 0",)),
    (mw.tree([-1, 0, 0]).on(3).why(2, 1), False, ("tree(...)", "ancestor of query 2")),
    (mw.graph([(0, 1)]).on(3).why(0, 2), False, ("graph(...)", "from 0 to 2")),
    (mw.image(2, 2, 0).on(4).why(0, 3), False, ("pixel (1, 1)", "(0, 0)")),
    (mw.blocks([[0]], 2).on(2).why(0, 0), False, ("blocks(...)", "False")),
    (mw.dense([[1]]).on(1).why(0, 0), True, ("dense(...)", "True")),
]


@pytest.mark.parametrize(("why", "visible", "parts"), REASONS, ids=range(len(REASONS)))
def test_reasons(why: mw.Why, visible: bool, parts: tuple[str, ...]) -> None:
    assert why.visible == visible
    assert str(why) == repr(why)
    assert [part for part in parts if part not in str(why)] == []


def test_why_counts_rows_as_dense_does() -> None:
    part = (c & mw.chunks(3)).on(8).rows(4, 6)
    assert "query 0 (position 4)" in str(part.why(0, 5))
    for row in range(2):
        for key in range(8):
            assert part.why(row, key).visible == part.dense()[0, 0, row, key]


@given(cases(), st.data())
def test_every_reason_has_text_in_every_language(
    case: tuple[mw.Mask, mw.Frame], data: st.DataObject
) -> None:
    mask, frame = case
    if not frame.cells:
        return
    cell = [
        data.draw(st.integers(0, size - 1))
        for size in (frame.q_len, frame.kv_len, frame.batch, frame.heads)
    ]
    why = bind(mask, frame).why(*cell)
    for reason in reasons(why.reason):
        assert reason.code in messages("en")
    for lang in LANGUAGES:
        assert "{" not in why.text(lang)
