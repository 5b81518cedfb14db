"""`picture`, and what notebooks display."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import maskwright as mw

if TYPE_CHECKING:
    from pathlib import Path


def heads(count: int, size: int = 8) -> mw.BoundMask:
    return mw.by_head([mw.window(back=back) for back in range(count)]).on(size)


def test_the_ending_decides_the_form(tmp_path: Path) -> None:
    bound = mw.causal().on(4)
    starts = {"a.svg": b"<svg", "a.png": b"\x89PNG", "a.html": b"<!doctype", "a.txt": b"causal()"}
    for name, start in starts.items():
        given = mw.picture(bound, tmp_path / name)
        written = (tmp_path / name).read_bytes()
        assert written.startswith(start)
        assert written.rstrip() == (given if isinstance(given, bytes) else given.encode()).rstrip()


def test_masks_differences_walkthroughs_and_matrices_are_drawn() -> None:
    bound = mw.causal().on(3)
    for what in (bound, (bound, mw.everything().on(3)), mw.walkthrough("a b"), np.eye(3)):
        assert mw.picture(what)[:4] == "<svg"
    text = mw.picture(np.eye(2), form="text", title="weights", rows=["a", "b"])
    assert text[:7] == "weights"


@pytest.mark.parametrize(
    ("what", "options", "match"),
    [
        (mw.causal(), {}, r"\.on\(8\)"),
        (mw.causal().on(2), {"file": "a.gif"}, r"a\.gif.*\.svg.*got \.gif"),
        (mw.causal().on(2), {"form": "pdf"}, "form.*pdf"),
        (
            mw.causal().on(2),
            {"form": "svg", "file": "a.PNG"},
            r"'svg' does not write \.png.*a\.PNG",
        ),
        ("causal()", {}, "got str"),
        ((mw.causal().on(2), mw.causal()), {}, "two bound masks"),
        (np.zeros((2, 2, 2)), {}, r"two axes.*\(2, 2, 2\)"),
    ],
)
def test_other_arguments_are_refused(what: Any, options: dict[str, Any], match: str) -> None:
    with pytest.raises(mw.ArgumentError, match=match):
        mw.picture(what, **options)


def test_pictures_with_numpy_only() -> None:
    code = (
        "import sys; sys.modules.update(dict.fromkeys(('wcwidth', 'resvg_py', 'torch')))\n"
        "import maskwright as mw\n"
        "bound = mw.causal().on(4)\n"
        "for form in ('svg', 'html'):\n"
        "    mw.picture(bound, form=form, tokens=['注', 'e\u0301', '👩', ''])\n"
        "assert '<details>' in bound._repr_html_()\n"
        "for form in ('text', 'png'):\n"
        "    try: mw.picture(bound, form=form)\n"
        "    except mw.MissingError as error: assert 'maskwright[draw]' in str(error)\n"
        "    else: raise AssertionError(form)\n"
    )
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)


# ── notebooks ────────────────────────────────────────────────────────────────────────────────────


def test_a_bound_mask_displays_four_planes() -> None:
    few, many = heads(4)._repr_svg_(), heads(6)._repr_svg_()
    assert few is not None
    assert many is not None
    assert "not drawn" not in few
    assert "2 more batch rows and heads are not drawn" in many
    assert [f">head {n}<" in many for n in range(5)] == [True] * 4 + [False]
    page = heads(6)._repr_html_() or ""
    assert many in page
    assert "query 1 attends to keys 0 to 1" in page
    assert "<script" not in page


def test_a_mask_too_large_for_a_picture_has_none() -> None:
    bound = mw.keys(range(0, 64, 2)).on(2**20)
    assert bound._repr_svg_() is None
    assert bound._repr_html_() is None


def test_pictures_display_themselves() -> None:
    bound = mw.causal().on(3)
    drawn: Any = {form: mw.picture(bound, form=form) for form in ("text", "svg", "html", "png")}  # type: ignore[arg-type]
    assert drawn["svg"]._repr_svg_() == drawn["svg"]
    assert drawn["svg"]._repr_html_() is None
    assert drawn["png"]._repr_png_() == drawn["png"]
    assert drawn["text"]._repr_html_() == f"<pre>{drawn['text']}</pre>"
    frame = drawn["html"]._repr_html_()
    assert "<iframe srcdoc=" in frame
    assert "<script" not in frame  # escaped, inside of the frame
    assert all(len(repr(picture)) < 60 for picture in drawn.values())


def test_walkthroughs_and_reports_display_themselves() -> None:
    walk = mw.walkthrough("a <b>", mw.causal())
    assert "<svg" in walk._repr_html_()
    assert len(repr(walk)) < 120
    comparison = mw.causal().on(3).equals(mw.window(back=1))
    assert "visible only in the left mask" in (comparison._repr_html_() or "")
    assert "<svg" in (comparison._repr_html_() or "")
    assert mw.causal().on(3).equals(mw.causal())._repr_html_() is None
    found = mw.recognize(np.tri(4, dtype=bool))
    assert "<svg" in found._repr_html_()
    assert "causal()" in found._repr_html_()
    report = mw.lint([[1, 1], [1, 1]], causal=True)
    assert "future-visible" in report._repr_html_()
    assert "<table" not in mw.lint(mw.causal(), q_len=4)._repr_html_()


def test_an_audit_displays_its_report() -> None:
    torch = pytest.importorskip("torch")
    report = mw.audit(lambda x: x.cumsum(1), torch.randn(1, 4, 2), expects="causal")
    page = report._repr_html_()
    assert "<svg" in page
    assert "<html" not in page
