"""The snippets of `explain_lowering` run, and make what `lower` makes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import maskwright as mw
from maskwright import BoundMask, Frame, Mask
from tests._helpers import target_runners
from tests._helpers.reference_attention import attention, random_qkv
from tests._helpers.strategies import bind, cases
from tests._helpers.target_readers import READERS
from tests._helpers.target_strategies import encoder_decoder, usual

# What a snippet leaves behind, for those that only make a mask.
MADE = {
    "numpy": "mask",
    "additive": "bias",
    "torch.bool": "mask",
    "torch.additive": "bias",
    "cudnn": "mask_func",
    "xformers": "attn_bias",
    "flash.varlen": "kwargs",
    "jax.splash": "kwargs",
}


def run(bound: Any, target: str, /, **names: Any) -> dict[str, Any]:
    """The snippet executed; what it made, by name."""
    code = mw.explain_lowering(bound, target)
    exec(compile(code, f"<{target}>", "exec"), names)
    return names


@st.composite
def plain_cases(draw: st.DrawFn) -> tuple[Mask, Frame]:
    """Masks that have source, on frames that are not empty."""
    if draw(st.booleans()):
        return draw(cases(code=False))
    sizes = st.integers(1, 6)
    frame = Frame(draw(sizes), draw(sizes), draw(st.integers(1, 2)), draw(st.integers(1, 2)), 0)
    return draw(usual(frame)), frame


UNSUPPORTED = object()


def lowered(bound: BoundMask, target: str) -> Any:
    try:
        return mw.lower(bound, target)
    except mw.Unsupported:
        return UNSUPPORTED


@pytest.mark.parametrize("target", [*MADE, "flashmask", "magi"])
def test_snippet_makes_same_mask(target: str) -> None:
    @settings(max_examples=15 if target == "jax.splash" else 50)
    @given(plain_cases())
    def check(case: tuple[Mask, Frame]) -> None:
        bound = bind(*case)
        given_form = lowered(bound, target)
        if given_form is UNSUPPORTED:
            return
        shape = (case[1].batch, case[1].heads, *bound.shape[2:])
        names = run(bound, target)
        if target in MADE:
            made = np.array(names["mask"]) if target == "numpy" else names[MADE[target]]
        else:
            made = {name: names.get(name, value) for name, value in given_form.items()}
            assert set(given_form) - set(names) <= {"causal"}
        right = np.broadcast_to(bound.dense(), shape)
        assert np.array_equal(READERS[target](made, shape), right)

    check()


LAYERS = ("torch.mha", "keras")


def output_of(bound: BoundMask, target: str, *qkv: np.ndarray) -> np.ndarray:
    """What the call of a snippet returns, (B, H, T, D); a layer is called with q as its tokens."""
    if target in ("torch.sdpa", "torch.flex"):
        tensors = zip("qkv", map(torch.tensor, qkv), strict=True)
        return run(bound, target, **dict(tensors))["output"].numpy()
    moved = [np.moveaxis(x, 1, 2).astype(np.float32) for x in qkv]  # (B, T, H, D)
    if target == "jax":
        out = np.asarray(run(bound, target, **dict(zip("qkv", moved, strict=True)))["output"])
    else:
        heads = bound.frame.heads
        mha = target_runners.mha_module(heads, torch.float32).eval()
        layer = mha if target == "torch.mha" else target_runners.keras_layer(heads, 0.0)
        x = torch.from_numpy(moved[0]).flatten(2)
        out = run(bound, target, attention=layer, x=x)["output"].detach().numpy()
    return np.moveaxis(out.reshape(moved[0].shape), 1, 2)


def check_call(bound: BoundMask, target: str) -> None:
    """The output is that of the reference."""
    frame = bound.frame
    shape = (frame.batch, frame.heads, frame.q_len, frame.kv_len)
    allowed = np.broadcast_to(bound.dense(), shape)
    q, k, v = random_qkv(shape)
    right = attention(q, q, q, allowed) if target in LAYERS else attention(q, k, v, allowed)
    close = 1e-10 if target in ("torch.sdpa", "torch.flex") else 2e-5
    target_runners.same(output_of(bound, target, q, k, v), right, allowed, close)


@settings(max_examples=40)
@given(plain_cases())
def test_call_of_sdpa_gives_references_output(case: tuple[Mask, Frame]) -> None:
    check_call(bind(*case), "torch.sdpa")


FIXED = {
    "everything": mw.everything(),
    "causal": mw.causal(),
    "window": mw.window(1, 1),
    "padding": mw.padding(lengths=[4, 2]),
    "causal and padding": mw.causal() & mw.padding(lengths=[4, 2]),
    "left padding": mw.padding(keep=[[0, 0, 1, 1], [1, 1, 1, 1]]) | mw.window(back=0),
    "documents": mw.documents(lengths=[[1, 3], [2, 2]]),
    "prefix": mw.causal() | mw.prefix([1, 3]),
    "heads": mw.by_head([mw.causal(), mw.window(1, 1)]),
    "graph": mw.graph([(0, 1), (2, 3)], directed=False),
    "empty last rows": mw.causal() & mw.queries([0, 1]),
    "chosen": mw.keys([0, 2]) | mw.window(back=0),
    "transposed": mw.causal().T,
}


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("target", ["torch.mha", "torch.flex", "jax", "keras"])
@pytest.mark.parametrize("name", FIXED)
def test_call_gives_references_output(name: str, target: str) -> None:
    if (name, target) != ("empty last rows", "keras"):  # which it does not represent
        check_call(FIXED[name].on(4, batch=2, heads=2), target)


@pytest.mark.parametrize("name", [name for name in FIXED if "empty" not in name])
def test_model_call_passes_lowered_mask(name: str) -> None:
    bound = FIXED[name].on(4, batch=2, heads=2)
    got: dict[str, Any] = {}

    def model(_: Any, **arguments: Any) -> None:
        got.update(arguments)

    run(bound, "hf", model=model, input_ids=None)
    given_form = mw.lower(bound, "hf")
    assert set(got) == set(given_form)
    for key, value in given_form.items():
        assert (
            torch.equal(got[key], value) if isinstance(value, torch.Tensor) else got[key] == value
        )


@settings(max_examples=25)
@given(encoder_decoder())
def test_transformer_call_passes_lowered_masks(parts: Any) -> None:
    bound: Any = tuple(bind(mask, frame) for mask, frame in parts)
    if any("where" in repr(part.mask) for part in bound):
        return
    given_form = lowered(bound, "torch.transformer")
    if given_form is UNSUPPORTED:
        return
    got: dict[str, Any] = {}

    def transformer(_: Any, __: Any, **arguments: Any) -> None:
        got.update(arguments)

    run(bound, "torch.transformer", transformer=transformer, source=None, target=None)
    for key, value in given_form.items():
        assert torch.equal(got[key], value) if isinstance(value, torch.Tensor) else got[key] is None


@pytest.mark.parametrize("target", ["numpy", "torch.sdpa", "torch.flex", "jax.splash", "hf"])
def test_function_has_no_text(target: str) -> None:
    mask = mw.where(lambda b, h, q, k: (q >= k) & ((q - k) % 3 != 1))
    with pytest.raises(mw.ArgumentError, match="function"):
        mw.explain_lowering(mask, target, q_len=4)


@pytest.mark.parametrize("target", ["numpy", "torch.bool", "torch.additive", "jax.splash"])
def test_part_of_bound_mask_is_explained_as_that_part(target: str) -> None:
    part = (mw.causal() & mw.documents(lengths=[[3, 5]])).on(8).rows(2, 6, kv_len=7)
    made = run(part, target)[MADE[target]]
    assert np.array_equal(READERS[target](made, (1, 1, 4, 7)), part.dense())


@pytest.mark.parametrize("target", ["additive", "torch.additive"])
@pytest.mark.parametrize("fill", ["-inf", "min", -3e4, -1234.5])
@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_dtype_and_fill_are_those_of_snippet(target: str, fill: Any, dtype: str) -> None:
    names: dict[str, Any] = {}
    options = {"q_len": 4, "dtype": dtype, "fill": fill}
    exec(mw.explain_lowering(mw.causal(), target, **options), names)
    right = mw.lower(mw.causal(), target, **options)
    assert names["bias"].dtype == right.dtype
    assert bool((names["bias"] == right).all())


def test_queries_before_first_position_are_not_first_tokens() -> None:
    mask = mw.padding(lengths=[3]).T & mw.window(1, None)
    names: dict[str, Any] = {}
    exec(mw.explain_lowering(mask, "numpy", q_len=5, kv_len=3, q_start=-2), names)
    assert np.array_equal(names["mask"], mask.on(5, 3, q_start=-2).dense())


def test_term_without_effect_is_not_written() -> None:
    said = mw.explain_lowering(mw.causal() & mw.everything(), "numpy", q_len=3)
    assert "broadcast_to(col <= row, (1, 1, 3, 3))" in said


@pytest.mark.parametrize("kind", ["float32", "float64"])
def test_floats_are_written_as_floats(kind: str) -> None:
    mask = mw.causal() & mw.padding(lengths=[2, 3])
    said = mw.explain_lowering(mask, "torch.sdpa", q_len=3, dtype=kind)
    assert "0 keeps, -inf masks" in said
    assert "True keeps" not in said.splitlines()[-1]
    q = torch.randn(2, 2, 3, 4, dtype=getattr(torch, kind))
    names: dict[str, Any] = {"q": q, "k": q, "v": q}
    exec(said, names)
    given_form = mw.lower(mask, "torch.sdpa", q_len=3, dtype=kind)
    assert torch.equal(names["bias"], given_form["attn_mask"])
    said = mw.explain_lowering(mask, "torch.mha", q_len=3, dtype=kind)
    assert kind == "float32" or f"dtype=torch.{kind}" in said
    assert "True masks" not in said


def test_queries_of_one_text_look_at_another() -> None:
    said = mw.explain_lowering(mw.padding(lengths=[4]), "torch.mha", q_len=2, kv_len=5)
    assert "attention(x, memory, memory, " in said
