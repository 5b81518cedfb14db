"""The recognise panel: an array by file, by drop or pasted, is named and looked over."""

from __future__ import annotations

import base64
import io
from typing import TYPE_CHECKING, Any

import numpy as np

import maskwright as mw
from maskwright.messages import render
from tests.explore.browser import cells_of, expect, expression_box, panel_of

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page

    from tests.explore.browser import Visit

DROP = """([name, data]) => {
  const bytes = Uint8Array.from(atob(data), (letter) => letter.charCodeAt(0));
  const transfer = new DataTransfer();
  transfer.items.add(new File([bytes], name));
  const place = document.querySelector("#panel-recognise .drop");
  for (const type of ["dragenter", "dragover", "drop"]) {
    place.dispatchEvent(
      new DragEvent(type, { dataTransfer: transfer, bubbles: true, cancelable: true }));
  }
}"""


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def opened(visit: Visit) -> tuple[Page, Locator]:
    page = visit(panel="recognise", expression="everything()", text="a b c")
    return page, panel_of(page, "recognise")


def choose(panel: Locator, name: str, data: bytes) -> None:
    file = {"name": name, "mimeType": "application/octet-stream", "buffer": data}
    panel.locator("input[type=file]").set_input_files(file)  # type: ignore[arg-type]


def paste(panel: Locator, text: str) -> None:
    panel.get_by_role("textbox", name="Or paste an array").fill(text)
    panel.get_by_role("button", name="Recognise", exact=True).click()


def test_a_file_is_chosen_and_its_expression_used(visit: Visit) -> None:
    page, panel = opened(visit)
    array = (mw.causal() & mw.window(back=2)).on(7).dense()[0, 0]
    choose(panel, "mask.npy", npy(array))
    result = panel.locator(".formula code")
    expect(result).to_have_text(repr(mw.recognize(array).mask))
    expect(panel.get_by_role("heading", name="mask.npy")).to_be_visible()
    expect(panel.locator("dd")).to_have_text(
        ["(7, 7)", "bool", str(mw.recognize(array).convention)]
    )
    expect(panel.locator(".cell-frame")).to_be_visible()
    assert cells_of(panel, "seen") == set(map(tuple, np.argwhere(array).tolist()))
    panel.get_by_role("button", name="Use this expression").click()
    expect(expression_box(page)).to_have_value(result.inner_text())
    expect(page.locator("#frame-says")).to_have_text("7 queries × 7 keys")
    assert cells_of(page.locator("#stage"), "seen") == set(map(tuple, np.argwhere(array).tolist()))


def test_a_file_is_dropped_and_then_a_zipped_one_chosen(visit: Visit) -> None:
    page, panel = opened(visit)
    bias = np.where(mw.causal().on(6).dense(), 0, -np.inf).astype(np.float32)
    page.evaluate(DROP, ["bias.npy", base64.b64encode(npy(bias)).decode()])
    expect(panel.get_by_role("heading", name="bias.npy")).to_be_visible()
    expect(panel.locator(".formula code")).to_have_text("causal()")
    expect(panel.locator("dl")).to_contain_text(str(mw.recognize(bias).convention))
    expect(panel.locator("dl")).to_contain_text("(1, 1, 6, 6)")
    file = io.BytesIO()
    np.savez(file, mask=np.ones((5, 5), bool))
    choose(panel, "mask.npz", file.getvalue())
    expect(panel.get_by_role("heading", name="mask.npz")).to_be_visible()
    expect(panel.locator(".formula code")).to_have_text("everything()")


def test_a_pasted_array_is_recognised(visit: Visit) -> None:
    _, panel = opened(visit)
    for text in (
        "[[1, 0, 0], [1, 1, 0], [1, 1, 1]]",
        "1000\n1100\n1110\n1111",
        "array([[ True, False],\n       [ True,  True]])",
        "tensor([[0., -inf, -inf], [0., 0., -inf], [0., 0., 0.]], device='cpu')",
        "■···\n■■··\n■■■·\n■■■■",
    ):
        size = text.count("\n") + 1 if "\n" in text else 3
        paste(panel, text)
        expect(panel.locator("dd").first).to_have_text(f"({size}, {size})")
        expect(panel.locator(".formula code")).to_have_text("causal()")


def test_what_is_wrong_with_an_array_is_said(visit: Visit) -> None:
    _, panel = opened(visit)
    array = np.triu(np.ones((4, 4), bool))
    paste(panel, str(array))
    panel.get_by_role("combobox", name="Meant to be causal?").select_option("yes")
    (finding,) = mw.lint(array, causal=True)
    expect(panel.locator(".findings li")).to_contain_text([finding.code])
    expect(panel.locator(".findings li")).to_contain_text([finding.message])


def test_findings_follow_the_language(visit: Visit) -> None:
    page, panel = opened(visit)
    array = np.triu(np.ones((4, 4), bool), 1)
    paste(panel, str(array))
    (finding,) = mw.lint(array)
    expect(panel.locator(".findings li")).to_contain_text([finding.message])
    page.get_by_role("button", name="中文").click()
    expect(panel.locator(".findings li")).to_contain_text([render(finding.reason, "zh")])


def test_a_paste_that_is_no_array_is_refused_in_words(visit: Visit) -> None:
    _, panel = opened(visit)
    for text, says in {
        "": "There is no number here.",
        "[[1, 0], [1]]": "The rows are of different length.",
        "[[1, 0], [1, 1]": "The brackets do not pair.",
        "1 0\n1 x": "“x” is no number",
        "[[1, ..., 0], [1, ..., 1]]": "leaves cells out",
    }.items():
        paste(panel, text)
        expect(panel.locator(".error")).to_contain_text(says)


def test_files_that_are_no_masks_are_refused_in_words(visit: Visit) -> None:
    visit.refusals.add(400)
    _, panel = opened(visit)
    choose(panel, "wrong.npy", b"this is no array")
    expect(panel.locator(".error")).to_be_visible()
    choose(panel, "large.npy", npy(np.ones((1000, 1000), bool)))
    expect(panel.locator(".error")).to_contain_text("large.npy has 977 KiB, more than the 760 KiB")
    choose(panel, "fine.npy", npy(np.tril(np.ones((3, 3), bool))))
    expect(panel.locator(".formula code")).to_have_text("causal()")
    expect(panel.locator(".error")).to_have_count(0)
