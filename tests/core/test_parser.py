"""Text and JSON: what is read, how it is spelled, and that the two forms agree."""

from __future__ import annotations

import json

import numpy as np
import pytest

import maskwright as mw

SPELLINGS = {
    "causal()": mw.causal(),
    "window(back=3, ahead=1)": mw.window(back=3, ahead=1),
    "window(3)": mw.window(back=3),
    "window(None, 2)": mw.window(None, 2),
    "everything() - causal()": mw.everything() & ~mw.causal(),
    "~(causal() | prefix(2))": ~(mw.causal() | mw.prefix(2)),
    "causal() & padding(lengths=[3, 4])": mw.causal() & mw.padding(lengths=[3, 4]),
    "padding(ids=[[5, 0]], pad_id=0)": mw.padding(keep=[[1, 0]]),
    "padding(ids=[['a', '<pad>']], pad_id='<pad>')": mw.padding(keep=[[1, 0]]),
    "(padding(lengths=[2]) & causal()).T": (mw.padding(lengths=[2]) & mw.causal()).T,
    "~padding(lengths=[2]).T": ~(mw.padding(lengths=[2]).T),
    "documents(ids=[[0, 0, -1]])": mw.documents(ids=[[0, 0, -1]]),
    "keys(range(4)) | queries(range(0, 64, 8))": mw.keys(range(4)) | mw.queries(range(0, 64, 8)),
    "keys([True, False])": mw.keys([True, False]),
    "by_head([causal(), by_batch([chunks(2), stride(3, phase=1)])])": mw.by_head(
        [mw.causal(), mw.by_batch([mw.chunks(2), mw.stride(3, phase=1)])]
    ),
    "graph([[0, 1]], directed=True, loops=False)": mw.graph([(0, 1)], directed=True, loops=False),
    "image(2, 2, 1, raster=True, border='shift')": mw.image(2, 2, 1, raster=True, border="shift"),
    "blocks([[1, 0]], size=(2, 4))": mw.blocks([[1, 0]], size=(2, 4)),
    "dense([], shape=(0, 3))": mw.dense(np.zeros((0, 3), bool)),
    "  causal()\n": mw.causal(),
    "causal()\n  & padding(\r\n lengths=[2])\n": mw.causal() & mw.padding(lengths=[2]),
    "causal() & chunks(2) | tree([-1, 0])": (mw.causal() & mw.chunks(2)) | mw.tree([-1, 0]),
}


@pytest.mark.parametrize("text", SPELLINGS)
def test_text_is_read(text: str) -> None:
    assert mw.parse(text) == SPELLINGS[text]


def test_brackets_set_precedence() -> None:
    a, b, c = mw.causal(), mw.chunks(2), mw.prefix(1)
    assert repr((a | b) & c) == "(causal() | chunks(2)) & prefix(lengths=[1])"
    assert repr(a | b & c) == "causal() | (chunks(2) & prefix(lengths=[1]))"
    assert repr(~(a & b)) == "~(causal() & chunks(2))"
    assert repr((~a).T) == "(~causal()).T"
    assert repr(~a.T) == "~causal().T"


def test_long_chain_is_read() -> None:
    text = " & ".join(f"window(back={n})" for n in range(1, 900))
    assert mw.simplify(mw.parse(text)) == mw.window(back=1)


def test_json_is_versioned_and_plain() -> None:
    document = json.loads(mw.to_json(mw.keys(range(0, 8, 2)) & ~mw.causal()))
    assert document == {
        "maskwright": 1,
        "mask": {
            "and": [
                {"atom": "keys", "where": {"range": [0, 7, 2]}},
                {"not": {"atom": "causal"}},
            ]
        },
    }


def test_large_data_goes_through_json() -> None:
    ids = np.repeat(np.arange(500), 400)[None]
    for mask in (mw.documents(ids=ids), mw.keys(range(1_500_000)), mw.padding(keep=ids % 2 == 0)):
        assert mw.from_json(mw.to_json(mask)) == mask


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("causal() & windw(back=3)", "windw"),
        ("causal() & window(back=-1)", "window(back=-1)"),
        ("  keys([1, x])", "[1, x]"),
        ("causal() and window(back=1)", "causal() and window(back=1)"),
        ("causal()\n& pefix(3)", "pefix"),
        ("keys(ids='中文') | casual()", "keys(ids='中文')"),
        ("documents(ids='中文') & casual()", "documents(ids='中文')"),
        ("~causal", "causal"),
        ("causal() & window(back=3", "("),
        ("causal() &", "&"),
        (" causal() &  ", "&"),
        ("range(3)", "range"),
        ("keys(range(0))  | keys(range(1.5))", "range(1.5)"),
    ],
)
def test_error_tells_place(text: str, fault: str) -> None:
    with pytest.raises(mw.MaskError) as caught:
        mw.parse(text)
    assert caught.value.at is not None
    assert text[slice(*caught.value.at)] == fault
