"""What is answered: the same numbers that the library gives, in the form that the page reads."""

from __future__ import annotations

import base64
import inspect
import io
import json
from typing import Any

import numpy as np
import pytest

import maskwright as mw
from maskwright import recipes
from maskwright.core.atoms import ATOMS
from maskwright.core.mask import Atom, Cell, walk
from maskwright.explore.chinese import translate
from maskwright.explore.desk import ANSWERS, answer
from maskwright.explore.lessons import lessons
from maskwright.explore.requests import PAD, READERS
from maskwright.explore.splitting import split_text
from maskwright.explore.vocabulary import EXAMPLES, RECIPES, vocabulary

WORDS = [["I", "like", PAD], ["you", "do", "too"]]


def ask(name: str, **data: Any) -> Any:
    """The answer, which must be one."""
    reply = answer(name, data)
    assert reply.status == 200, reply.body.decode()
    assert reply.kind == "application/json"
    return json.loads(reply.body)


def refused(name: str, status: int, **data: Any) -> dict[str, Any]:
    reply = answer(name, data)
    assert reply.status == status, reply.body.decode()
    error: dict[str, Any] = json.loads(reply.body)["error"]
    assert error["message"].rstrip("?").rstrip(".") != error["message"]  # a sentence
    return error


def on(expression: str, **rest: Any) -> dict[str, Any]:
    return {"expression": expression, **rest}


def kinds(grid: dict[str, Any]) -> list[list[int]]:
    rows, columns = grid["shape"]
    flat = np.frombuffer(base64.b64decode(grid["kinds"]), np.uint8)
    shades = np.frombuffer(base64.b64decode(grid["shades"]), np.uint8)
    assert flat.size == shades.size == rows * columns
    table: list[list[int]] = flat.reshape(rows, columns).tolist()
    return table


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
        assert "not there" in error["message"]


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


# ── why ───────────────────────────────────────────────────────────────────────────────────────


def test_why_in_both_languages() -> None:
    found = ask("why", subject=on("causal()", tokens=WORDS), query=0, key=2)
    assert found == {
        "allowed": False,
        "sentence": "query 0 may not see key 2: causal() stops it (2 > 0); "
        "padding(...) stops it (key 2 is padding of sequence 0)",
        "sentence_zh": "查询 0 看不到键 2：causal() 拦下了它（2 > 0）；"
        "padding(...) 拦下了它（键 2 是序列 0 的填充）",
    }


EVERY_ATOM = [
    *(text for name, text in EXAMPLES.items() if name != "dense"),
    f"dense({[[1, 0] * 4] * 8})",
    "window(back=None, ahead=2)",
    "window(back=2, ahead=None)",
    "window(back=1, ahead=1)",
    "documents(ids=[0, 0, -1, 1, 1, 0, -1, 1])",
    "graph([[0, 1]], loops=False)",
    "image(2, 4, radius=1, border='shift')",
    "~(causal() & stride(2)) - keys([3])",
    "(causal() | prefix(2)) & ~chunks(4) & ~(stride(2) | documents(lengths=[[3, 5]]))",
    "(documents(lengths=[[3, 5]]) & causal()).T",
    "causal() & by_head([causal() & window(back=2), ~keys([1]) | chunks(2)])",
    "causal().T | image(2, 4, radius=1).T",
    "prefix([2, 3]) & by_batch([causal(), documents(lengths=[[3, 3]])])",
]


@pytest.mark.parametrize("text", EVERY_ATOM)
def test_every_reason_is_translated(text: str) -> None:
    bound = mw.parse(text).on(8)
    for batch in range(bound.frame.batch):
        for head in range(bound.frame.heads):
            for q in range(8):
                for k in range(8):
                    sentence = bound.why(q, k, batch, head).sentence
                    said = translate(sentence)
                    assert said is not None, sentence
                    for english in ("query", " key ", "lets", "stops", "would", " and ", " is "):
                        assert english not in said, said


def test_all_atoms_are_walked() -> None:
    walked = {
        type(part).__name__
        for text in EVERY_ATOM
        for part in walk(mw.parse(text))
        if isinstance(part, Atom)
    }
    every = {type(mw.parse(text)).__name__ for text in EXAMPLES.values()} - {"By"}
    assert every <= walked
    assert len(every) == len(ATOMS) - 1  # causal() is a window


def test_a_query_elsewhere_and_a_predicate_are_translated() -> None:
    said = translate(mw.causal().on(2, 5).why(0, 4).sentence)
    assert said == "查询 0（位于 3）看不到键 4：causal() 拦下了它（4 > 3）"
    odd = mw.where(lambda b, h, q, k: q > k).on(3).why(2, 0).sentence
    assert translate(odd.replace("where(<lambda>)", "where(f)")) is not None


@pytest.mark.parametrize(
    "sentence",
    [
        "something else",
        "query 0 may see key 0: it is new",
        "query 0 may see key 0: causal() lets it through (a reason of next year)",
    ],
)
def test_an_unknown_sentence_has_no_translation(sentence: str) -> None:
    assert translate(sentence) is None


def test_reasons_are_asked_of_atoms_only() -> None:
    """The patterns follow `_reason`: an atom with a new one needs a new pattern."""
    for atom in Atom.__subclasses__():
        assert "_reason" in vars(atom) or atom.__subclasses__(), atom
    assert mw.causal()._reason(Cell(0, 0, 1, 0), True) == "0 ≤ 1"  # type: ignore[attr-defined]


# ── steps, generation, scaling ────────────────────────────────────────────────────────────────


def test_steps_of_given_scores() -> None:
    scores = [[0.8, 0.2, 0.9], [0.4, 0.7, 0.5], [0.3, 1.1, 0.6]]
    found = ask("steps", subject=on("causal()", size=3), values={"scores": scores})["steps"]
    assert [step["name"] for step in found] == ["scores", "masked", "weights"]
    assert found[1]["values"][0] == [0.8, "-inf", "-inf"]
    assert found[1]["hidden"][0] == [False, True, True]
    np.testing.assert_allclose(found[2]["values"][2], [0.2186, 0.4864, 0.2950], atol=5e-5)
    assert found[2]["rows"] == ["0", "1", "2"]


def test_steps_of_tokens() -> None:
    found = ask("steps", subject=on("causal()", tokens=WORDS), batch=1, values={"seed": 3})["steps"]
    assert [step["name"].lower() for step in found] == [
        "x", "q", "k", "v", "scores", "scaled", "masked", "weights", "output",
    ]  # fmt: skip
    assert found[0]["rows"] == WORDS[1]
    for step in found:
        assert set(step["title"]) == set(step["says"]) == {"en", "zh"}
        assert np.shape(step["values"]) == tuple(step["shape"])


def test_steps_with_a_finite_fill_and_hidden_rows() -> None:
    scores = [[1, 2, 4, 3]] * 4
    plain = ask("steps", subject=on("~keys([2])", size=4), values={"scores": scores}, fill=-1e9)
    np.testing.assert_allclose(
        plain["steps"][2]["values"][0], [0.0900, 0.2447, 0, 0.6652], atol=5e-5
    )
    tokens = [["a", "b", "c", PAD]]
    uniform = ask("steps", subject=on("everything()", tokens=tokens), fill=-1e9, rows_too=True)
    assert uniform["steps"][-2]["values"][3] == [0.25] * 4
    empty = ask("steps", subject=on("everything()", tokens=tokens), rows_too=True)
    assert empty["steps"][-2]["values"][3] == [0.0] * 4


def test_steps_have_a_largest_size_and_are_square() -> None:
    assert "33 tokens" in refused("steps", 413, subject=on("causal()", size=33))["message"]
    refused("steps", 422, subject=on("causal()", size=3, keys=4))
    refused("steps", 422, subject=on("causal()", size=3), values={"scores": [[1.0]]})
    refused("generate", 422, subject=on("causal()", size=1), values={"scores": [[1.0]]})


def test_generation_equals_one_pass_under_a_causal_mask_only() -> None:
    for text, equal in (("causal()", [True] * 3), ("everything()", [False, False, True])):
        rows = ask("generate", subject=on(text, tokens=[["a", "b", "c"]]))["rows"]
        assert [row["equal"] for row in rows] == equal
        assert [row["token"] for row in rows] == ["a", "b", "c"]
        assert set(rows[0]) == {"position", "token", "weights", "output", "alone", "equal"}


def test_scaling_keeps_the_variance() -> None:
    rows = ask("scaling", sizes=[4, 256], seed=1)["rows"]
    assert [row["head_size"] for row in rows] == [4, 256]
    assert rows[1]["variance"] > 20 * rows[0]["variance"]
    assert 0.5 < rows[1]["scaled_variance"] < 2


# ── compare, code, cost, picture, recognise ───────────────────────────────────────────────────


def test_comparing_shows_who_sees_what() -> None:
    found = ask("compare", subject=on("causal()", size=3), others=["window(back=1)", "causal()"])
    assert kinds(found["first"]) == [[2, 0, 0], [2, 2, 0], [2, 2, 2]]
    narrow, same = found["others"]
    assert kinds(narrow["grid"]) == [[2, 0, 0], [2, 2, 0], [3, 2, 2]]
    assert (narrow["equal"], narrow["only_first"], narrow["only_second"]) == (False, 1, 0)
    assert narrow["sentence"].startswith("first differs at batch 0, head 0, query 2, key 0")
    assert (same["equal"], same["sentence"], same["said"]) == (True, "equal", "causal()")


def test_comparing_masks_of_which_one_alone_tells_of_heads_and_batch() -> None:
    for text in ("by_head([causal(), everything()])", "padding(lengths=[3, 4])"):
        found = ask("compare", subject=on("causal()", size=4), others=[text])
        assert not found["others"][0]["equal"]
        again = ask("compare", subject=on(text, size=4), others=["causal()"])
        assert again["others"][0]["only_first"] == found["others"][0]["only_second"]


def test_an_error_in_another_mask_names_it() -> None:
    error = refused("compare", 422, subject=on("causal()"), others=["casual()"])
    assert error["message"].startswith("In casual():")
    assert error["at"] == [0, 6]


def test_code_for_every_target() -> None:
    found = ask("code", subject=on("causal() | prefix(3)", size=8))["targets"]
    assert [target["name"] for target in found] == list(mw.capabilities())
    for target in found:
        assert target["ok"] == (target["code"] is not None) == (target["refusal"] is None)
    by_name = {target["name"]: target for target in found}
    assert by_name["numpy"]["code"].startswith("import numpy")
    assert by_name["flash.varlen"]["refusal"].startswith("flash.varlen can say")
    assert "fewer tokens" in refused("code", 413, subject=on("causal()", size=2**16))["message"]


def test_cost_in_numbers_and_words() -> None:
    found = ask("cost", subject=on("window(back=15)", size=256, heads=2))
    bound = mw.window(back=15).on(256, heads=2)
    assert found["cells"] == 2 * 256**2
    assert found["allowed"] == bound.count() == found["useful"]
    assert found["tiles"] == {"block": 128, **bound.tiles(128).counts()}
    assert (found["dense_bytes"], found["bias_bytes"]) == (256**2, 4 * 256**2)
    assert found["intervals"] == 256
    assert found["span_bytes"] < found["dense_bytes"]
    assert found["computed"] >= found["useful"]
    assert f"{found['pieces']} pieces" in found["plan"]
    assert "ms" in found["route"]


def test_a_plan_that_takes_long_is_left_out() -> None:
    found = ask("cost", subject=on("window(back=15) | keys([0])", size=2**20))
    assert found["plan"].startswith("Not planned")
    assert found["pieces"] is None
    assert found["intervals"] > 2**20


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pictures_are_files(theme: str) -> None:
    data = {"subject": on("causal()", tokens=WORDS), "theme": theme}
    svg = answer("picture", {**data, "format": "svg"})
    assert (svg.status, svg.kind) == (200, "image/svg+xml")
    assert b"<svg" in svg.body
    png = answer("picture", {**data, "format": "png"})
    if png.status == 200:
        assert png.kind == "image/png"
        assert png.body.startswith(b"\x89PNG")
    else:  # it needs an extra
        assert json.loads(png.body)["error"]["kind"] == "MissingError"


def test_a_picture_of_a_part_of_a_heavy_mask() -> None:
    view = {"row": 4, "rows": 8, "key": 0, "keys": 8}
    reply = answer("picture", {"subject": on("stride(4)", size=2**14), "view": view})
    assert reply.status == 200
    assert b"stride(4)" in reply.body


def test_an_array_is_recognised() -> None:
    found = ask("recognise", array=[[0.0, "-inf"], [0.0, 0.0]])
    assert found["expression"] == "causal()"
    assert found["convention"].startswith("additive")
    assert (found["shape"], found["dtype"], found["lint"]) == ([2, 2], "float64", [])
    assert found["frame"] == {"q_len": 2, "kv_len": 2, "batch": 1, "heads": 1, "q_start": 0}
    assert kinds(found["grid"]) == [[2, 0], [2, 2]]


def test_a_file_is_recognised_and_judged() -> None:
    file = io.BytesIO()
    np.savez(file, mask=np.ones((3, 3), bool))
    data = base64.b64encode(file.getvalue()).decode()
    found = ask("recognise", npy=data, causal=True)
    assert found["expression"] == "everything()"
    assert [finding["code"] for finding in found["lint"]] == ["future-visible"]
    assert found["lint"][0]["cell"] == {"batch": 0, "head": 0, "query": 0, "key": 1}


@pytest.mark.parametrize("array", [[[0.5, "nan"], [0.1, 2.0]], [["inf", 1.0]], [[7, 9], [3, 1]]])
def test_an_array_that_is_no_mask_is_judged_all_the_same(array: list[Any]) -> None:
    found = ask("recognise", array=array)
    assert found["expression"] is None or found["lint"]
    assert found["says"]


def test_an_array_without_cells_or_shape_is_refused() -> None:
    for array in ([], [[]], [[1], [1, 2]]):
        refused("recognise", 400, array=array)


def test_a_recognised_text_is_always_one_that_parses() -> None:
    noise = np.random.default_rng(0).random((64, 64)) < 0.5
    found = ask("recognise", array=noise.tolist())
    assert found["expression"] is not None
    cells = mw.parse(found["expression"]).on(64).dense()[0, 0]
    assert np.array_equal(cells, noise) or np.array_equal(cells, ~noise)  # both are told
    wide = np.random.default_rng(0).random((128, 128)) < 0.5
    assert ask("recognise", array=wide.tolist())["expression"] is None  # too long for the box
    assert "no closed form" in found["says"]


# ── what the page is told ─────────────────────────────────────────────────────────────────────


def test_the_vocabulary_has_every_atom_and_recipe() -> None:
    words = vocabulary()
    names = [atom["name"] for atom in words["atoms"]]
    assert names == [*ATOMS, "by_head", "by_batch"]
    for atom in words["atoms"]:
        assert atom["summary"].endswith(".")
        assert atom["signature"].startswith(atom["name"] + "(")
        mw.parse(atom["example"])
    own = {name for name in recipes.__all__ if inspect.isfunction(getattr(recipes, name))}
    assert {recipe["name"].split(".")[0] for recipe in words["recipes"]} == own
    assert words["version"] == mw.__version__


@pytest.mark.parametrize(("name", "mask", "size"), RECIPES, ids=[r[0] for r in RECIPES])
def test_every_recipe_is_an_expression_that_the_page_can_show(
    name: str, mask: mw.Mask, size: int | None
) -> None:
    assert mw.parse(repr(mask)) == mask
    assert ask("mask", subject=on(repr(mask), size=size or 8))["count"] > 0


LESSONS = {lesson["id"]: lesson for lesson in lessons()}


@pytest.mark.parametrize("name", LESSONS)
def test_every_lesson_can_be_shown(name: str) -> None:
    lesson = LESSONS[name]
    for part in ("title", "text", "look"):
        assert set(lesson[part]) == {"en", "zh"}
        assert all(lesson[part].values())
    assert len(lesson["text"]["en"]) == len(lesson["text"]["zh"])
    state = lesson["state"]
    tokens = None
    if state["text"] is not None:
        tokens = ask("tokens", text=state["text"], side=state["side"])["tokens"]
    subject = {
        "expression": state["expression"],
        "tokens": tokens,
        "padding": state["padding"],
        "size": state["size"],
        "keys": state["keys"],
        "q_start": state["q_start"],
        "batch": state["batches"],
        "heads": state["heads"],
    }
    shown = ask("mask", subject=subject)
    assert shown["empty_rows"] == 0
    if "query" in state:
        assert ask("why", subject=subject, query=state["query"], key=state["key"])["sentence_zh"]
    drawn = {name: state[name] for name in ("seed", "width", "head_size")}
    values = {"scores": state["scores"]} if state["scores"] else drawn
    rest = {name: state[name] for name in ("scaled", "fill", "rows_too")}
    if state["panel"] == "steps" and state["steps_view"] != "scaling":
        assert ask("steps", subject=subject, values=values, **rest)["steps"]
    elif state["panel"] == "generate":
        assert all(row["equal"] for row in ask("generate", subject=subject, values=values)["rows"])
    elif state["panel"] == "compare":
        assert ask("compare", subject=subject, others=state["others"])["others"]


def test_the_lessons_go_through_all_that_was_planned() -> None:
    assert list(LESSONS) == [
        "why", "causal-by-hand", "triu-or-tril", "padding", "column-not-row", "combined",
        "three-masks", "minus-infinity", "three-attentions", "scale", "shapes", "patterns",
        "one-pass",
    ]  # fmt: skip
    by_hand = LESSONS["causal-by-hand"]
    for number in ("0.2186", "0.4864", "0.2950"):
        assert all(number in " ".join(by_hand["text"][lang]) for lang in ("en", "zh"))
