"""Short texts that describe much data are parsed or refused, within 5 minutes and 256 MB."""

from __future__ import annotations

import contextlib
import json
import random

import numpy as np
import pytest

import maskwright as mw
from maskwright.core.expr import brief
from tests._helpers.run_python import limit_memory, run_python

MB = 2**20


def atom(**fields: object) -> str:
    return json.dumps({"maskwright": 1, "mask": fields})


def repeated(node: dict[str, object], count: int) -> str:
    return json.dumps({"maskwright": 1, "mask": {"or": [node] * count}})


def runs(*shape: int) -> dict[str, object]:
    size = 1
    for n in shape:
        size *= n
    return {"runs": [[1, size]], "shape": list(shape)}


TEXTS = {
    "100 ranges": " | ".join(["keys(range(4194304))"] * 100),
    "100 ranges with a step": " | ".join(["keys(range(0, 4194304, 2))"] * 100),
    "reversed range": "keys(range(4194304, 0, -1))",
    "list of ranges": f"keys([{', '.join(['range(0, 4000000, 3)'] * 100)}])",
    "lengths by range": "padding(lengths=range(4194304))",
    "tree by range": "tree(range(-1, 1000000))",
    "tree of a million, twice": "tree(range(-1, 1000000)) & tree(range(-1, 1000000))",
    "1,000 terms": " & ".join(["keys([1, 2, 3])"] * 1_000),
    "100,000 values": f"keys([{', '.join(map(str, range(24_000)))}])",
    "deep brackets": "(" * 100 + "causal()" + ")" * 100,
    "deep lists": f"dense({'[' * 90}1{']' * 90})",
    "deep nots": "~" * 999 + "causal()",
    "1 MB": "causal() & " * (MB // 11) + "causal()",
    "1 MB of digits": f"window(back={'9' * MB})",
    "long digits": f"window(back={'9' * 4_000})",
    "1 MB of spaces": " " * MB,
    "long string": f"image(1, 1, 1, border='{'a' * 190_000}')",
    "f-string": "f'" + "{a}" * 60_000 + "'",
    "hexadecimal": "0x" + "f" * 5_000,
    "long strings": f"padding(ids=['{'x' * 9_000}', {', '.join(['1'] * 40_000)}], pad_id='a')",
    "documents": f"documents(lengths=[[{', '.join(['1'] * 60_000)}]])",
}
DOCUMENTS = {
    "runs": atom(atom="dense", array=runs(8192, 8192)),
    "runs in many atoms": repeated({"atom": "padding", "keep": runs(1, 2**22)}, 100),
    "ids by runs": atom(atom="documents", ids={"runs": [[5, 2**26]], "shape": [1, 2**26]}),
    "ids that fit": atom(atom="documents", ids={"runs": [[5, 2**20]], "shape": [1, 2**20]}),
    "dense that fits": atom(atom="dense", array=runs(4096, 4096)),
    "ranges": repeated({"atom": "queries", "where": {"range": [0, 2**40, 1]}}, 900),
    "ranges with a step": repeated({"atom": "keys", "where": {"range": [0, 2**22, 2]}}, 900),
    "many runs": atom(
        atom="padding", keep={"runs": [[1, 1], [0, 1]] * 50_000, "shape": [1, 100_000]}
    ),
    "negative shape": atom(atom="dense", array={"runs": [[1, 4]], "shape": [-2, -2]}),
    "edges": atom(atom="graph", edges=[[i, i + 1] for i in range(60_000)]),
    "parents": atom(atom="tree", parents=list(range(-1, 120_000))),
    "nested nots": '{"maskwright": 1, "mask": ' + '{"not": ' * 90_000 + "1" + "}" * 90_001,
    "lengths": atom(atom="documents", lengths=[[1] * 1_000] * 300),
    "rows": atom(atom="padding", lengths=[1] * 300_000),
    "a million brackets": "[" * MB,
    "lengths by runs": atom(
        atom="documents", lengths={"runs": [[1, 16_000_000]], "shape": [16_000_000, 1]}
    ),
    "parents by runs": atom(
        atom="tree", parents={"runs": [[0, 16_000_000]], "shape": [16_000_000]}
    ),
    "padding lengths by runs": atom(
        atom="padding", lengths={"runs": [[1, 16_000_000]], "shape": [16_000_000]}
    ),
    "edges by runs": atom(atom="graph", edges={"runs": [[1, 16_000_000]], "shape": [8_000_000, 2]}),
    "one long string": atom(atom="padding", keep=["x" * 4000, *["a"] * 200_000]),
    "many dimensions": atom(atom="dense", array={"runs": [[1, 1]], "shape": [9] * 300_000}),
    "dimensions of nothing": atom(atom="dense", array=[], shape=[9] * 300_000),
    "100 dimensions": atom(atom="padding", keep={"runs": [[1, 1]], "shape": [1] * 100}),
    "strings": atom(atom="padding", ids=[["a" * 500_000, "b"]], pad_id="b"),
}


def read_all() -> None:
    """Reads every text; exits with an error for one that needs more than 256 MB.

    To expand what some of them describe would take minutes, and the process is stopped.
    """
    mw.parse("causal() & keys(range(3))")
    limit_memory()
    for read, texts in ((mw.parse, TEXTS), (mw.from_json, DOCUMENTS)):
        for name, text in texts.items():
            try:
                mask = read(text)
                hash(mask), brief(mask), mask == mask
            except mw.MaskError as error:  # noqa: PERF203
                assert len(str(error)) < 400, name  # noqa: PT017


@pytest.mark.slow
def test_short_texts_take_little_time_and_memory() -> None:
    done = run_python("from tests.core.test_hostile_input import read_all; read_all()")
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("seed", range(4))
def test_random_texts_are_parsed_or_refused(seed: int) -> None:
    """Texts of the grammar's own tokens in random order."""
    random.seed(seed)
    tokens = ["causal()", "keys(", "range(", "[", "]", "(", ")", ",", "&", "|", "~", "-", ".T"]
    tokens += ["9" * 30, "4194304", "0", "lengths=", "padding(", "tree(", "by_head(", "'a'", "\0"]
    for _ in range(300):
        text = " ".join(random.choices(tokens, k=random.randint(1, 40)))
        with contextlib.suppress(mw.MaskError):
            mw.parse(text).on(3)


@pytest.mark.parametrize(
    "mask",
    [
        mw.documents(ids=np.repeat(np.arange(1200), 1000)),
        mw.dense(np.tri(5000, dtype=bool)),
        mw.padding(keep=np.ones((20, 10**6), bool)),
        mw.keys(range(0, 4_000_000, 2)),
        mw.keys(range(0, 15_000_000, 3)),
        mw.padding(lengths=np.ones(5 * 10**6, int)),
        mw.documents(lengths=[[1] * 200_000]),
    ],
    ids=lambda mask: brief(mask),
)
def test_json_round_trip(mask: mw.Mask) -> None:
    try:
        text = mw.to_json(mask)
    except mw.TextError:
        return
    assert mw.from_json(text) == mask


@pytest.mark.parametrize(
    "where", [range(-(10**30), 5), [range(-(10**30), 5), range(7, 9)], range(-(2**62), 2**62, 3)]
)
def test_huge_ranges_are_rejected(where: object) -> None:
    with pytest.raises(mw.ArgumentError):
        mw.keys(where)
    with pytest.raises(mw.ArgumentError):
        mw.padding(lengths=where)


def test_index_sets_are_not_expanded() -> None:
    mask = mw.keys(range(2**40)) & mw.queries([range(3), range(2**30, 2**31)])
    assert mask.on(5).count() == 15
    assert mw.parse(repr(mask)) == mask
    assert mw.from_json(mw.to_json(mask)) == mask
    both = mw.simplify(mw.keys(range(2**40)) | mw.keys(range(2**41, 2**42)))
    assert mw.parse(repr(both)) == both
    assert repr(both) == "keys([range(1099511627776), range(2199023255552, 4398046511104)])"
