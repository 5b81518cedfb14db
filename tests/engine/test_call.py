"""`Call`: one constructor, and its copies with other tensors."""

from __future__ import annotations

import ast
from pathlib import Path

import torch

import maskwright as mw
from maskwright.engine.call import Call, Mode
from tests._helpers.calls import call_of

SOURCE = Path(mw.__file__).parent


def functions_that_call(name: str) -> set[tuple[str, str]]:
    """File and function of each call of a name in the package."""
    found = set()
    for path in SOURCE.rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_text())):
            if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
                continue
            for node in ast.walk(function):
                if isinstance(node, ast.Call) and getattr(node.func, "id", None) == name:
                    found.add((path.name, function.name))
    return found


def test_a_call_is_constructed_in_one_function() -> None:
    assert functions_that_call("Call") == {("call.py", "read_call")}


def call_with_scores() -> Call:
    q, k, v = (torch.randn(2, heads, 6, 4) for heads in (4, 2, 2))
    bias = mw.bias.alibi(torch.rand(4, requires_grad=True)) + mw.bias.per_key([0.0] * 6)
    return call_of((q, k, v), mw.causal(), bias=bias, sinks=torch.randn(4), softcap=3.0)


def test_tensors_are_taken_out_and_put_back() -> None:
    call = call_with_scores()
    assert [tuple(x.shape) for x in call.tensors[3:]] == [(4, 11), (1, 1, 1, 6), (4,)]
    empty = call.without_tensors()
    assert not any(isinstance(x, torch.Tensor) for x in empty.tensors)
    same = empty.with_tensors(call.tensors)
    assert all(a is b for a, b in zip(same.tensors, call.tensors, strict=True))
    assert (same.scores.layout(), same.scores.softcap) == (call.scores.layout(), 3.0)
    plain = call_of(call.tensors[:3], mw.causal())
    assert plain.without_tensors().with_tensors(call.tensors[:3]).q is call.q


def test_copies_leave_a_call_as_it_is() -> None:
    call = call_with_scores()
    changed = call.changed(mode=Mode.PARTIAL, seed=3)
    assert (call.mode, call.seed, changed.mode, changed.seed) == (Mode.EAGER, 0, Mode.PARTIAL, 3)
    assert changed.scores is call.scores


def test_what_a_call_depends_on() -> None:
    x = torch.randn(1, 2, 8, 4, dtype=torch.bfloat16, requires_grad=True)
    call = call_of((x, x, x), mw.causal(), return_lse=True)
    assert (call.dtype, call.dtypes.kv, call.dtypes.out) == ("bfloat16",) * 3
    assert (call.device, call.scale, call.requires_grad) == ("cpu", 0.5, True)
    assert call.mask == mw.causal().on(8, heads=2)
    with torch.no_grad():
        assert not call_of((x, x, x)).requires_grad
