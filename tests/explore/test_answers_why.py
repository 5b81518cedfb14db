"""Why a query attends to a key or not, in both languages."""

from __future__ import annotations

import pytest

import maskwright as mw
from maskwright.core.atoms import ATOMS
from maskwright.core.expr import Atom, walk
from maskwright.explore.vocabulary import EXAMPLES
from tests.explore.asking import WORDS, ask, on


def test_why_in_both_languages() -> None:
    found = ask("why", subject=on("causal()", tokens=WORDS), query=0, key=2)
    assert found == {
        "allowed": False,
        "sentence": "query 0 does not attend to key 2: causal() masks it (2 > 0); "
        "padding(...) masks it (key 2 is padding of sequence 0)",
        "sentence_zh": "查询 0 不关注键 2：causal() 屏蔽（2 > 0）；"
        "padding(...) 屏蔽（键 2 是序列 0 的填充）",
    }


EVERY_ATOM = [
    *(text for name, text in EXAMPLES.items() if name != "dense"),
    f"dense({[[1, 0] * 4] * 8})",
    "window(back=None, ahead=2)",
    "window(back=2, ahead=None)",
    "window(back=1, ahead=1)",
    "documents(ids=[0, 0, -1, 1, 1, 0, -1, 1])",
    "graph([[0, 1]], loops=False)",
    "image(2, 4, radius=1, border='shift')",
    "~(causal() & stride(2)) - keys([3])",
    "(causal() | prefix(2)) & ~chunks(4) & ~(stride(2) | documents(lengths=[[3, 5]]))",
    "(documents(lengths=[[3, 5]]) & causal()).T",
    "causal() & by_head([causal() & window(back=2), ~keys([1]) | chunks(2)])",
    "causal().T | image(2, 4, radius=1).T",
    "prefix([2, 3]) & by_batch([causal(), documents(lengths=[[3, 3]])])",
]


@pytest.mark.parametrize("text", EVERY_ATOM)
def test_every_reason_has_a_chinese_text(text: str) -> None:
    bound = mw.parse(text).on(8)
    for batch in range(bound.frame.batch):
        for head in range(bound.frame.heads):
            for q in range(8):
                for k in range(8):
                    sentence = bound.why(q, k, batch, head).text("zh")
                    for english in ("query", " key ", "allows", "masks it", "would", " is "):
                        assert english not in sentence, sentence


def test_all_atoms_are_walked() -> None:
    walked = {
        type(part).__name__
        for text in EVERY_ATOM
        for part in walk(mw.parse(text))
        if isinstance(part, Atom)
    }
    every = {type(mw.parse(text)).__name__ for text in EXAMPLES.values()} - {"PerAxis"}
    assert every <= walked
    assert len(every) == len(ATOMS) - 1  # causal() is a window


def test_a_query_at_another_position_and_a_predicate() -> None:
    said = mw.causal().on(2, 5).why(0, 4).text("zh")
    assert said == "查询 0（位置 3）不关注键 4：causal() 屏蔽（4 > 3）"
    assert "谓词函数" in mw.where(lambda b, h, q, k: q > k).on(3).why(2, 0).text("zh")
