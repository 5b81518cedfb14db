"""The recognize panel: arrays from files and pasted, their expressions and findings."""

from __future__ import annotations

import base64
import io
from typing import Any

import numpy as np
import pytest

import maskwright as mw
from maskwright.messages import render
from tests._helpers.browser import (
    Locator,
    Visit,
    drawn_cells,
    expect,
    expression_box,
    panel_of,
    visible_cells,
)


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.fixture
def panel(visit: Visit) -> Locator:
    return panel_of(visit(expression="everything()", text="a b c"), "recognize")


def choose(panel: Locator, name: str, data: bytes) -> None:
    file = {"name": name, "mimeType": "application/octet-stream", "buffer": data}
    panel.locator("input[type=file]").set_input_files(file)  # type: ignore[arg-type]


def paste(panel: Locator, text: str) -> None:
    panel.get_by_role("textbox", name="Or paste an array").fill(text)
    panel.get_by_role("button", name="Recognize", exact=True).click()


def expect_expression(panel: Locator, text: str) -> None:
    expect(panel.locator(".formula code")).to_have_text(text)
    expect(panel.locator(".error")).to_have_count(0)


def test_the_expression_of_a_file_is_used(panel: Locator) -> None:
    page = panel.page
    array = (mw.causal() & mw.window(back=2)).on(7).dense()[0, 0]
    found = mw.recognize(array)
    choose(panel, "mask.npy", npy(array))
    expect_expression(panel, repr(found.mask))
    expect(panel.get_by_role("heading", name="mask.npy")).to_be_visible()
    expect(panel.locator("dd")).to_have_text(["(7, 7)", "bool", str(found.convention)])
    expect(panel.locator(".cell-frame")).to_be_visible()
    assert drawn_cells(panel, "seen") == visible_cells(array)
    panel.get_by_role("button", name="Use this expression").click()
    expect(expression_box(page)).to_have_value(repr(found.mask))
    expect(page.locator("#size-summary")).to_have_text("7 queries × 7 keys")
    assert drawn_cells(page.locator("#stage"), "seen") == visible_cells(array)
    page.locator("#toast").get_by_role("button", name="Undo").click()
    expect(page.locator("#text")).to_have_value("a b c")


def test_a_file_is_dropped_and_a_zipped_one_selected(panel: Locator) -> None:
    bias = np.where(mw.causal().on(6).dense(), 0, -np.inf).astype(np.float32)
    panel.page.evaluate(
        "(file) => probes.dropFile(file)", ["bias.npy", base64.b64encode(npy(bias)).decode()]
    )
    expect(panel.get_by_role("heading", name="bias.npy")).to_be_visible()
    expect_expression(panel, "causal()")
    expect(panel.locator("dl")).to_contain_text(str(mw.recognize(bias).convention))
    file = io.BytesIO()
    np.savez(file, mask=np.ones((5, 5), bool))
    choose(panel, "mask.npz", file.getvalue())
    expect(panel.get_by_role("heading", name="mask.npz")).to_be_visible()
    expect_expression(panel, "everything()")


def test_pasted_arrays_are_recognized(panel: Locator) -> None:
    for text, size in {
        "[[1, 0, 0], [1, 1, 0], [1, 1, 1]]": 3,
        "1000\n1100\n1110\n1111": 4,
        "array([[ True, False],\n       [ True,  True]])": 2,
        "tensor([[0., -inf, -inf], [0., 0., -inf], [0., 0., 0.]], device='cpu')": 3,
        "■···\n■■··\n■■■·\n■■■■": 4,
    }.items():
        paste(panel, text)
        expect(panel.locator("dd").first).to_have_text(f"({size}, {size})")
        expect_expression(panel, "causal()")


def test_findings_are_shown_in_both_languages(panel: Locator) -> None:
    array = np.triu(np.ones((4, 4), bool))
    paste(panel, str(array))
    panel.get_by_role("combobox", name="Should it be causal?").select_option("yes")
    found = mw.lint(array, to="drop", causal=True)
    items = panel.locator(".findings li")
    expect(items).to_have_text([f"{finding.code} {finding.message}" for finding in found])
    panel.page.get_by_role("button", name="中文").click()
    expect(items).to_have_text([f"{each.code} {render(each.reason, 'zh')}" for each in found])


def test_an_invalid_array_removes_the_last_result(visit: Visit, panel: Locator) -> None:
    visit.expected_statuses.add(400)
    files = {"wrong.npy": b"no array", "large.npy": npy(np.ones((1000, 1000), bool))}
    texts = {"[[1, 0], [1]]": "", "[[1, 0], [1, 1]": "", "1 0\n1 x": "“x”", "[[1, ..., 0]]": "…"}
    for given, value in {**texts, "wrong.npy": "", "large.npy": "977 KiB"}.items():
        paste(panel, "1 0\n1 1")
        expect_expression(panel, "causal()")
        if given in files:
            choose(panel, given, files[given])
        else:
            paste(panel, given)
        expect(panel.locator(".error")).to_contain_text(value)
        expect(panel.locator(".panel-body")).to_be_empty()


def test_the_offending_value_is_named(panel: Locator) -> None:
    paste(panel, "0 -1e9 -1e9\n0 0 -1e9\n0 5 0")
    expect(panel.locator(".prose").last).to_contain_text("5 at (2, 1)")
    expect(panel.locator(".findings li")).to_contain_text(["5"])
    paste(panel, "0.1 0.2\n0.3 0.4")
    expect(panel.locator(".prose").last).to_contain_text("0.1 at (0, 0)")
    expect(panel.get_by_role("heading", name="Findings")).to_have_count(0)


def test_findings_do_not_contradict_the_convention(panel: Locator) -> None:
    panel.get_by_role("button", name="Try an example").click()
    expect_expression(panel, "causal()")
    expect(panel.locator(".pairs")).to_contain_text("0 keeps")
    expect(panel.get_by_role("heading", name="Findings")).to_be_visible()
    expect(panel.locator(".findings")).to_have_count(0)
