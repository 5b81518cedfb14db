"""Answers about the use of a mask: comparing, code, cost, pictures, recognising."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import numpy as np
import pytest

import maskwright as mw
from maskwright.explore.desk import answer
from tests.explore.asking import WORDS, ask, kinds, on, refused


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


def test_cost_is_what_the_library_computes() -> None:
    found = ask("cost", subject=on("window(back=15)", size=256, heads=2))
    bound = mw.window(back=15).on(256, heads=2)
    assert found["cells"] == 2 * 256**2
    assert found["allowed"] == bound.count() == found["work"]["cells_visible"]
    assert found["tiles"] == {"block": 128, **bound.tiles(128).counts()}
    assert (found["dense_bytes"], found["bias_bytes"]) == (256**2, 4 * 256**2)
    assert found["intervals"] == 256
    assert found["span_bytes"] < found["dense_bytes"]
    choice = mw.explain_backend((1, 2, 256, found["head_dim"]), mask=bound)
    assert (found["backend"], found["reason"]) == (choice.backend, choice.reason)
    assert found["work"] == choice.work.as_dict()
    assert (found["instruction_set"] is None) == (found["backend"] != "native")


def test_an_estimate_that_takes_long_is_left_out() -> None:
    found = ask("cost", subject=on("window(back=15) | keys([0])", size=2**20))
    assert found["work"] is None
    assert found["backend"] is None


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
    assert found["lint"][0]["reason"]["params"]["key"] == 1
    assert found["lint"][0]["message_zh"].startswith("查询 0 关注键 1")


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
