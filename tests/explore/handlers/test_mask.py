"""The handlers of the mask card: the values of the library, in the form that the page reads."""

from __future__ import annotations

import json
from typing import Any

import pytest

import maskwright as mw
from maskwright.explore.handlers import dispatch
from maskwright.explore.schema import PAD
from tests._helpers.explore_requests import WORDS, kinds, on, post, post_error


def test_sentences_are_padded_on_either_side() -> None:
    assert post("tokens", text="a b c\n\nd") == {
        "tokens": [["a", "b", "c"], ["d", PAD, PAD]],
        "lengths": [3, 1],
    }
    assert post("tokens", text="a b c\nd", side="left")["tokens"][1] == [PAD, PAD, "d"]
    assert post("tokens", text=f"a {PAD}")["lengths"] == [1]
    assert post("tokens", text=" \n ") == {"tokens": [], "lengths": []}


@pytest.mark.parametrize("text", ["a\n" * 9, "a " * 257, "a" * 65])
def test_long_text_is_refused(text: str) -> None:
    post_error("tokens", 413, text=text)


def test_padding_of_tokens_is_masked() -> None:
    found = post("mask", subject=on("causal()", tokens=WORDS), batch=0)
    assert found["expression"] == "causal() & padding(keep=[[1, 1, 0], [1, 1, 1]])"
    assert found["sizes"] == "3 queries × 3 keys, batch 2"
    assert found["frame"] == {"q_len": 3, "kv_len": 3, "batch": 2, "heads": 1, "q_start": 0}
    assert found["planes"] == [2, 1]
    assert (found["count"], found["cells"]) == (11, 18)
    assert found["density"] == 11 / 18
    assert (found["empty_rows"], found["unseen_keys"]) == (0, 0)
    assert kinds(found["grid"]) == [[2, 0, 0], [2, 2, 0], [2, 2, 0]]
    assert found["grid"]["rows"] == found["grid"]["columns"] == WORDS[0]
    assert "query 2 attends to keys 0 to 1" in found["description"]
    bare = post("mask", subject=on("causal()", tokens=WORDS, padding=False))
    assert bare["expression"] == "causal()"
    assert kinds(bare["grid"])[2] == [2, 2, 2]


def test_only_real_tokens_are_counted_as_unseen() -> None:
    subject = on("causal() - keys([0, 2])", tokens=WORDS)
    found = post("mask", subject=subject)
    assert found["unseen_keys"] == 1 + 2  # key 2 of the first sequence is padding
    bare = post("mask", subject={**subject, "padding": False})
    assert bare["unseen_keys"] == 1 + 2


def test_counts_are_of_all_sequences_and_heads() -> None:
    found = post("mask", subject=on("causal() - keys([0])", size=4, batch=3, heads=2))
    bound = mw.parse("causal() - keys([0])").on(4, batch=3, heads=2)
    assert found["planes"] == [1, 1]
    assert found["count"] == bound.count() == 36
    assert (found["empty_rows"], found["unseen_keys"]) == (6, 6)


def test_many_tokens_are_shown_as_tiles_or_in_part() -> None:
    whole = post("mask", subject=on("causal()", size=2**20), most=4)
    assert whole["grid"]["block"] == [2**18, 2**18]
    assert kinds(whole["grid"]) == [[1, 0, 0, 0], [2, 1, 0, 0], [2, 2, 1, 0], [2, 2, 2, 1]]
    part = post(
        "mask",
        subject=on("causal()", size=2**20),
        view={"row": 1000, "rows": 2, "key": 999, "keys": 3},
    )
    assert part["grid"]["start"] == [1000, 999]
    assert kinds(part["grid"]) == [[2, 2, 0], [2, 2, 2]]
    assert part["count"] == 2**19 * (2**20 + 1)


def test_a_mask_of_too_many_intervals_is_refused() -> None:
    error = post_error("mask", 413, subject=on("stride(2)", size=2**20))
    assert "fewer tokens" in error["message"]
    assert "zoom in" in error["message"]
    assert error["kind"] == "SizeError"


def test_a_part_of_a_large_mask_has_no_counts() -> None:
    view = {"row": 4, "rows": 8, "key": 0, "keys": 8}
    found = post("mask", subject=on("stride(4)", size=2**14), view=view)
    assert found["count"] is found["density"] is found["empty_rows"] is None
    assert kinds(found["grid"])[0] == [2, 0, 0, 0, 2, 0, 0, 0]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("casual()", "TextError"),
        ("", "TextError"),
        ("causal(", "TextError"),
        ("window(back=-1)", "ArgumentError"),
        ("padding(lengths=[99])", "FrameError"),
        ("__import__('os').system('true')", "TextError"),
        ("~" * 5000 + "causal()", "TextError"),
        ("(" * 5000, "TextError"),
        ("dense([[1, 0], [1, 1]])", "FrameError"),
    ],
)
def test_an_invalid_expression_is_refused(text: str, kind: str) -> None:
    assert post_error("mask", 422, subject=on(text))["kind"] == kind


def test_an_error_says_where_it_is() -> None:
    text = " causal() & padding(ids=[['猫', '<PAD>']], pad_id='<PAD>') & casual()"
    first, stop = post_error("mask", 422, subject=on(text))["at"]
    assert text[first:stop].startswith("casual")
    assert post_error("mask", 422, subject=on("padding(lengths=[99])"))["at"] is None


@pytest.mark.parametrize(("batch", "head"), [(1, 0), (0, 1)])
def test_a_plane_that_is_not_there_is_refused(batch: int, head: int) -> None:
    for name, more in (("mask", {}), ("steps", {}), ("generate", {}), ("picture", {}),
                       ("why", {"query": 0, "key": 0}),
                       ("compare", {"others": ["everything()"]})):  # fmt: skip
        error = post_error(name, 422, subject=on("causal()"), batch=batch, head=head, **more)
        assert ("batch 1" if batch else "head 1") in error["message"]


def test_a_view_outside_the_mask_is_refused() -> None:
    view = {"row": 4, "rows": 5, "key": 0, "keys": 8}
    assert "view" in post_error("mask", 422, subject=on("causal()"), view=view)["message"]


def test_too_many_sequences_are_refused() -> None:
    text = f"padding(lengths={[8] * 65})"
    assert "65 sequences" in post_error("mask", 413, subject=on(text))["message"]


def test_a_shorter_text_is_offered() -> None:
    assert post("mask", subject=on("causal() & window(back=3)"))["simplified"] == "window(back=3)"
    assert post("mask", subject=on("causal()"))["simplified"] is None


# ── sliders ─────────── ───────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("window(3, ahead=12)", [("back", 3, 0, 15), ("ahead", 12, 0, 15)]),
        ("chunks(4) & stride(3, 1)", [("size", 4, 1, 16), ("step", 3, 1, 16), ("phase", 1, 0, 2)]),
        ("keys(range(2))", [("where", 2, 0, 15)]),
        ("padding(lengths=[5, 16])", [("lengths", 5, 0, 16), ("lengths", 16, 0, 16)]),
        ("documents(lengths=[[4, 12]])", [("lengths", 4, 0, 16), ("lengths", 12, 0, 16)]),
        ("window(back=0x3)", []),
        ("window(back=None)", []),
        (f"dense({[[1] * 16] * 16})", []),
        ("causal()", []),
        ("window(back=99)", [("back", 99, 0, 99)]),
        (
            "image(4, 4, radius=1)",
            [("height", 4, 1, 16), ("width", 4, 1, 16), ("radius", 1, 0, 15)],
        ),
    ],
)
def test_numbers_have_the_names_of_their_arguments(text: str, expected: list[Any]) -> None:
    found = post("mask", subject=on(text, size=16))["numbers"]
    assert [(n["name"], n["value"], n["least"], n["most"]) for n in found] == expected
    for number in found:
        assert text[number["start"] : number["stop"]] == str(number["value"])


def test_numbers_are_found_by_character_over_lines_and_letters() -> None:
    text = "  window(back=3) |\tpadding(\n ids=[['é', '😀', '猫']], pad_id='猫') & window(back=12)"
    found = post("mask", subject=on(text, size=3))["numbers"]
    assert [text[n["start"] : n["stop"]] for n in found] == ["3", "12"]


# ── why, compare, picture ─────────────────────────────────────────────────────────────────────


def test_why_in_both_languages() -> None:
    found = post("why", subject=on("causal()", tokens=WORDS), query=0, key=2)
    why = (mw.causal() & mw.padding(keep=[[1, 1, 0], [1, 1, 1]])).on(3).why(0, 2)
    assert found == {
        "allowed": False,
        "sentence": why.text(),
        "sentence_zh": why.text("zh"),
    }


def test_a_comparison_shows_the_cells_of_either_mask() -> None:
    found = post("compare", subject=on("causal()", size=3), others=["window(back=1)", "causal()"])
    assert kinds(found["first"]) == [[2, 0, 0], [2, 2, 0], [2, 2, 2]]
    narrow, same = found["others"]
    assert kinds(narrow["grid"]) == [[2, 0, 0], [2, 2, 0], [3, 2, 2]]
    assert (narrow["equal"], narrow["only_first"], narrow["only_second"]) == (False, 1, 0)
    assert "query 2, key 0" in narrow["sentence"]
    assert (same["equal"], same["expression"]) == (True, "causal()")


@pytest.mark.parametrize("text", ["by_head([causal(), everything()])", "padding(lengths=[3, 4])"])
def test_a_comparison_uses_the_largest_batch_and_heads(text: str) -> None:
    found = post("compare", subject=on("causal()", size=4), others=[text])
    assert not found["others"][0]["equal"]
    again = post("compare", subject=on(text, size=4), others=["causal()"])
    assert again["others"][0]["only_first"] == found["others"][0]["only_second"]


def test_an_error_in_another_mask_names_it() -> None:
    error = post_error("compare", 422, subject=on("causal()"), others=["casual()"])
    assert error["message"].startswith("In casual():")
    assert error["at"] == [0, 6]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pictures_are_files(theme: str) -> None:
    data = {"subject": on("causal()", tokens=WORDS), "theme": theme}
    svg = dispatch("picture", json.dumps({**data, "format": "svg"}).encode())
    assert (svg.status, svg.media_type) == (200, "image/svg+xml")
    assert b"<svg" in svg.body
    png = dispatch("picture", json.dumps({**data, "format": "png"}).encode())
    if png.status == 200:
        assert png.media_type == "image/png"
        assert png.body.startswith(b"\x89PNG")
    else:  # the extra is not installed
        assert json.loads(png.body)["error"]["kind"] == "MissingError"


def test_a_picture_of_a_part_of_a_large_mask() -> None:
    view = {"row": 4, "rows": 8, "key": 0, "keys": 8}
    body = json.dumps({"subject": on("stride(4)", size=2**14), "view": view}).encode()
    reply = dispatch("picture", body)
    assert reply.status == 200
    assert b"stride(4)" in reply.body
