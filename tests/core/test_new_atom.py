"""Adding an atom: a class, an oracle rule and an entry in ATOMS are enough for everything else."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import maskwright as mw
from maskwright.core.atoms import ATOMS
from maskwright.core.expr import Atom
from maskwright.core.oracle import rule, truth
from maskwright.targets.lower import lower

if TYPE_CHECKING:
    from maskwright.core.evaluate import View
    from maskwright.core.frame import Frame
    from maskwright.core.spans import Spans


@dataclass(frozen=True, repr=False)
class Anti(Atom):
    """Keys k with q + k <= limit: the cells above an anti-diagonal."""

    name = "anti"
    positional = ("limit",)
    limit: int
    strict: bool = False

    def _spans(self, view: View) -> Spans:
        stop = self.limit - view.queries + (not self.strict)
        return view.band(0, stop[None, None])


@rule.register(Anti)
def _(mask: Anti, frame: Frame) -> Any:
    return lambda b, h, q, k: q + k < mask.limit + (not mask.strict)


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(ATOMS, "anti", Anti)  # type: ignore[arg-type]


MASKS = [Anti(4), Anti(4, strict=True), Anti(3) & mw.causal(), ~Anti(2) | mw.keys([0]), Anti(3).T]


@pytest.mark.parametrize("mask", MASKS, ids=repr)
def test_text_and_json_return_same_mask(mask: mw.Mask) -> None:
    assert mw.parse(repr(mask)) == mask
    assert mw.from_json(mw.to_json(mask)) == mask
    assert hash(mw.parse(repr(mask))) == hash(mask)


def test_text_and_json_show_fields() -> None:
    assert repr(Anti(4)) == "anti(4)"
    assert repr(Anti(4, strict=True)) == "anti(4, strict=True)"
    assert json.loads(mw.to_json(Anti(4)))["mask"] == {"atom": "anti", "limit": 4}


@pytest.mark.parametrize("mask", MASKS, ids=repr)
def test_every_result_is_that_of_oracle(mask: mw.Mask) -> None:
    bound = mask.on(5)
    cells = np.array(truth(mask, bound.frame))
    assert np.array_equal(bound.dense(), cells)
    assert np.array_equal(mw.simplify(mask).on(5).dense(), cells)
    assert bound.count() == cells.sum()
    assert bound.equals(mw.dense(cells))
    for q in range(5):
        for k in range(5):
            assert bound.why(q, k).visible == cells[0, 0, q, k]


def test_simplify_applies_laws_of_sets() -> None:
    assert mw.simplify(Anti(3) & Anti(3) & mw.everything()) == Anti(3)
    assert mw.simplify(mw.causal() & Anti(3)) == mw.simplify(Anti(3) & mw.causal())


def test_why_names_atom_in_every_language() -> None:
    why = (Anti(1) & mw.causal()).on(3).why(2, 1)
    for lang in ("en", "zh"):
        assert "anti(1)" in why.text(lang)
        assert "anti.masked" in why.text(lang)


@pytest.mark.parametrize("target", ["numpy", "additive", "torch.bool", "torch.additive"])
@pytest.mark.parametrize("mask", MASKS[:3], ids=repr)
def test_dense_targets(mask: mw.Mask, target: str) -> None:
    pytest.importorskip("torch" if target.startswith("torch") else "numpy")
    array = np.asarray(lower(mask, target, q_len=5))
    visible = array if array.dtype == bool else array == 0
    assert np.array_equal(
        np.broadcast_to(visible, (1, 1, 5, 5)), np.array(truth(mask, mask.on(5).frame))
    )


def test_draw_and_code() -> None:
    bound = Anti(3).on(4)
    assert "anti(3)" in mw.picture(bound, form="svg")
    assert str(bound).startswith("anti(3)\n")
    assert "anti(3)" in mw.explain_lowering(Anti(3), "numpy", q_len=4)


def test_lint() -> None:
    codes = [finding.code for finding in mw.lint(Anti(1), q_len=4)]
    assert "empty-row" in codes
