"""The explanations of `why`, one for each way a cell is decided."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import maskwright as mw
from maskwright.messages import LANGUAGES, messages, reasons
from tests.strategies import bind, cases

c = mw.causal()
SENTENCES = [
    (
        (c & mw.padding(lengths=[3])).on(4).why(0, 2),
        "query 0 does not attend to key 2: causal() masks it (2 > 0); padding(...) would allow it",
    ),
    (
        (c & mw.padding(lengths=[3])).on(4).why(3, 3),
        "query 3 does not attend to key 3: padding(...) masks it (key 3 is padding of sequence 0); "
        "causal() would allow it",
    ),
    (
        (c & mw.chunks(4)).on(4).why(2, 1),
        "query 2 attends to key 1: causal() allows it (1 ≤ 2); "
        "chunks(4) allows it (both in chunk 0)",
    ),
    (
        (mw.window(back=1) | mw.keys([0])).on(6).why(5, 0),
        "query 5 attends to key 0: keys(...) allows it (key 0 is selected)",
    ),
    (
        (mw.window(back=1) | mw.keys([0])).on(6).why(5, 1),
        "query 5 does not attend to key 1: window(back=1) masks it (1 < 5 - 1); "
        "keys(...) masks it (key 1 is not selected)",
    ),
    (
        mw.window(back=2, ahead=1).on(6).why(3, 2),
        "query 3 attends to key 2: window(back=2, ahead=1) allows it (3 - 2 ≤ 2 ≤ 3 + 1)",
    ),
    (
        mw.window(back=2, ahead=None).on(6).why(3, 5),
        "query 3 attends to key 5: window(back=2, ahead=None) allows it (5 ≥ 3 - 2)",
    ),
    (
        mw.window(back=None, ahead=1).on(6).why(3, 5),
        "query 3 does not attend to key 5: window(back=None, ahead=1) masks it (5 > 3 + 1)",
    ),
    (
        (~mw.keys([1])).on(3).why(0, 1),
        "query 0 does not attend to key 1: ~keys(...) masks it (key 1 is selected)",
    ),
    (
        (mw.everything() & mw.padding(lengths=[2]).T).on(3).why(2, 0),
        "query 2 does not attend to key 0: padding(...).T masks it (with query and key exchanged, "
        "key 2 is padding of sequence 0); everything() would allow it",
    ),
    (
        mw.by_head([c, mw.window(back=0)]).on(3).why(2, 0, head=1),
        "query 2 does not attend to key 0: head 1 uses window(back=0); "
        "window(back=0) masks it (0 < 2 - 0)",
    ),
    (
        (c & (mw.chunks(2) | mw.prefix(1))).on(6).why(5, 2),
        "query 5 does not attend to key 2: (chunks(2) | prefix(...)) masks it (chunks(2): "
        "query in chunk 2, key in chunk 1; prefix(...): key 2 is after the prefix of 1); "
        "causal() would allow it",
    ),
    (
        mw.documents(lengths=[[2, 1]]).on(4).why(0, 2),
        "query 0 does not attend to key 2: documents(...) masks it "
        "(query in document 0, key in document 1)",
    ),
    (
        mw.documents(ids=[[0, -1]]).on(2).why(0, 1),
        "query 0 does not attend to key 1: documents(...) masks it (query in document 0, key in padding)",
    ),
    (
        c.on(2, kv_len=4).why(0, 3),
        "query 0 (position 2) does not attend to key 3: causal() masks it (3 > 2)",
    ),
    (
        mw.stride(3).on(6).why(5, 2),
        "query 5 attends to key 2: stride(3) allows it ((5 - 2) mod 3 = 0)",
    ),
    (
        mw.tree([-1, 0, 0]).on(3).why(2, 1),
        "query 2 does not attend to key 1: tree(...) masks it (key 1 is not an ancestor of query 2)",
    ),
    (
        mw.graph([(0, 1)]).on(3).why(0, 2),
        "query 0 does not attend to key 2: graph(...) masks it (there is no edge from 0 to 2)",
    ),
    (
        mw.image(2, 2, 0).on(4).why(0, 3),
        "query 0 does not attend to key 3: image(height=2, width=2, radius=0) masks it "
        "(pixel (1, 1) is not in the neighbourhood of (0, 0))",
    ),
    (
        mw.blocks([[0]], 2).on(2).why(0, 0),
        "query 0 does not attend to key 0: blocks(...) masks it (their block is False)",
    ),
    (
        mw.dense([[1]]).on(1).why(0, 0),
        "query 0 attends to key 0: dense(...) allows it (the array is True there)",
    ),
]


@pytest.mark.parametrize(("why", "sentence"), SENTENCES, ids=range(len(SENTENCES)))
def test_sentence(why: mw.Why, sentence: str) -> None:
    assert str(why) == repr(why) == sentence
    assert why.visible == (" attends to " in sentence)


def test_why_in_a_part_counts_as_its_dense_array_does() -> None:
    part = (c & mw.chunks(3)).on(8).rows(4, 6)
    assert str(part.why(0, 5)) == (
        "query 0 (position 4) does not attend to key 5: causal() masks it (5 > 4); "
        "chunks(3) would allow it"
    )
    for row in range(2):
        for key in range(8):
            assert part.why(row, key).visible == part.dense()[0, 0, row, key]


@given(cases(), st.data())
def test_every_reason_has_a_text_in_every_language(
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
