"""Bad input gets a MaskError of one clear sentence and a fix: never a traceback, never a long wait."""

from __future__ import annotations

import json
import re
import resource
import subprocess
import sys
from functools import reduce
from operator import and_
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import maskwright as mw

if TYPE_CHECKING:
    from collections.abc import Callable

HUGE = 10**30
BAD: dict[str, tuple[Callable[[], Any], type[mw.MaskError], str]] = {
    # windows and other numbers
    "negative back": (lambda: mw.window(back=-1), mw.ArgumentError, "None for no limit"),
    "negative ahead": (lambda: mw.window(3, ahead=-1), mw.ArgumentError, "ahead=-1"),
    "back of text": (lambda: mw.window("3"), mw.ArgumentError, "str"),
    "back of float": (lambda: mw.window(2.5), mw.ArgumentError, "of type float"),
    "back of truth": (lambda: mw.window(True), mw.ArgumentError, "of type bool"),
    "back of array": (lambda: mw.window(np.array([3, 4])), mw.ArgumentError, "ndarray"),
    "back of tensor truth": (lambda: mw.window(torch.tensor(True)), mw.ArgumentError, "Tensor"),
    "back beyond": (lambda: mw.window(HUGE), mw.ArgumentError, "beyond 2**62"),
    "back of 20000 bits": (lambda: mw.window(1 << 20000), mw.ArgumentError, "beyond 2**62"),
    "chunk of 0": (lambda: mw.chunks(0), mw.ArgumentError, "size=0 is less than 1"),
    "phase too large": (lambda: mw.stride(4, phase=4), mw.ArgumentError, "not less than step=4"),
    "None as size": (lambda: mw.chunks(None), mw.ArgumentError, "None"),
    # lengths, ids, flags
    "negative length": (lambda: mw.padding(lengths=[3, -1]), mw.ArgumentError, "contains -1"),
    "lengths of floats": (lambda: mw.padding(lengths=[1.5]), mw.ArgumentError, "dtype float64"),
    "lengths of two axes": (
        lambda: mw.padding(lengths=[[1], [2]]),
        mw.ArgumentError,
        "2 dimensions",
    ),
    "ragged lengths": (lambda: mw.padding(lengths=[[1], [2, 3]]), mw.ArgumentError, "ragged"),
    "lengths as text": (lambda: mw.padding(lengths="34"), mw.ArgumentError, "of type str"),
    "lengths as generator": (
        lambda: mw.padding(lengths=(n for n in [1])),
        mw.ArgumentError,
        "of type generator",
    ),
    "huge length": (lambda: mw.padding(lengths=[HUGE]), mw.ArgumentError, "2**62"),
    "no data": (lambda: mw.padding(), mw.ArgumentError, "exactly one of"),
    "two kinds of data": (
        lambda: mw.padding(lengths=[1], keep=[[1]]),
        mw.ArgumentError,
        "lengths and keep",
    ),
    "ids without pad_id": (lambda: mw.padding(ids=[[1]]), mw.ArgumentError, "together"),
    "ids of floats": (
        lambda: mw.padding(ids=[[1.0, 0.0]], pad_id=0),
        mw.ArgumentError,
        "dtype float64",
    ),
    "ids and a word": (
        lambda: mw.padding(ids=[[1]], pad_id="<pad>"),
        mw.ArgumentError,
        "is a string",
    ),
    "additive keep": (
        lambda: mw.padding(keep=np.array([[0.0, -np.inf]])),
        mw.ArgumentError,
        "(mask == 0) for an additive",
    ),
    "keep of 2": (lambda: mw.padding(keep=[[0, 2]]), mw.ArgumentError, "contains 2"),
    "keep of three axes": (
        lambda: mw.padding(keep=np.ones((1, 1, 3), bool)),
        mw.ArgumentError,
        "(batch, tokens)",
    ),
    "document -2": (lambda: mw.documents(ids=[[0, -2]]), mw.ArgumentError, "contains -2"),
    "documents of text": (lambda: mw.documents(lengths="abc"), mw.ArgumentError, "of type str"),
    "documents of bytes": (lambda: mw.documents(lengths=b"ab"), mw.ArgumentError, "bytes"),
    "documents of a number": (
        lambda: mw.documents(lengths=np.array(3)),
        mw.ArgumentError,
        "one number",
    ),
    "documents too deep": (
        lambda: mw.documents(lengths=[[[1]]]),
        mw.ArgumentError,
        "list of lists",
    ),
    "both forms": (lambda: mw.documents(lengths=[[1]], ids=[[0]]), mw.ArgumentError, "exactly one"),
    # choices
    "negative key": (lambda: mw.keys([-1]), mw.ArgumentError, "from 0"),
    "key twice": (lambda: mw.keys([1, 1, 0]), mw.ArgumentError, "twice"),
    "keys mixed": (lambda: mw.keys([True, 2]), mw.ArgumentError, "mixes booleans"),
    "keys of words": (lambda: mw.keys({1, "a"}), mw.ArgumentError, "of type set"),
    "keys of a huge range": (lambda: mw.keys(range(10**25)), mw.ArgumentError, "2**62"),
    "keys of a long range": (lambda: mw.keys(range(0, 10**12, 2)), mw.ArgumentError, "at most"),
    "masked array": (
        lambda: mw.keys(np.ma.array([1, 2], mask=[0, 1])),
        mw.ArgumentError,
        "masked array",
    ),
    "object array": (lambda: mw.keys(np.array([1, None])), mw.ArgumentError, "other than numbers"),
    "a mask as data": (lambda: mw.keys(mw.causal()), mw.ArgumentError, "mask.on(q_len).dense()"),
    "a tensor that needs grad": (
        lambda: mw.dense(torch.ones(2, 2, requires_grad=True)),
        mw.ArgumentError,
        "detached",
    ),
    "bfloat16": (
        lambda: mw.dense(torch.ones(2, 2, dtype=torch.bfloat16)),
        mw.ArgumentError,
        "numpy cannot read",
    ),
    # relations and arrays
    "cycle": (lambda: mw.tree([1, 0]), mw.ArgumentError, "never ends"),
    "own parent": (lambda: mw.tree([0]), mw.ArgumentError, "never ends"),
    "parent outside": (lambda: mw.tree([-1, 7]), mw.ArgumentError, "contains 7"),
    "edge of three": (lambda: mw.graph([(0, 1, 2)]), mw.ArgumentError, "(query, key) pairs"),
    "negative node": (lambda: mw.graph([(0, -1)]), mw.ArgumentError, "node -1"),
    "directed of text": (lambda: mw.graph([], directed="no"), mw.ArgumentError, "True or False"),
    "border": (lambda: mw.image(2, 2, 1, border="wrap"), mw.ArgumentError, "'cut' or 'shift'"),
    "border of array": (
        lambda: mw.image(2, 2, 1, border=np.ones(2)),
        mw.ArgumentError,
        "'cut' or 'shift'",
    ),
    "float mask": (lambda: mw.dense([[1.0, 0.0]]), mw.ArgumentError, "dtype float64"),
    "dense of one axis": (lambda: mw.dense([True]), mw.ArgumentError, "(query, key)"),
    "dense with a wrong shape": (
        lambda: mw.dense([], shape=(2, 2)),
        mw.ArgumentError,
        "do not make shape",
    ),
    "dense with a huge shape": (
        lambda: mw.dense([], shape=[2**40, 2**40, 0]),
        mw.ArgumentError,
        "do not make shape",
    ),
    "three sizes": (lambda: mw.blocks([[1]], (1, 2, 3)), mw.ArgumentError, "3 numbers"),
    "no function": (lambda: mw.where(3), mw.ArgumentError, "function of b, h, q and k"),
    "a predicate that fails": (
        lambda: mw.where(lambda b, h, q, k: q.nothing).on(2).dense(),
        mw.ArgumentError,
        "the predicate failed",
    ),
    "a predicate of numbers": (
        lambda: mw.where(lambda b, h, q, k: q - k).on(2).dense(),
        mw.ArgumentError,
        "Return booleans",
    ),
    "a predicate of a wrong shape": (
        lambda: mw.where(lambda b, h, q, k: np.ones((3, 3), bool)).on(2).dense(),
        mw.ArgumentError,
        "broadcasts",
    ),
    "a predicate whose shape changes": (
        lambda: (
            mw.where(lambda b, h, q, k: (q >= k) if q.size == 1 else (q >= k) & (b >= 0))
            .on(3, batch=2)
            .dense()
        ),
        mw.ArgumentError,
        "depend on b and h alone",
    ),
    "no members": (lambda: mw.by_head([]), mw.ArgumentError, "empty"),
    "a mask for members": (lambda: mw.by_head(mw.causal()), mw.ArgumentError, "list of masks"),
    "a number among members": (lambda: mw.by_batch([3]), mw.ArgumentError, "list of masks"),
    # operators
    "and": (lambda: mw.causal() and mw.causal(), mw.TruthError, "Write & for `and`"),
    "if": (lambda: 1 if mw.causal() else 0, mw.TruthError, "&"),
    "array on the right": (
        lambda: mw.causal() & np.ones((2, 2), bool),
        mw.ArgumentError,
        "ndarray",
    ),
    "array on the left": (lambda: np.ones((2, 2), bool) | mw.causal(), mw.ArgumentError, "ndarray"),
    "number on the left": (lambda: 3 - mw.causal(), mw.ArgumentError, "dense(...)"),
    "tensor on the left": (lambda: torch.ones(2, 2) & mw.causal(), mw.ArgumentError, "Tensor"),
    "a mask as an array": (lambda: np.asarray(mw.causal()), mw.ArgumentError, "Bind it first"),
    "bound masks combined": (
        lambda: mw.causal().on(2) & mw.causal().on(2),
        mw.ArgumentError,
        "(a & b).on(n)",
    ),
    "a bound mask as truth": (lambda: bool(mw.causal().on(2)), mw.TruthError, ".equals(other)"),
    "a bound mask negated": (lambda: ~mw.causal().on(2), mw.ArgumentError, "(~a).on(n)"),
    "a mask and a bound one": (
        lambda: mw.causal() & mw.causal().on(2),
        mw.ArgumentError,
        "before binding",
    ),
    "10,000 nots": (
        lambda: reduce(lambda mask, _: ~mask, range(10_000), mw.causal()),
        mw.ArgumentError,
        "100 operators",
    ),
    "2,000 terms": (lambda: reduce(and_, [mw.causal()] * 2_000), mw.ArgumentError, "terms"),
    "a mask that doubles": (
        lambda: reduce(lambda mask, _: mask & ~mask, range(60), mw.causal()),
        mw.ArgumentError,
        "more than",
    ),
    "simplify of None": (lambda: mw.simplify(None), mw.ArgumentError, "expected an unbound mask"),
    # frames
    "negative q_len": (lambda: mw.causal().on(-1), mw.ArgumentError, "q_len=-1"),
    "q_len of float": (lambda: mw.causal().on(2.0), mw.ArgumentError, "of type float"),
    "q_len of None": (lambda: mw.causal().on(None), mw.ArgumentError, "None"),
    "huge q_len": (lambda: mw.causal().on(HUGE), mw.ArgumentError, "2**62"),
    "large q_len": (lambda: mw.causal().on(2**40), mw.FrameError, "beyond 2147483647"),
    "huge q_start": (lambda: mw.causal().on(2, q_start=1 << 20000), mw.ArgumentError, "2**62"),
    "array q_start": (lambda: mw.causal().on(2, q_start=np.ones(2)), mw.ArgumentError, "ndarray"),
    "padding longer than keys": (
        lambda: mw.padding(lengths=[5]).on(4),
        mw.FrameError,
        "lengths contains 5 but the frame has 4 keys",
    ),
    "keep of other keys": (
        lambda: mw.padding(keep=[[1, 1, 0]]).on(4),
        mw.FrameError,
        "keep has 3 columns but the frame has 4 keys. Pass kv_len=3",
    ),
    "ids of other keys": (
        lambda: mw.documents(ids=[[0] * 7]).on(8),
        mw.FrameError,
        "ids has 7 columns but the frame has 8 keys. Pass kv_len=7 or pad the ids with -1.",
    ),
    "documents beyond the keys": (
        lambda: mw.documents(lengths=[[5, 5]]).on(8),
        mw.FrameError,
        "add up to 10",
    ),
    "queries before the tokens": (
        lambda: mw.documents(ids=[[0, 0]]).on(4, kv_len=2),
        mw.FrameError,
        "a query has position -2",
    ),
    "flags of other queries": (
        lambda: mw.queries([[True, False]]).on(4),
        mw.FrameError,
        "where has 2 columns but the frame has queries at 0 … 3",
    ),
    "tree of other keys": (lambda: mw.tree([-1, 0]).on(3), mw.FrameError, "parents has 2 columns"),
    "graph beyond the keys": (lambda: mw.graph([(0, 9)]).on(4), mw.FrameError, "node 9"),
    "image of other keys": (lambda: mw.image(2, 3, 1).on(5), mw.FrameError, "makes 6 pixels"),
    "dense of other sizes": (lambda: mw.dense([[1]]).on(2), mw.FrameError, "1 × 1 cells"),
    "blocks of other sizes": (lambda: mw.blocks([[1]], 2).on(4), mw.FrameError, "needs 2 × 2"),
    "turned padding": (
        lambda: mw.padding(lengths=[3]).T.on(2, 4, q_start=0),
        mw.FrameError,
        "Under .T",
    ),
    "two batches": (
        lambda: (mw.padding(lengths=[1, 2]) & mw.documents(ids=[[0]] * 3)).on(2),
        mw.FrameError,
        "padding has 2 along batch but documents has 3",
    ),
    "batch against data": (
        lambda: mw.padding(lengths=[1, 2]).on(2, batch=3),
        mw.FrameError,
        "batch=3 but the mask's data has 2",
    ),
    "heads against data": (
        lambda: mw.by_head([mw.causal()] * 2).on(2, heads=4),
        mw.FrameError,
        "heads=4",
    ),
    # bound masks
    "dense too large": (lambda: mw.causal().on(10**6).dense(), mw.SizeError, "Use .spans"),
    "why outside": (lambda: mw.causal().on(2).why(0, 2), mw.FrameError, "0 to 1"),
    "why in nothing": (lambda: mw.causal().on(0).why(0, 0), mw.FrameError, "no query"),
    "why of text": (lambda: mw.causal().on(2).why("a", 0), mw.ArgumentError, "of type str"),
    "why of a float": (lambda: mw.causal().on(2).why(1.5, 0), mw.ArgumentError, "of type float"),
    "rows backwards": (lambda: mw.causal().on(4).rows(3, 1), mw.ArgumentError, "less than 3"),
    "rows outside": (lambda: mw.causal().on(4).rows(0, 9), mw.FrameError, "4 rows"),
    "more keys than there are": (
        lambda: mw.causal().on(4).rows(0, 2, kv_len=9),
        mw.FrameError,
        "4 keys",
    ),
    "step outside": (lambda: mw.causal().on(4).step(4), mw.FrameError, "0 … 3"),
    "unbound rows of text": (lambda: mw.causal().rows("a", 2), mw.ArgumentError, "of type str"),
    "unbound step before 0": (lambda: mw.causal().step(-1), mw.ArgumentError, "position=-1"),
    "tiles of 0": (lambda: mw.causal().on(4).tiles(0), mw.ArgumentError, "q_block=0"),
    "equals of another frame": (
        lambda: mw.causal().on(4).equals(mw.causal().on(5)),
        mw.FrameError,
        "same frame",
    ),
    "equals of an array": (
        lambda: mw.causal().on(2).equals(np.ones((2, 2))),
        mw.ArgumentError,
        "dense(...)",
    ),
    "equals of another batch": (
        lambda: mw.causal().on(4).equals(mw.padding(lengths=[3, 4])),
        mw.FrameError,
        "equals: the other mask does not fit",
    ),
    "spans of another frame": (
        lambda: mw.causal().on(3).spans | mw.causal().on(3, 5).spans,
        mw.ArgumentError,
        "same frame",
    ),
    "spans and None": (lambda: mw.causal().on(3).spans & None, mw.ArgumentError, "NoneType"),
    "spans' row outside": (lambda: mw.causal().on(3).spans.row(3), mw.FrameError, "out of range"),
    # text
    "unknown name": (lambda: mw.parse("casual()"), mw.TextError, "Did you mean causal?"),
    "no call": (lambda: mw.parse("causal"), mw.TextError, "Write causal(...)"),
    "code": (lambda: mw.parse("__import__('os').system('x')"), mw.TextError, "not allowed"),
    "attribute": (lambda: mw.parse("causal().__class__"), mw.TextError, ".__class__"),
    "lambda": (lambda: mw.parse("where(lambda b, h, q, k: True)"), mw.TextError, "Python function"),
    "comprehension": (lambda: mw.parse("keys([i for i in range(3)])"), mw.TextError, "not allowed"),
    "python's and": (lambda: mw.parse("causal() and causal()"), mw.TextError, "Write &, | and ~"),
    "xor": (lambda: mw.parse("causal() ^ causal()"), mw.TextError, "&, |, ~ or -"),
    "float": (lambda: mw.parse("chunks(2.5)"), mw.TextError, "The value 2.5"),
    "open bracket": (lambda: mw.parse("causal("), mw.TextError, "brackets"),
    "empty": (lambda: mw.parse("  "), mw.TextError, "empty"),
    "no text": (lambda: mw.parse(None), mw.TextError, "expected a string"),
    "null byte": (lambda: mw.parse("causal()\0"), mw.TextError, "not an expression"),
    "unknown argument": (lambda: mw.parse("chunks(sze=3)"), mw.TextError, "sze"),
    "argument twice": (lambda: mw.parse("window(back=1, back=2)"), mw.TextError, "twice"),
    "stars": (lambda: mw.parse("chunks(*[3])"), mw.TextError, "not allowed"),
    "two stars": (lambda: mw.parse("chunks(**3)"), mw.TextError, "** is not supported"),
    "bad atom in text": (lambda: mw.parse("chunks(0)"), mw.ArgumentError, "size=0"),
    "huge number in text": (lambda: mw.parse("chunks(" + "9" * 3000 + ")"), mw.TextError, "2**62"),
    "huge hex in text": (lambda: mw.parse("chunks(0x" + "f" * 9999 + ")"), mw.TextError, "2**62"),
    "huge range in text": (lambda: mw.parse("keys(range(10**9))"), mw.TextError, "not allowed"),
    "long range in text": (lambda: mw.parse("keys(range(0, 999999999, 2))"), mw.TextError, "MB"),
    "10 MB of text": (lambda: mw.parse("causal() & " * 900_000), mw.TextError, "characters"),
    "10,000 brackets": (
        lambda: mw.parse("(" * 10_000 + "causal()" + ")" * 10_000),
        mw.TextError,
        "nested",
    ),
    "10,000 lists": (
        lambda: mw.parse("keys(" + "[" * 10_000 + "]" * 10_000),
        mw.TextError,
        "nested",
    ),
    "10,000 tildes": (lambda: mw.parse("~" * 10_000 + "causal()"), mw.TextError, "operators"),
    "900 tildes": (lambda: mw.parse("~" * 900 + "causal()"), mw.MaskError, "deep"),
    "900 attributes": (lambda: mw.parse("causal()" + ".T" * 900), mw.MaskError, "deep"),
    "10,000 terms of text": (
        lambda: mw.parse("causal()" + " & causal()" * 10_000),
        mw.TextError,
        "",
    ),
    "by_head without a list": (lambda: mw.parse("by_head(causal())"), mw.TextError, "one list"),
    # JSON
    "invalid JSON": (lambda: mw.from_json("causal()"), mw.TextError, "invalid JSON"),
    "JSON of something else": (lambda: mw.from_json("[1]"), mw.TextError, "the keys"),
    "JSON of a later version": (
        lambda: mw.from_json('{"maskwright": 2, "mask": {}}'),
        mw.TextError,
        "version 2",
    ),
    "JSON of version true": (
        lambda: mw.from_json('{"maskwright": true, "mask": {"atom": "causal"}}'),
        mw.TextError,
        "version True",
    ),
    "JSON of no atom": (lambda: mw.from_json(wrap({"atom": "os"})), mw.TextError, "no atom"),
    "JSON of no operator": (
        lambda: mw.from_json(wrap({"xor": []})),
        mw.TextError,
        "not an operator",
    ),
    "JSON of an empty and": (lambda: mw.from_json(wrap({"and": []})), mw.TextError, "operator"),
    "JSON with a wrong argument": (
        lambda: mw.from_json(wrap({"atom": "chunks", "sze": 3})),
        mw.TextError,
        "sze",
    ),
    "JSON with a huge range": (
        lambda: mw.from_json(wrap({"atom": "keys", "where": {"range": [0, 10**12, 2]}})),
        mw.TextError,
        "MB",
    ),
    "JSON with runs that do not fit": (
        lambda: mw.from_json(
            wrap({"atom": "padding", "keep": {"runs": [[1, 10**12]], "shape": [1, 10**12]}})
        ),
        mw.TextError,
        "MB",
    ),
    "more than JSON holds": (
        lambda: mw.to_json(mw.documents(ids=np.arange(900_000)[None])),
        mw.TextError,
        "array file",
    ),
    "JSON 10,000 deep": (
        lambda: mw.from_json(
            '{"maskwright": 1, "mask": ' + '{"not": ' * 10_000 + "1" + "}" * 10_001
        ),
        mw.TextError,
        "deep",
    ),
    "JSON of 10 MB": (
        lambda: mw.from_json("[" + "1," * 5_000_000 + "1]"),
        mw.TextError,
        "characters",
    ),
    "JSON of 400,000 parts": (
        lambda: mw.from_json(wrap({"and": [{}] * 400_000})),
        mw.TextError,
        "10000 masks",
    ),
    "where to JSON": (
        lambda: mw.to_json(mw.where(lambda b, h, q, k: q >= k)),
        mw.TextError,
        "Python function",
    ),
    # batches
    "pad of text": (lambda: mw.pad("abc"), mw.ArgumentError, "token lists"),
    "pad of floats": (lambda: mw.pad([[1.5]]), mw.ArgumentError, "dtype float64"),
    "pad of nested lists": (lambda: mw.pad([[[1]]]), mw.ArgumentError, "2 dimensions"),
    "pad on a wrong side": (
        lambda: mw.pad([[1]], side="top"),
        mw.ArgumentError,
        "'right' or 'left'",
    ),
    "pad too short": (lambda: mw.pad([[1, 2]], length=1), mw.ArgumentError, "length=1"),
    "pad too long": (lambda: mw.pad([[1]], length=10**13), mw.SizeError, "tokens"),
    "pad words with a number": (lambda: mw.pad([["a"]], pad_id=0), mw.ArgumentError, "'<pad>'"),
    "pad words and numbers": (lambda: mw.pad([["a", 1]], pad_id="p"), mw.ArgumentError, "mixes"),
    "pad with a huge token": (lambda: mw.pad([[2**63]]), mw.ArgumentError, "2**62"),
    "pad with an array": (lambda: mw.pad([[1]], pad_id=np.ones(2)), mw.ArgumentError, "pad_id"),
    "pad of a huge word": (
        lambda: mw.pad([["a" * 10**6]], pad_id="p"),
        mw.ArgumentError,
        "characters",
    ),
    "pack too short": (lambda: mw.pack([[1, 2, 3]], length=2), mw.ArgumentError, "Split it"),
    "pack of length 0": (lambda: mw.pack([[]], length=0), mw.ArgumentError, "length=0"),
}


def wrap(mask: Any) -> str:
    return json.dumps({"maskwright": 1, "mask": mask})


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_one_clear_error(name: str) -> None:
    run, kind, says = BAD[name]
    with pytest.raises(kind) as caught:
        run()
    message = str(caught.value)
    assert says in message
    assert len(message) < 400
    assert "\n" not in message
    assert re.fullmatch(r"(?s)\S.*[.?)] \S.*[.?)]", message), "what is wrong, then what to do"


def test_bad_input_takes_little_memory() -> None:
    """All of it, one after the other, in a process that may not use 256 MB more."""
    code = (
        "from tests.core.test_bad_input import BAD, limit; limit()\n"
        "for name, (run, kind, says) in BAD.items():\n"
        "    try: run()\n"
        "    except kind: continue\n"
        "    raise SystemExit(name + ' raised nothing')\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr


def limit() -> None:
    """Refuse this process more than 256 MB of new data."""
    pages = int(open("/proc/self/statm").read().split()[5])  # noqa: SIM115, PTH123
    used = pages * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_DATA, (used + 2**28, used + 2**28))
