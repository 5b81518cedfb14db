"""Answers about a mask: the same that the library gives, in the form that the page reads."""

from __future__ import annotations

from typing import Any

import pytest

import maskwright as mw
from maskwright.explore.desk import ANSWERS
from maskwright.explore.requests import PAD, READERS
from maskwright.explore.splitting import split_text
from tests.explore.asking import WORDS, ask, kinds, on, refused


def test_every_request_has_an_answer() -> None:
    assert set(ANSWERS) == set(READERS)


# ── tokens ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("I  like\ttea", ["I", "like", "tea"]),
        ("我爱猫", ["我", "爱", "猫"]),
        ("我love你", ["我", "love", "你"]),
        ("テスト、です", ["テ", "ス", "ト", "、", "で", "す"]),
        ("안녕", ["안", "녕"]),
        ("が", ["が"]),  # a letter and its accent, decomposed
        ("cafe\u0301 au lait", ["cafe\u0301", "au", "lait"]),
        ("👩‍👩‍👧 👍🏽 🇨🇳", ["👩‍👩‍👧", "👍🏽", "🇨🇳"]),
        ("猫👩‍👩‍👧猫", ["猫", "👩‍👩‍👧", "猫"]),
        ("नमस्ते दुनिया", ["नमस्ते", "दुनिया"]),
        (f"a {PAD}", ["a", PAD]),
    ],
)
def test_sentences_are_cut_as_a_reader_would(text: str, tokens: list[str]) -> None:
    assert split_text(text)[0] == [tokens]


def test_sentences_are_padded_at_either_side() -> None:
    assert ask("tokens", text="a b c\n\nd") == {
        "tokens": [["a", "b", "c"], ["d", PAD, PAD]],
        "lengths": [3, 1],
    }
    left = ask("tokens", text="a b c\nd", side="left")
    assert left["tokens"][1] == [PAD, PAD, "d"]
    assert ask("tokens", text=" \n ") == {"tokens": [], "lengths": []}


@pytest.mark.parametrize("text", ["a\n" * 9, "a " * 257, "a" * 65])
def test_too_much_text_is_refused(text: str) -> None:
    refused("tokens", 413, text=text)


# ── masks ─────────────────────────────────────────────────────────────────────────────────────


def test_a_mask_of_tokens_hides_their_padding() -> None:
    found = ask("mask", subject=on("causal()", tokens=WORDS), batch=0)
    assert found["said"] == "causal() & padding(keep=[[1, 1, 0], [1, 1, 1]])"
    assert found["sizes"] == "3 queries × 3 keys, batch 2"
    assert found["frame"] == {"q_len": 3, "kv_len": 3, "batch": 2, "heads": 1, "q_start": 0}
    assert found["planes"] == [2, 1]
    assert (found["count"], found["cells"]) == (11, 18)
    assert found["density"] == 11 / 18
    assert (found["empty_rows"], found["unseen_keys"]) == (0, 1)
    assert kinds(found["grid"]) == [[2, 0, 0], [2, 2, 0], [2, 2, 0]]
    assert found["grid"]["rows"] == found["grid"]["columns"] == WORDS[0]
    assert "query 2 sees keys 0 to 1" in found["description"]
    bare = ask("mask", subject=on("causal()", tokens=WORDS, padding=False))
    assert bare["said"] == "causal()"
    assert kinds(bare["grid"])[2] == [2, 2, 2]


def test_what_is_shared_by_all_sequences_is_counted_for_each() -> None:
    found = ask("mask", subject=on("causal() - keys([0])", size=4, batch=3, heads=2))
    bound = mw.parse("causal() - keys([0])").on(4, batch=3, heads=2)
    assert found["planes"] == [1, 1]
    assert found["count"] == bound.count() == 36
    assert (found["empty_rows"], found["unseen_keys"]) == (6, 6)


def test_the_grid_is_the_librarys_own() -> None:
    text = "window(back=2, ahead=1) | keys([0])"
    found = ask("mask", subject=on(text, size=3, keys=9, q_start=2), most=512)
    cells = mw.parse(text).on(3, 9, q_start=2).dense()[0, 0]
    assert kinds(found["grid"]) == (2 * cells.astype(int)).tolist()
    assert found["grid"]["rows"] is None


def test_many_tokens_are_shown_as_tiles_or_in_part() -> None:
    whole = ask("mask", subject=on("causal()", size=2**20), most=4)
    assert whole["grid"]["block"] == [2**18, 2**18]
    assert kinds(whole["grid"]) == [[1, 0, 0, 0], [2, 1, 0, 0], [2, 2, 1, 0], [2, 2, 2, 1]]
    part = ask(
        "mask",
        subject=on("causal()", size=2**20),
        view={"row": 1000, "rows": 2, "key": 999, "keys": 3},
    )
    assert part["grid"]["start"] == [1000, 999]
    assert kinds(part["grid"]) == [[2, 2, 0], [2, 2, 2]]
    assert part["count"] == 2**19 * (2**20 + 1)


def test_what_would_take_too_long_is_refused_with_advice() -> None:
    error = refused("mask", 413, subject=on("stride(2)", size=2**20))
    assert "fewer tokens" in error["message"]
    assert "zoom in" in error["message"]
    assert error["kind"] == "SizeError"


def test_a_part_of_a_heavy_mask_is_shown_without_counts() -> None:
    view = {"row": 4, "rows": 8, "key": 0, "keys": 8}
    found = ask("mask", subject=on("stride(4)", size=2**14), view=view)
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
def test_a_wrong_expression_is_refused_in_the_librarys_words(text: str, kind: str) -> None:
    assert refused("mask", 422, subject=on(text))["kind"] == kind


def test_an_error_says_where_it_is() -> None:
    text = " causal() & padding(ids=[['猫', '<PAD>']], pad_id='<PAD>') & casual()"
    first, stop = refused("mask", 422, subject=on(text))["at"]
    assert text[first:stop].startswith("casual")
    assert refused("mask", 422, subject=on("padding(lengths=[99])"))["at"] is None


@pytest.mark.parametrize(("batch", "head"), [(1, 0), (0, 1)])
def test_a_plane_that_is_not_there_is_refused(batch: int, head: int) -> None:
    for name, more in (("mask", {}), ("steps", {}), ("generate", {}), ("picture", {}),
                       ("why", {"query": 0, "key": 0}),
                       ("compare", {"others": ["everything()"]})):  # fmt: skip
        error = refused(name, 422, subject=on("causal()"), batch=batch, head=head, **more)
        assert ("batch 1" if batch else "head 1") in error["message"]


def test_a_view_outside_the_mask_is_refused() -> None:
    view = {"row": 4, "rows": 5, "key": 0, "keys": 8}
    assert "view" in refused("mask", 422, subject=on("causal()"), view=view)["message"]


def test_too_many_sequences_are_refused() -> None:
    text = f"padding(lengths={[8] * 65})"
    assert "65 sequences" in refused("mask", 413, subject=on(text))["message"]


def test_a_shorter_text_is_offered() -> None:
    assert ask("mask", subject=on("causal() & window(back=3)"))["simplified"] == "window(back=3)"
    assert ask("mask", subject=on("causal()"))["simplified"] is None


# ── numbers for sliders ───────────────────────────────────────────────────────────────────────


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
    found = ask("mask", subject=on(text, size=16))["numbers"]
    assert [(n["name"], n["value"], n["least"], n["most"]) for n in found] == expected
    for number in found:
        assert text[number["start"] : number["stop"]] == str(number["value"])


def test_numbers_are_found_by_character_over_lines_and_letters() -> None:
    text = "  window(back=3) |\tpadding(\n ids=[['é', '😀', '猫']], pad_id='猫') & window(back=12)"
    found = ask("mask", subject=on(text, size=3))["numbers"]
    assert [text[n["start"] : n["stop"]] for n in found] == ["3", "12"]
