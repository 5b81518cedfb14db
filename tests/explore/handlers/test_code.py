"""The source code and the cost of a mask."""

from __future__ import annotations

import maskwright as mw
from tests._helpers.explore_requests import on, post, post_error


def test_code_for_every_target() -> None:
    found = post("code", subject=on("causal() | prefix(3)", size=8))["targets"]
    assert [target["name"] for target in found] == list(mw.capabilities())
    for target in found:
        assert target["ok"] == (target["code"] is not None) == (target["refusal"] is None)
    by_name = {target["name"]: target for target in found}
    assert by_name["numpy"]["code"].startswith("import numpy")
    assert "flash.varlen" in by_name["flash.varlen"]["refusal"]
    post_error("code", 413, subject=on("causal()", size=2**16))


def test_cost_is_what_the_library_computes() -> None:
    found = post("cost", subject=on("window(back=15)", size=256, heads=2))
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


def test_an_estimate_that_takes_long_is_omitted() -> None:
    found = post("cost", subject=on("window(back=15) | keys([0, 9])", size=2**19))
    assert found["work"] is None
    assert found["backend"] is None
