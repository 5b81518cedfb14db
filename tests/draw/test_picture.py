from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import numpy as np
import pytest

import maskwright as mw

if TYPE_CHECKING:
    from pathlib import Path


def test_the_ending_tells_the_form(tmp_path: Path) -> None:
    bound = mw.causal().on(4)
    starts = {"a.svg": b"<svg", "a.png": b"\x89PNG", "a.html": b"<!doctype", "a.txt": b"causal()"}
    for name, start in starts.items():
        given = mw.picture(bound, tmp_path / name)
        written = (tmp_path / name).read_bytes()
        assert written.startswith(start)
        assert written.rstrip() == (given if isinstance(given, bytes) else given.encode()).rstrip()


def test_all_that_can_be_drawn() -> None:
    bound = mw.causal().on(3)
    for what in (bound, (bound, mw.everything().on(3)), mw.walkthrough("a b"), np.eye(3)):
        assert str(mw.picture(what)).startswith("<svg")
    text = mw.picture(np.eye(2), form="text", title="weights", rows=["a", "b"])
    assert str(text).startswith("weights")


def test_what_can_not_be_drawn_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(mw.ArgumentError, match=r"Bind it to one: \.on\(8\)"):
        mw.picture(mw.causal())
    with pytest.raises(mw.ArgumentError, match=r"the ending \.gif tells no format"):
        mw.picture(mw.causal().on(2), tmp_path / "a.gif")
    with pytest.raises(mw.ArgumentError, match="There is no form pdf"):
        mw.picture(mw.causal().on(2), form="pdf")
    with pytest.raises(mw.ArgumentError, match="can't be made of str"):
        mw.picture("causal()")
    with pytest.raises(mw.ArgumentError, match="a difference is of two bound masks"):
        mw.picture((mw.causal().on(2), mw.causal()))
    with pytest.raises(mw.ArgumentError, match="needs two axes"):
        mw.picture(np.zeros((2, 2, 2)))
    assert not list(tmp_path.iterdir())


def test_all_but_png_needs_numpy_alone() -> None:
    code = (
        "import sys; sys.modules['wcwidth'] = sys.modules['matplotlib'] = None\n"
        "import maskwright as mw\n"
        "for form in ('text', 'svg', 'html'): mw.picture(mw.causal().on(2), form=form)\n"
        "mw.causal().on(2)._repr_html_()"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
