"""onnx: every representation is the operator's, and each is chosen or refused as it should be."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import event, given, note, settings
from hypothesis import strategies as st

import maskwright as mw
from maskwright import Frame, Mask
from tests._helpers import representable, target_readers, target_runners
from tests._helpers.reference_attention import attention, random_qkv
from tests._helpers.strategies import bind
from tests._helpers.target_strategies import for_target
from tests.targets.test_lowering import cells, check_refusal, share

PADDING = mw.padding(lengths=[3, 5])
OPSETS = (23, 24, 25)
FORCED = ("is_causal", "nonpad_kv_seqlen", "window", "attn_mask")


@st.composite
def onnx_cases(draw: st.DrawFn) -> tuple[Mask, Frame, dict[str, Any]]:
    """Any mask; often those that attributes and lengths can represent, at any alignment."""
    if draw(st.booleans()):
        mask, frame = draw(for_target("onnx"))
    else:
        q_len, kv_len, batch = (draw(st.integers(1, top)) for top in (5, 6, 2))
        frame = Frame(q_len, kv_len, batch, 1, draw(st.integers(-1, kv_len)))
        side = st.one_of(st.none(), st.integers(0, 4))
        lengths = draw(st.lists(st.integers(0, kv_len), min_size=batch, max_size=batch))
        starts = [length - q_len for length in lengths]
        near = mw.window(draw(side), draw(side))
        aligned = draw(st.booleans())
        parts = [
            mw.dense(bind(near, Frame(q_len, kv_len, 1, 1, start)).dense()[0, 0])
            for start in starts
        ]
        mask = mw.by_batch(parts) if aligned else near
        if draw(st.booleans()):
            mask = mask & mw.padding(lengths=lengths)
    options = {
        "opset": draw(st.sampled_from(OPSETS)),
        "past_len": draw(st.sampled_from([0, 0, frame.kv_len // 2, max(frame.q_start, 0)])),
    }
    options["past_len"] = min(options["past_len"], frame.kv_len)
    return mask, frame, options


@settings(max_examples=max(share("onnx"), 100))
@given(onnx_cases(), st.sampled_from([None, "float16", "float32", "float64"]))
def test_both_runtimes_compute_attention_under_this_mask(
    case: tuple[Mask, Frame, dict[str, Any]], dtype: Any
) -> None:
    mask, frame, options = case
    note(f"{mask!r}\n{frame}\n{options}")
    right = cells(mask, frame)
    lowered = mw.lower(bind(mask, frame), "onnx", dtype=dtype, **options)
    used = [*lowered.attributes, *lowered.inputs]
    event(" and ".join(sorted(used)) or "no mask")
    assert "nonpad_kv_seqlen" not in used or options["opset"] >= 24
    assert not any("window" in name for name in used) or options["opset"] >= 25
    past = options["past_len"]
    assert np.array_equal(target_readers.onnx(lowered, right.shape, past), right)
    if dtype != "float16":
        target_runners.onnx(lowered, right, past, options["opset"])


@settings(max_examples=max(share("onnx"), 100))
@given(onnx_cases(), st.sampled_from(FORCED))
def test_required_representation_is_obeyed_or_refused(
    case: tuple[Mask, Frame, dict[str, Any]], representation: str
) -> None:
    mask, frame, options = case
    opset = max(options["opset"], {"nonpad_kv_seqlen": 24, "window": 25}.get(representation, 23))
    options = {**options, "opset": opset, "representation": representation}
    note(f"{mask!r}\n{frame}\n{options}")
    right = cells(mask, frame)
    past = options["past_len"]
    possible = representation == "attn_mask" or representable.onnx(
        right, representation, opset, past
    )
    try:
        lowered = mw.lower(bind(mask, frame), "onnx", **options)
    except mw.Unsupported as refusal:
        event(f"{representation} refused")
        assert not possible, "it could have been represented"
        check_refusal(refusal, "onnx", mask)
        return
    event(f"{representation} obeyed")
    assert possible
    assert np.array_equal(target_readers.onnx(lowered, right.shape, past), right)
    if representation in ("attn_mask", "nonpad_kv_seqlen"):
        assert representation in lowered.inputs
    else:
        assert not lowered.inputs


@pytest.mark.parametrize(
    ("mask", "sizes", "options", "attributes", "inputs"),
    [
        (mw.everything(), {}, {}, {}, set()),
        (mw.causal(), {}, {}, {"is_causal": 1}, set()),
        (mw.causal(), {"kv_len": 9, "q_start": 0}, {}, {"is_causal": 1}, set()),
        (mw.causal(), {"kv_len": 9}, {"past_len": 4}, {"is_causal": 1}, set()),
        (mw.causal(), {"kv_len": 9}, {}, {"is_causal": 1}, {"nonpad_kv_seqlen"}),
        (mw.causal(), {"kv_len": 9}, {"opset": 23}, {}, {"attn_mask"}),
        (PADDING, {}, {}, {}, {"nonpad_kv_seqlen"}),
        (PADDING, {}, {"opset": 23}, {}, {"attn_mask"}),
        (mw.causal() & PADDING, {}, {}, {}, {"attn_mask"}),
        (mw.window(2), {}, {}, {}, {"attn_mask"}),
        (
            *(mw.window(2), {}, {"opset": 25}),
            *({"left_window_size": 2, "right_window_size": 0}, set()),
        ),
        (mw.window(None, 1), {}, {"opset": 26}, {"right_window_size": 1}, set()),
        (mw.by_head([mw.causal(), mw.everything()]), {}, {}, {}, {"attn_mask"}),
    ],
)
def test_most_compact_representation_is_chosen(
    mask: Mask, sizes: dict[str, int], options: dict[str, int], attributes: Any, inputs: Any
) -> None:
    lowered = mw.lower(mask.on(5, **sizes), "onnx", **options)
    assert (lowered.attributes, set(lowered.inputs)) == (attributes, inputs)


def test_refusal_names_term_and_option() -> None:
    mask = mw.causal() & mw.padding(lengths=[3, 5])
    with pytest.raises(mw.Unsupported, match="representation='is_causal'") as refusal:
        mw.lower(mask, "onnx", representation="is_causal")
    assert refusal.value.term == "padding(lengths=[3, 5])"


def test_nonpad_kv_seqlen_moves_causal_mask() -> None:
    """The trap: is_causal is aligned at the last of the valid keys, as with a static cache."""
    cached = mw.dense(np.array([[[[1, 1, 0, 0], [1, 1, 1, 0]]], [[[1, 0, 0, 0], [1, 1, 0, 0]]]]))
    lowered = mw.lower(cached, "onnx")
    assert lowered.attributes == {"is_causal": 1}
    assert lowered.inputs["nonpad_kv_seqlen"].tolist() == [3, 2]
    causal_with_padding = mw.causal() & mw.padding(lengths=[3, 2])
    assert set(mw.lower(causal_with_padding, "onnx", q_len=4).inputs) == {"attn_mask"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"opset": 22}, "opset=22"),
        ({"past_len": -1}, "past_len"),
        ({"past_len": 6}, "past_len=6 is more than kv_len=5"),
        ({"representation": "mask"}, "representation"),
        ({"representation": "window"}, "Pass opset=25 or newer"),
        ({"representation": "nonpad_kv_seqlen", "opset": 23}, "Pass opset=24 or newer"),
        ({"dtype": "int8"}, "dtype is int8"),
        ({"dtype": "bfloat17"}, "dtype is bfloat17"),
    ],
)
def test_invalid_option_is_rejected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(mw.ArgumentError, match=message):
        mw.lower(mw.causal(), "onnx", q_len=5, **options)


def test_names_and_opsets_are_those_of_installed_schema() -> None:
    for opset in OPSETS:
        schema = onnx.defs.get_schema("Attention", opset)
        inputs = {one.name for one in schema.inputs}
        assert ("nonpad_kv_seqlen" in inputs) == (opset >= 24)
        assert ("left_window_size" in schema.attributes) == (opset >= 25)
        assert {"is_causal"} <= set(schema.attributes)


def test_fully_masked_row_is_zero_but_not_in_float64_by_onnx_runtime() -> None:
    """What the target's data claims, and what ONNX Runtime does against the definition."""
    allowed = np.array([[[[True, False, True], [False, False, False]]]])
    lowered = mw.lower(mw.dense(allowed), "onnx", representation="attn_mask")
    assert mw.capabilities()["onnx"].empty_rows == "zero"
    target_runners.onnx(lowered, allowed)
    feeds = target_runners.onnx_feeds(lowered, allowed, 0, np.float64)
    out = target_runners.onnx_runtime(target_runners.onnx_model(lowered, feeds, 24), feeds)
    assert np.isnan(out[0, 0, 1]).all()


def test_onnx_runtime_ignores_is_causal_for_one_query_with_past_keys() -> None:
    """So `lower` does not choose it there. Remove that exception once this fails."""
    mask = mw.padding(lengths=[2]).on(1, 3)
    assert set(mw.lower(mask, "onnx", past_len=1).inputs) == {"attn_mask"}
    lowered = mw.lower(mask, "onnx", past_len=1, representation="is_causal")
    allowed = mask.dense()
    feeds = target_runners.onnx_feeds(lowered, allowed, 1, np.float32)
    out = target_runners.onnx_runtime(target_runners.onnx_model(lowered, feeds, 24), feeds)
    everything = attention(*random_qkv(allowed.shape), np.ones_like(allowed))
    assert np.allclose(out, everything, atol=1e-5)


def test_onnx_runtime_does_not_implement_windows() -> None:
    """Remove the exception in `target_runners.onnx` once this fails."""
    lowered = mw.lower(mw.window(1), "onnx", q_len=4, opset=25)
    allowed = np.broadcast_to(mw.window(1).on(4).dense(), (1, 1, 4, 4))
    feeds = target_runners.onnx_feeds(lowered, allowed, 0, np.float32)
    with pytest.raises(Exception, match="left_window_size"):
        target_runners.onnx_runtime(target_runners.onnx_model(lowered, feeds, 25), feeds)


@settings(max_examples=30)
@given(onnx_cases(), st.sampled_from([None, "float32"]))
def test_snippet_makes_same_node(case: tuple[Mask, Frame, dict[str, Any]], dtype: Any) -> None:
    mask, frame, options = case
    bound = bind(mask, frame)
    if "where" in repr(mask):
        return
    lowered = mw.lower(bound, "onnx", dtype=dtype, **options)
    names: dict[str, Any] = {}
    exec(mw.explain_lowering(bound, "onnx", dtype=dtype, **options), names)
    node = names["node"]
    made = {one.name: onnx.helper.get_attribute_value(one) for one in node.attribute}
    assert (node.op_type, made) == ("Attention", lowered.attributes)
    assert [name for name in node.input if name not in ("Q", "K", "V", "")] == list(lowered.inputs)
    for name, value in lowered.inputs.items():
        assert np.array_equal(names[name], value)
        assert names[name].dtype == value.dtype
