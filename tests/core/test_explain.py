"""The sentences of `why`, one for each way a cell is decided."""

from __future__ import annotations

import pytest

import maskwright as mw

c = mw.causal()
SENTENCES = [
    (
        (c & mw.padding(lengths=[3])).on(4).why(0, 2),
        "query 0 may not see key 2: causal() stops it (2 > 0); padding(...) would allow it",
    ),
    (
        (c & mw.padding(lengths=[3])).on(4).why(3, 3),
        "query 3 may not see key 3: padding(...) stops it (key 3 is padding of sequence 0); "
        "causal() would allow it",
    ),
    (
        (c & mw.chunks(4)).on(4).why(2, 1),
        "query 2 may see key 1: causal() lets it through (1 ≤ 2); "
        "chunks(4) lets it through (both in chunk 0)",
    ),
    (
        (mw.window(back=1) | mw.keys([0])).on(6).why(5, 0),
        "query 5 may see key 0: keys(...) lets it through (key 0 is chosen)",
    ),
    (
        (mw.window(back=1) | mw.keys([0])).on(6).why(5, 1),
        "query 5 may not see key 1: window(back=1) stops it (1 < 5 - 1); "
        "keys(...) stops it (key 1 is not chosen)",
    ),
    (
        mw.window(back=2, ahead=1).on(6).why(3, 2),
        "query 3 may see key 2: window(back=2, ahead=1) lets it through (3 - 2 ≤ 2 ≤ 3 + 1)",
    ),
    (
        mw.window(back=2, ahead=None).on(6).why(3, 5),
        "query 3 may see key 5: window(back=2, ahead=None) lets it through (5 ≥ 3 - 2)",
    ),
    (
        mw.window(back=None, ahead=1).on(6).why(3, 5),
        "query 3 may not see key 5: window(back=None, ahead=1) stops it (5 > 3 + 1)",
    ),
    (
        (~mw.keys([1])).on(3).why(0, 1),
        "query 0 may not see key 1: ~keys(...) stops it (key 1 is chosen)",
    ),
    (
        (mw.everything() & mw.padding(lengths=[2]).T).on(3).why(2, 0),
        "query 2 may not see key 0: padding(...).T stops it (with query and key changed over, "
        "key 2 is padding of sequence 0); everything() would allow it",
    ),
    (
        mw.by_head([c, mw.window(back=0)]).on(3).why(2, 0, head=1),
        "query 2 may not see key 0: head 1 follows window(back=0); "
        "window(back=0) stops it (0 < 2 - 0)",
    ),
    (
        (c & (mw.chunks(2) | mw.prefix(1))).on(6).why(5, 2),
        "query 5 may not see key 2: (chunks(2) | prefix(...)) stops it (chunks(2): query in chunk 2, "
        "key in chunk 1, prefix(...): key 2 is after the prefix of 1); causal() would allow it",
    ),
    (
        mw.documents(lengths=[[2, 1]]).on(4).why(0, 2),
        "query 0 may not see key 2: documents(...) stops it (query in document 0, key in document 1)",
    ),
    (
        mw.documents(ids=[[0, -1]]).on(2).why(0, 1),
        "query 0 may not see key 1: documents(...) stops it (query in document 0, key in padding)",
    ),
    (
        c.on(2, kv_len=4).why(0, 3),
        "query 0 (at position 2) may not see key 3: causal() stops it (3 > 2)",
    ),
    (
        mw.stride(3).on(6).why(5, 2),
        "query 5 may see key 2: stride(3) lets it through ((5 - 2) mod 3 = 0)",
    ),
    (
        mw.tree([-1, 0, 0]).on(3).why(2, 1),
        "query 2 may not see key 1: tree(...) stops it (key 1 is no ancestor of query 2)",
    ),
    (
        mw.graph([(0, 1)]).on(3).why(0, 2),
        "query 0 may not see key 2: graph(...) stops it (there is no edge from 0 to 2)",
    ),
    (
        mw.image(2, 2, 0).on(4).why(0, 3),
        "query 0 may not see key 3: image(height=2, width=2, radius=0) stops it "
        "(pixel (1, 1) is not in the neighbourhood of (0, 0))",
    ),
    (
        mw.blocks([[0]], 2).on(2).why(0, 0),
        "query 0 may not see key 0: blocks(...) stops it (their block is switched off)",
    ),
    (
        mw.dense([[1]]).on(1).why(0, 0),
        "query 0 may see key 0: dense(...) lets it through (the array holds True there)",
    ),
]


@pytest.mark.parametrize(("why", "sentence"), SENTENCES, ids=range(len(SENTENCES)))
def test_sentence(why: mw.Why, sentence: str) -> None:
    assert str(why) == repr(why) == sentence
    assert why.allowed == ("may see" in sentence)


def test_why_in_a_part_counts_as_its_dense_array_does() -> None:
    part = (c & mw.chunks(3)).on(8).rows(4, 6)
    assert str(part.why(0, 5)) == (
        "query 0 (at position 4) may not see key 5: causal() stops it (5 > 4); "
        "chunks(3) would allow it"
    )
    for row in range(2):
        for key in range(8):
            assert part.why(row, key).allowed == part.dense()[0, 0, row, key]
