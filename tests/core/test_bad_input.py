"""Bad input raises a MaskError quickly, with the value or the fix in its message."""

from __future__ import annotations

import json
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import maskwright as mw
from tests._helpers.run_python import run_python

if TYPE_CHECKING:
    from collections.abc import Callable

HUGE = 10**30
BAD: dict[type[mw.MaskError], dict[str, tuple[Callable[[], Any], str]]] = {
    mw.ArgumentError: {
        # windows and other numbers
        "negative back": (lambda: mw.window(back=-1), "None for no limit"),
        "negative ahead": (lambda: mw.window(3, ahead=-1), "ahead=-1"),
        "back of text": (lambda: mw.window("3"), "str"),
        "back of float": (lambda: mw.window(2.5), "of type float"),
        "back of truth": (lambda: mw.window(True), "of type bool"),
        "back of tensor truth": (lambda: mw.window(torch.tensor(True)), "Tensor"),
        "back beyond": (lambda: mw.window(HUGE), "beyond 2**62"),
        "back of 20000 bits": (lambda: mw.window(1 << 20000), "beyond 2**62"),
        "chunk of 0": (lambda: mw.chunks(0), "size=0 is less than 1"),
        "phase too large": (lambda: mw.stride(4, phase=4), "not less than step=4"),
        # lengths, ids, flags
        "negative length": (lambda: mw.padding(lengths=[3, -1]), "contains -1"),
        "lengths of floats": (lambda: mw.padding(lengths=[1.5]), "dtype float64"),
        "lengths of two axes": (lambda: mw.padding(lengths=[[1], [2]]), "2 dimensions"),
        "ragged array": (lambda: mw.dense([[1, 0], [1]]), "ragged"),
        "ragged lengths": (lambda: mw.padding(lengths=[[1], [2, 3]]), "ragged"),
        "lengths as text": (lambda: mw.padding(lengths="34"), "of type str"),
        "lengths as generator": (lambda: mw.padding(lengths=(n for n in [1])), "of type generator"),
        "huge length": (lambda: mw.padding(lengths=[HUGE]), "2**62"),
        "no data": (lambda: mw.padding(), "exactly one of"),
        "two kinds of data": (lambda: mw.padding(lengths=[1], keep=[[1]]), "lengths and keep"),
        "ids without pad_id": (lambda: mw.padding(ids=[[1]]), "together"),
        "ids of floats": (lambda: mw.padding(ids=[[1.0, 0.0]], pad_id=0), "dtype float64"),
        "ids and a word": (lambda: mw.padding(ids=[[1]], pad_id="<pad>"), "is a string"),
        "additive keep": (
            lambda: mw.padding(keep=np.array([[0.0, -np.inf]])),
            "(mask == 0) for an additive",
        ),
        "keep of 2": (lambda: mw.padding(keep=[[0, 2]]), "contains 2"),
        "keep of three axes": (
            lambda: mw.padding(keep=np.ones((1, 1, 3), bool)),
            "(batch, tokens)",
        ),
        "document -2": (lambda: mw.documents(ids=[[0, -2]]), "contains -2"),
        "documents of bytes": (lambda: mw.documents(lengths=b"ab"), "bytes"),
        "documents of a number": (lambda: mw.documents(lengths=np.array(3)), "one number"),
        "documents too deep": (lambda: mw.documents(lengths=[[[1]]]), "list of lists"),
        "both forms": (lambda: mw.documents(lengths=[[1]], ids=[[0]]), "exactly one"),
        # choices
        "negative key": (lambda: mw.keys([-1]), "from 0"),
        "key twice": (lambda: mw.keys([1, 1, 0]), "twice"),
        "keys mixed": (lambda: mw.keys([True, 2]), "mixes booleans"),
        "keys of words": (lambda: mw.keys({1, "a"}), "of type set"),
        "keys of a huge range": (lambda: mw.keys(range(10**25)), "2**62"),
        "keys of a long range": (lambda: mw.keys(range(0, 10**12, 2)), "at most"),
        "masked array": (lambda: mw.keys(np.ma.array([1, 2], mask=[0, 1])), "masked array"),
        "object array": (lambda: mw.keys(np.array([1, None])), "other than numbers"),
        "a mask as data": (lambda: mw.keys(mw.causal()), "mask.on(q_len).dense()"),
        "a tensor that needs grad": (
            lambda: mw.dense(torch.ones(2, 2, requires_grad=True)),
            "detached",
        ),
        "bfloat16": (lambda: mw.dense(torch.ones(2, 2, dtype=torch.bfloat16)), "numpy cannot read"),
        # relations and arrays
        "cycle": (lambda: mw.tree([1, 0]), "never ends"),
        "parent outside": (lambda: mw.tree([-1, 7]), "contains 7"),
        "edge of three": (lambda: mw.graph([(0, 1, 2)]), "(query, key) pairs"),
        "negative node": (lambda: mw.graph([(0, -1)]), "node -1"),
        "directed of text": (lambda: mw.graph([], directed="no"), "True or False"),
        "border": (lambda: mw.image(2, 2, 1, border="wrap"), "'cut' or 'shift'"),
        "border of array": (lambda: mw.image(2, 2, 1, border=np.ones(2)), "'cut' or 'shift'"),
        "float mask": (lambda: mw.dense([[1.0, 0.0]]), "dtype float64"),
        "dense of one axis": (lambda: mw.dense([True]), "(query, key)"),
        "dense with a wrong shape": (lambda: mw.dense([], shape=(2, 2)), "do not make shape"),
        "dense with a huge shape": (
            lambda: mw.dense([], shape=[2**40, 2**40, 0]),
            "do not make shape",
        ),
        "three sizes": (lambda: mw.blocks([[1]], (1, 2, 3)), "3 numbers"),
        "no function": (lambda: mw.where(3), "function of b, h, q and k"),
        "a predicate that fails": (
            lambda: mw.where(lambda b, h, q, k: q.nothing).on(2).dense(),
            "the predicate failed",
        ),
        "a predicate of numbers": (
            lambda: mw.where(lambda b, h, q, k: q - k).on(2).dense(),
            "Return booleans",
        ),
        "a predicate of a wrong shape": (
            lambda: mw.where(lambda b, h, q, k: np.ones((3, 3), bool)).on(2).dense(),
            "broadcasts",
        ),
        "a predicate whose shape changes": (
            lambda: (
                mw.where(lambda b, h, q, k: (q >= k) if q.size == 1 else (q >= k) & (b >= 0))
                .on(3, batch=2)
                .dense()
            ),
            "depend on b and h alone",
        ),
        "no members": (lambda: mw.by_head([]), "empty"),
        "a mask for members": (lambda: mw.by_head(mw.causal()), "list of masks"),
        "a number among members": (lambda: mw.by_batch([3]), "list of masks"),
        "array on the right": (lambda: mw.causal() & np.ones((2, 2), bool), "ndarray"),
        "array on the left": (lambda: np.ones((2, 2), bool) | mw.causal(), "ndarray"),
        "number on the left": (lambda: 3 - mw.causal(), "dense(...)"),
        "tensor on the left": (lambda: torch.ones(2, 2) & mw.causal(), "Tensor"),
        "a mask as an array": (lambda: np.asarray(mw.causal()), "Bind it first"),
        "bound masks combined": (lambda: mw.causal().on(2) & mw.causal().on(2), "(a & b).on(n)"),
        "a bound mask negated": (lambda: ~mw.causal().on(2), "(~a).on(n)"),
        "a mask and a bound one": (lambda: mw.causal() & mw.causal().on(2), "before binding"),
        "10,000 nots": (
            lambda: reduce(lambda mask, _: ~mask, range(10_000), mw.causal()),
            "100 operators",
        ),
        "2,000 terms": (lambda: reduce(and_, [mw.causal()] * 2_000), "terms"),
        "a mask that doubles": (
            lambda: reduce(lambda mask, _: mask & ~mask, range(60), mw.causal()),
            "more than",
        ),
        "simplify of None": (lambda: mw.simplify(None), "expected an unbound mask"),
        # frames
        "negative q_len": (lambda: mw.causal().on(-1), "q_len=-1"),
        "q_len of float": (lambda: mw.causal().on(2.0), "of type float"),
        "q_len of None": (lambda: mw.causal().on(None), "None"),
        "huge q_len": (lambda: mw.causal().on(HUGE), "2**62"),
        "huge q_start": (lambda: mw.causal().on(2, q_start=1 << 20000), "2**62"),
        "array q_start": (lambda: mw.causal().on(2, q_start=np.ones(2)), "ndarray"),
        "why of a float": (lambda: mw.causal().on(2).why(1.5, 0), "of type float"),
        "rows backwards": (lambda: mw.causal().on(4).rows(3, 1), "less than 3"),
        "unbound step before 0": (lambda: mw.causal().step(-1), "position=-1"),
        "tiles of 0": (lambda: mw.causal().on(4).tiles(0), "q_block=0"),
        "equals of an array": (lambda: mw.causal().on(2).equals(np.ones((2, 2))), "dense(...)"),
        "spans of another frame": (
            lambda: mw.causal().on(3).spans | mw.causal().on(3, 5).spans,
            "same frame",
        ),
        "spans and None": (lambda: mw.causal().on(3).spans & None, "NoneType"),
        "bad atom in text": (lambda: mw.parse("chunks(0)"), "size=0"),
        # batches
        "pad of text": (lambda: mw.pad("abc"), "token lists"),
        "pad of floats": (lambda: mw.pad([[1.5]]), "dtype float64"),
        "pad of nested lists": (lambda: mw.pad([[[1]]]), "2 dimensions"),
        "pad on a wrong side": (lambda: mw.pad([[1]], side="top"), "'right' or 'left'"),
        "pad too short": (lambda: mw.pad([[1, 2]], length=1), "length=1"),
        "pad words with a number": (lambda: mw.pad([["a"]], pad_id=0), "'<pad>'"),
        "pad words and numbers": (lambda: mw.pad([["a", 1]], pad_id="p"), "mixes"),
        "pad with a huge token": (lambda: mw.pad([[2**63]]), "2**62"),
        "pad with an array": (lambda: mw.pad([[1]], pad_id=np.ones(2)), "pad_id"),
        "pad of a huge word": (lambda: mw.pad([["a" * 10**6]], pad_id="p"), "characters"),
        "pack too short": (lambda: mw.pack([[1, 2, 3]], length=2), "Split it"),
        "pack of length 0": (lambda: mw.pack([[]], length=0), "length=0"),
    },
    mw.TruthError: {
        # operators
        "and": (lambda: mw.causal() and mw.causal(), "Write & for `and`"),
        "if": (lambda: 1 if mw.causal() else 0, "&"),
        "a bound mask as truth": (lambda: bool(mw.causal().on(2)), ".equals(other)"),
    },
    mw.FrameError: {
        "large q_len": (lambda: mw.causal().on(2**40), "beyond 2147483647"),
        "padding longer than keys": (
            lambda: mw.padding(lengths=[5]).on(4),
            "lengths contains 5 but the frame has 4 keys",
        ),
        "keep of other keys": (
            lambda: mw.padding(keep=[[1, 1, 0]]).on(4),
            "keep has 3 columns but the frame has 4 keys. Pass kv_len=3",
        ),
        "ids of other keys": (
            lambda: mw.documents(ids=[[0] * 7]).on(8),
            "ids has 7 columns but the frame has 8 keys. Pass kv_len=7 or pad the ids with -1.",
        ),
        "documents beyond the keys": (lambda: mw.documents(lengths=[[5, 5]]).on(8), "add up to 10"),
        "queries before the tokens": (
            lambda: mw.documents(ids=[[0, 0]]).on(4, kv_len=2),
            "a query has position -2",
        ),
        "flags of other queries": (
            lambda: mw.queries([[True, False]]).on(4),
            "where has 2 columns but the frame has queries at 0 … 3",
        ),
        "tree of other keys": (lambda: mw.tree([-1, 0]).on(3), "parents has 2 columns"),
        "graph beyond the keys": (lambda: mw.graph([(0, 9)]).on(4), "node 9"),
        "image of other keys": (lambda: mw.image(2, 3, 1).on(5), "makes 6 pixels"),
        "dense of other sizes": (lambda: mw.dense([[1, 0], [1, 1]]).on(3), "2 × 2 cells"),
        "blocks of other sizes": (lambda: mw.blocks([[1]], 2).on(4), "needs 2 × 2"),
        "turned padding": (lambda: mw.padding(lengths=[3]).T.on(2, 4, q_start=0), "Under .T"),
        "two batches": (
            lambda: (mw.padding(lengths=[1, 2]) & mw.documents(ids=[[0]] * 3)).on(2),
            "padding has 2 along batch but documents has 3",
        ),
        "batch against data": (
            lambda: mw.padding(lengths=[1, 2]).on(2, batch=3),
            "batch=3 but the mask's data has 2",
        ),
        "heads against data": (lambda: mw.by_head([mw.causal()] * 2).on(2, heads=4), "heads=4"),
        "why outside": (lambda: mw.causal().on(2).why(0, 2), "0 to 1"),
        "why in nothing": (lambda: mw.causal().on(0).why(0, 0), "no query"),
        "rows outside": (lambda: mw.causal().on(4).rows(0, 9), "4 rows"),
        "more keys than there are": (lambda: mw.causal().on(4).rows(0, 2, kv_len=9), "4 keys"),
        "step outside": (lambda: mw.causal().on(4).step(4), "0 … 3"),
        "equals of another frame": (
            lambda: mw.causal().on(4).equals(mw.causal().on(5)),
            "same frame",
        ),
        "equals of another batch": (
            lambda: mw.causal().on(4).equals(mw.padding(lengths=[3, 4])),
            "equals: the other mask does not fit",
        ),
        "spans' row outside": (lambda: mw.causal().on(3).spans.row(3), "out of range"),
    },
    mw.SizeError: {
        # bound masks
        "dense too large": (lambda: mw.causal().on(10**6).dense(), "Use .spans"),
        "pad too long": (lambda: mw.pad([[1]], length=10**13), "tokens"),
    },
    mw.TextError: {
        # text
        "unknown name": (lambda: mw.parse("casual()"), "Did you mean causal?"),
        "no call": (lambda: mw.parse("causal"), "Write causal(...)"),
        "code": (lambda: mw.parse("__import__('os').system('x')"), "not allowed"),
        "attribute": (lambda: mw.parse("causal().__class__"), ".__class__"),
        "lambda": (lambda: mw.parse("where(lambda b, h, q, k: True)"), "Python function"),
        "comprehension": (lambda: mw.parse("keys([i for i in range(3)])"), "not allowed"),
        "python's and": (lambda: mw.parse("causal() and causal()"), "Write &, | and ~"),
        "xor": (lambda: mw.parse("causal() ^ causal()"), "&, |, ~ or -"),
        "float": (lambda: mw.parse("chunks(2.5)"), "The value 2.5"),
        "open bracket": (lambda: mw.parse("causal("), "brackets"),
        "empty": (lambda: mw.parse("  "), "empty"),
        "no text": (lambda: mw.parse(None), "expected a string"),
        "null byte": (lambda: mw.parse("causal()\0"), "not an expression"),
        "unknown argument": (lambda: mw.parse("chunks(sze=3)"), "sze"),
        "argument twice": (lambda: mw.parse("window(back=1, back=2)"), "twice"),
        "stars": (lambda: mw.parse("chunks(*[3])"), "not allowed"),
        "two stars": (lambda: mw.parse("chunks(**3)"), "** is not supported"),
        "huge number in text": (lambda: mw.parse("chunks(" + "9" * 3000 + ")"), "2**62"),
        "huge hex in text": (lambda: mw.parse("chunks(0x" + "f" * 9999 + ")"), "2**62"),
        "huge range in text": (lambda: mw.parse("keys(range(10**9))"), "not allowed"),
        "long range in text": (lambda: mw.parse("keys(range(0, 999999999, 2))"), "MB"),
        "10 MB of text": (lambda: mw.parse("causal() & " * 900_000), "characters"),
        "10,000 brackets": (lambda: mw.parse("(" * 10_000 + "causal()" + ")" * 10_000), "nested"),
        "10,000 lists": (lambda: mw.parse("keys(" + "[" * 10_000 + "]" * 10_000), "nested"),
        "10,000 tildes": (lambda: mw.parse("~" * 10_000 + "causal()"), "operators"),
        "10,000 terms of text": (lambda: mw.parse("causal()" + " & causal()" * 10_000), ""),
        "by_head without a list": (lambda: mw.parse("by_head(causal())"), "one list"),
        # JSON
        "invalid JSON": (lambda: mw.from_json("causal()"), "invalid JSON"),
        "JSON of something else": (lambda: mw.from_json("[1]"), "the keys"),
        "JSON of a later version": (
            lambda: mw.from_json('{"maskwright": 2, "mask": {}}'),
            "version 2",
        ),
        "JSON of version true": (
            lambda: mw.from_json('{"maskwright": true, "mask": {"atom": "causal"}}'),
            "version True",
        ),
        "JSON of no atom": (lambda: mw.from_json(wrap({"atom": "os"})), "no atom"),
        "JSON of no operator": (lambda: mw.from_json(wrap({"xor": []})), "not an operator"),
        "JSON of an empty and": (lambda: mw.from_json(wrap({"and": []})), "operator"),
        "JSON with a wrong argument": (
            lambda: mw.from_json(wrap({"atom": "chunks", "sze": 3})),
            "sze",
        ),
        "JSON with a huge range": (
            lambda: mw.from_json(wrap({"atom": "keys", "where": {"range": [0, 10**12, 2]}})),
            "MB",
        ),
        "JSON with runs that do not fit": (
            lambda: mw.from_json(
                wrap({"atom": "padding", "keep": {"runs": [[1, 10**12]], "shape": [1, 10**12]}})
            ),
            "MB",
        ),
        "more than JSON holds": (
            lambda: mw.to_json(mw.documents(ids=np.arange(900_000)[None])),
            "array file",
        ),
        "JSON 10,000 deep": (
            lambda: mw.from_json(
                '{"maskwright": 1, "mask": ' + '{"not": ' * 10_000 + "1" + "}" * 10_001
            ),
            "deep",
        ),
        "JSON of 10 MB": (lambda: mw.from_json("[" + "1," * 5_000_000 + "1]"), "characters"),
        "JSON of 400,000 parts": (
            lambda: mw.from_json(wrap({"and": [{}] * 400_000})),
            "10000 masks",
        ),
        "where to JSON": (
            lambda: mw.to_json(mw.where(lambda b, h, q, k: q >= k)),
            "Python function",
        ),
    },
    mw.MaskError: {
        "900 tildes": (lambda: mw.parse("~" * 900 + "causal()"), "deep"),
        "900 attributes": (lambda: mw.parse("causal()" + ".T" * 900), "deep"),
    },
}


def wrap(mask: Any) -> str:
    return json.dumps({"maskwright": 1, "mask": mask})


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in BAD for name in BAD[kind]])
def test_error_names_value_or_fix(kind: type[mw.MaskError], name: str) -> None:
    call, part = BAD[kind][name]
    with pytest.raises(kind) as caught:
        call()
    message = str(caught.value)
    assert part in message
    assert len(message) < 400
    assert "\n" not in message


def test_bad_input_takes_little_memory() -> None:
    """All of it, one after the other, in a process that may not use 256 MB more."""
    code = (
        "from tests._helpers.run_python import limit_memory\n"
        "from tests.core.test_bad_input import BAD; limit_memory()\n"
        "for kind, calls in BAD.items():\n"
        "    for name, (call, _) in calls.items():\n"
        "        try: call()\n"
        "        except kind: continue\n"
        "        raise SystemExit(name + ' raised nothing')\n"
    )
    done = run_python(code)
    assert done.returncode == 0, done.stderr
