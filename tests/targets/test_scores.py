"""`lower` with bias, softcap and sinks: the framework's output is that of float64, or a refusal."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import event, given, note, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention

import maskwright as mw
from maskwright.core.oracle import truth as mask_truth
from maskwright.targets.lower import TARGETS
from maskwright.targets.torch_flex import apply_sinks
from tests._helpers import bias_truth
from tests._helpers.bias_strategies import biases
from tests._helpers.reference_attention import attention_with_scores, random_qkv
from tests._helpers.strategies import bind
from tests._helpers.target_runners import mha_module, onnx_feeds, onnx_model, onnx_runtime
from tests._helpers.target_strategies import for_target

if TYPE_CHECKING:
    from collections.abc import Callable

    from maskwright import Frame

WIDTH = 4
ALL = ("bias", "softcap", "sinks")


def qkv(allowed: np.ndarray) -> list[torch.Tensor]:
    return [torch.from_numpy(x) for x in random_qkv(allowed.shape, WIDTH)]


def float32_qkv(allowed: np.ndarray) -> list[np.ndarray]:
    """(B, T, H, D)."""
    return [np.moveaxis(x, 1, 2).astype(np.float32) for x in random_qkv(allowed.shape, WIDTH)]


def by_hand(lowered: Any, allowed: np.ndarray) -> np.ndarray:
    """softmax(scores + lowered) @ v, where a fully masked row is 0."""
    q, k, v = qkv(allowed)
    scores = q @ k.mT / WIDTH**0.5 + torch.as_tensor(lowered, dtype=torch.float64)
    return (scores.softmax(-1).nan_to_num(0.0) @ v).numpy()


def sdpa(lowered: Any, allowed: np.ndarray) -> np.ndarray:
    mask = lowered["attn_mask"].double() if lowered["attn_mask"] is not None else None
    q, k, v = qkv(allowed)
    found = scaled_dot_product_attention(q, k, v, mask, is_causal=lowered["is_causal"])
    return found.numpy()


def xformers(lowered: Any, allowed: np.ndarray) -> np.ndarray:
    """A tensor, or LowerTriangularMaskWithTensorBias."""
    if not isinstance(lowered, torch.Tensor):
        lowered = lowered.materialize(allowed.shape, torch.float64)
    return by_hand(lowered.double(), allowed)


def mha(lowered: Any, allowed: np.ndarray) -> np.ndarray:
    b, h, t, _ = allowed.shape
    module = mha_module(h, torch.float64).eval()
    inputs = [x.transpose(1, 2).reshape(b, x.shape[2], h * WIDTH) for x in qkv(allowed)]
    arguments = {**lowered, "attn_mask": lowered["attn_mask"].double()}
    with torch.no_grad():
        out = module(*inputs, **arguments)[0]
    return out.reshape(b, t, h, WIDTH).transpose(1, 2).numpy()


def flex(lowered: Any, allowed: np.ndarray, sinks: Any = None) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
        out = flex_attention(*qkv(allowed), **lowered)
    return (apply_sinks(*out, torch.as_tensor(sinks)) if sinks is not None else out).numpy()


def jax(lowered: Any, allowed: np.ndarray) -> np.ndarray:
    from jax.nn import dot_product_attention

    return np.moveaxis(np.asarray(dot_product_attention(*float32_qkv(allowed), **lowered)), 1, 2)


def splash(lowered: Any, allowed: np.ndarray) -> np.ndarray:
    """Splash attention's own reference, which runs on every machine."""
    from jax import vmap
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernel

    q, k, v = random_qkv(allowed.shape, WIDTH)
    cap = lowered.get("attn_logits_soft_cap")
    run = kernel.make_masked_mha_reference(lowered["mask"])
    inputs = [x.astype(np.float32) for x in (q / np.sqrt(WIDTH), k, v)]
    ids, sinks = lowered["segment_ids"], lowered.get("sinks")

    def attend(q: Any, k: Any, v: Any, ids: Any) -> Any:
        return run(q, k, v, ids, sinks, attn_logits_soft_cap=cap)

    return np.asarray(vmap(attend)(*inputs, ids))


def keras(lowered: Any, allowed: np.ndarray) -> np.ndarray:
    from keras import ops

    out = ops.dot_product_attention(*float32_qkv(allowed), **lowered)
    return np.moveaxis(np.asarray(out), 1, 2)


def onnx(lowered: Any, allowed: np.ndarray) -> np.ndarray:
    """The reference evaluator, and ONNX Runtime where it has the attributes."""
    from onnx.reference import ReferenceEvaluator

    feeds = onnx_feeds(lowered, allowed, 0, np.float32)
    model = onnx_model(lowered, feeds, 24)
    out = ReferenceEvaluator(model).run(None, feeds)[0]
    fused = onnx_runtime(model, feeds)
    assert np.allclose(fused, out, rtol=2e-4, atol=2e-4)
    return out


def hf(lowered: Any, allowed: np.ndarray) -> np.ndarray:
    """transformers' eager attention, as its models call it."""
    from transformers.models.llama.modeling_llama import eager_attention_forward

    q, k, v = qkv(allowed)
    module = nn.Module().eval()
    module.num_key_value_groups = 1
    mask = lowered["attention_mask"].double()
    mask = mask.expand(allowed.shape[0], -1, -1, -1)
    out, _ = eager_attention_forward(module, q, k, v, mask, WIDTH**-0.5)
    return out.transpose(1, 2).numpy()


RUN: dict[str, Callable[..., np.ndarray]] = {
    "additive": by_hand,
    "torch.additive": by_hand,
    "xformers": xformers,
    "torch.sdpa": sdpa,
    "torch.mha": mha,
    "torch.flex": flex,
    "jax": jax,
    "jax.splash": splash,
    "keras": keras,
    "onnx": onnx,
    "hf": hf,
}
NO_KERNEL = {"flash.varlen"}  # its arguments are checked below


def test_every_target_that_takes_scores_is_run() -> None:
    takes = {name for name, target in mw.capabilities().items() if target.scores}
    assert takes == set(RUN) | NO_KERNEL
    for target in mw.capabilities().values():
        assert set(target.scores) <= set(ALL)
        assert bool(target.scores) == bool(target.score_call)


@pytest.mark.parametrize("target", RUN)
def test_output_is_that_of_float64(target: str) -> None:
    takes = mw.capabilities()[target].scores
    retraced = target == "torch.flex"  # for each call, which is slow

    @st.composite
    def cases(draw: st.DrawFn) -> Any:
        size = 100 if retraced else 600
        mask, frame = draw(for_target(target).filter(lambda case: case[1].cells <= size))
        used = draw(st.sets(st.sampled_from(sorted(takes)), min_size=1))
        bias = draw(biases(frame, depth=2)) if "bias" in used else None
        softcap = draw(st.sampled_from([0.5, 2.0, 30.0])) if "softcap" in used else None
        seed = draw(st.integers(0, 99))
        sinks = np.random.default_rng(seed).normal(size=frame.heads) if "sinks" in used else None
        return mask, frame, bias, softcap, sinks

    compiled = target in ("jax", "jax.splash")  # for each shape

    @settings(max_examples=10 if retraced else 20 if compiled else 40)
    @given(cases())
    def check(case: Any) -> None:
        check_one(target, *case)

    check()


def check_one(
    target: str, mask: mw.Mask, frame: Frame, bias: Any, softcap: Any, sinks: Any
) -> None:
    note(f"{mask!r}\n{frame}\n{bias!r} {softcap} {sinks}")
    shape = (frame.batch, frame.heads, frame.q_len, frame.kv_len)
    allowed = np.array(mask_truth(mask, frame), np.bool_).reshape(shape)
    options = {"dtype": "float64"} if target in ("additive", "torch.additive", "hf") else {}
    arguments = {"bias": bias, "softcap": softcap, "sinks": sinks, **options}
    try:
        lowered = mw.lower(bind(mask, frame), target, **arguments)
    except mw.Unsupported:
        event("refused")
        with pytest.raises(mw.Unsupported):  # for its mask, not for the scores
            mw.lower(bind(mask, frame), target, **options)
        return
    if 0 in shape:
        return  # frameworks take no maximum over no keys
    event("lowered")
    values = None if bias is None else bias_truth.truth(bias, frame)
    right = attention_with_scores(
        *random_qkv(shape, WIDTH), allowed, bias=values, softcap=softcap, sinks=sinks
    )
    extra = (sinks,) if target == "torch.flex" else ()
    found = RUN[target](lowered, allowed, *extra)
    rows = allowed.any(axis=3)
    if target not in ("hf",):  # where transformers' fully masked rows are unused
        assert not found[~rows].any()
    assert np.allclose(found[rows], right[rows], rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize("target", [name for name in TARGETS if name != "tensorflow"])
@pytest.mark.parametrize("name", ALL)
def test_what_a_target_does_not_take_is_refused_by_name(target: str, name: str) -> None:
    values = {"bias": mw.bias.per_key([0.5, 0.0, 0.0]), "softcap": 30.0, "sinks": [0.5]}
    if name in mw.capabilities()[target].scores:
        return
    mask: Any = (mw.everything(),) * 3 if target == "torch.transformer" else mw.everything()
    with pytest.raises(mw.Unsupported) as refusal:
        mw.lower(mask, target, 3, 3, **{name: values[name]})
    assert refusal.value.target == target
    assert refusal.value.term
    assert refusal.value.term.split("=")[0] in (name, repr(values["bias"]).split("=")[0])
    for other in ("torch.flex", "torch.sdpa", "jax.splash", "flash.varlen"):
        if other in str(refusal.value).partition("Use ")[2]:
            assert name in mw.capabilities()[other].scores


def test_flash_takes_alibi_and_softcap() -> None:
    lowered = mw.lower(
        mw.causal() & mw.documents(lengths=[[3, 5]]),
        "flash.varlen",
        heads=4,
        bias=2 * mw.bias.alibi(4),
        softcap=50.0,
    )
    assert lowered["alibi_slopes"].dtype == torch.float32
    assert np.allclose(lowered["alibi_slopes"], 2 * mw.bias.alibi(4).slope_values)
    assert lowered["softcap"] == 50.0
    assert lowered["window_size"] == (-1, -1)


@given(for_target("flash.varlen").filter(lambda case: case[1].cells <= 600))
def test_alibi_of_flash_is_that_of_the_frame(case: tuple[mw.Mask, Frame]) -> None:
    """By the documented formula of flash-attn: -slope * abs(i + S_k - S_q - j) in each segment."""
    mask, frame = case
    note(f"{mask!r}\n{frame}")
    bias = mw.bias.alibi(frame.heads)
    try:
        lowered = mw.lower(bind(mask, frame), "flash.varlen", bias=bias)
    except mw.Unsupported as refusal:
        event("refused for the bias" if refusal.term == repr(bias) else "refused for the mask")
        return
    event("lowered")
    right = bias_truth.truth(bias, frame)
    starts = [lowered[name].tolist() for name in ("cu_seqlens_q", "cu_seqlens_k")]
    slopes = lowered["alibi_slopes"].tolist()
    allowed = bind(mask, frame).dense()
    allowed = np.broadcast_to(allowed, right.shape)
    for n in range(len(starts[0]) - 1):
        (q0, q1), (k0, k1) = ((side[n], side[n + 1]) for side in starts)
        for i in range(q1 - q0):
            for j in range(k1 - k0):
                b, row = divmod(q0 + i, frame.q_len)
                key = k0 + j - b * frame.kv_len
                if not 0 <= key < frame.kv_len or not allowed[b, 0, row, key]:
                    continue
                distance = abs(i + (k1 - k0) - (q1 - q0) - j)
                for h in range(frame.heads):
                    assert np.isclose(-slopes[h] * distance, right[b, h, row, key], rtol=1e-5)


@pytest.mark.parametrize(
    "bias", [mw.bias.per_key([1.0] * 4), mw.bias.alibi(2) + mw.bias.relative([[0.0]])]
)
def test_flash_refuses_other_biases(bias: Any) -> None:
    with pytest.raises(mw.Unsupported) as refusal:
        mw.lower(mw.causal(), "flash.varlen", 4, heads=2, bias=bias)
    assert refusal.value.term in repr(bias)
    assert "ALiBi" in str(refusal.value)


def test_flash_refuses_alibi_of_other_positions() -> None:
    with pytest.raises(mw.Unsupported):
        mw.lower(mw.everything(), "flash.varlen", 4, 6, q_start=0, bias=mw.bias.alibi([0.5]))
    assert mw.lower(mw.everything(), "flash.varlen", 4, 6, bias=mw.bias.alibi([0.5]))


def test_splash_kernel_in_interpret_mode() -> None:
    """The kernel itself, with soft cap and sinks."""
    from jax.experimental.pallas.ops.tpu import splash_attention
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernel

    heads, tokens, width = 2, 256, 128
    sinks = np.array([0.5, -1.0])
    mask = mw.window(back=100)
    lowered = mw.lower(mask, "jax.splash", tokens, softcap=2.0, sinks=sinks)
    q, k, v = random_qkv((1, heads, tokens, tokens), width)
    made = kernel.make_splash_mha_single_device(
        lowered["mask"],
        block_sizes=splash_attention.BlockSizes(block_q=128, block_kv=128, block_kv_compute=128),
        attn_logits_soft_cap=lowered["attn_logits_soft_cap"],
        interpret=True,
    )
    inputs = [x[0].astype(np.float32) for x in (q / np.sqrt(width), k, v)]
    out = np.asarray(made(*inputs, sinks=lowered["sinks"]))
    allowed = np.broadcast_to(mask.on(tokens).dense(), (1, heads, tokens, tokens))
    right = attention_with_scores(q, k, v, allowed, softcap=2.0, sinks=sinks)[0]
    assert np.allclose(out, right, rtol=2e-3, atol=2e-3)


def test_gradients_reach_tables_through_sdpa_and_flex() -> None:
    tokens, heads = 6, 2
    torch.manual_seed(0)
    table = torch.randn(8, heads, dtype=torch.float64, requires_grad=True)
    bias = mw.bias.t5(table, max_distance=20)
    q, k, v = torch.randn(3, 1, heads, tokens, 4, dtype=torch.float64)
    bound = mw.causal().on(tokens, heads=heads)
    dense = (q @ k.mT / 2 + bias.dense(bound.frame)).masked_fill(
        ~torch.from_numpy(bound.dense()), -torch.inf
    )
    (right,) = torch.autograd.grad((dense.softmax(-1) @ v).square().sum(), table)
    lowered = mw.lower(bound, "torch.sdpa", bias=bias, dtype="float64")
    out = scaled_dot_product_attention(q, k, v, **lowered)
    (found,) = torch.autograd.grad(out.square().sum(), table)
    assert torch.allclose(found, right)


def test_biases_that_do_not_fit_a_dtype_or_a_fill_are_refused() -> None:
    large = mw.bias.tensor([[-1e5, 0.0], [0.0, 0.0]])
    for target in ("additive", "torch.additive", "torch.sdpa", "hf", "onnx"):
        with pytest.raises(mw.ArgumentError, match="float16"):
            mw.lower(mw.causal(), target, 2, bias=large, dtype="float16")
    for target in ("additive", "torch.additive"):
        with pytest.raises(mw.ArgumentError, match="fill"):
            mw.lower(mw.causal(), target, 2, bias=large, fill=-1e4)


@pytest.mark.parametrize(
    "arguments",
    [
        {"softcap": 0}, {"softcap": -1.0}, {"softcap": float("inf")}, {"softcap": True},
        {"softcap": "50"}, {"sinks": [0.5, float("nan")]}, {"sinks": [[0.5]]},
        {"bias": mw.bias.alibi(2).on(4)}, {"bias": "alibi(2)"},
        {"bias": mw.bias.per_key([0.0] * 3)}, {"sinks": [0.5] * 3, "heads": 2},
    ],
)  # fmt: skip
def test_invalid_arguments_are_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises((mw.ArgumentError, mw.FrameError)):
        mw.lower(mw.causal(), "torch.flex", 4, **arguments)


def test_onnx_representation_without_bias_is_refused() -> None:
    with pytest.raises(mw.ArgumentError, match="attn_mask"):
        mw.lower(mw.causal(), "onnx", 4, bias=mw.bias.alibi(2), representation="is_causal")
    lowered = mw.lower(mw.causal(), "onnx", 4, softcap=30.0)
    assert lowered.attributes == {"is_causal": 1, "softcap": 30.0}


@pytest.mark.parametrize("target", [*RUN, *NO_KERNEL])
def test_explained_code_is_valid_and_lowers_the_same(target: str) -> None:
    takes = mw.capabilities()[target].scores
    values = {"bias": mw.bias.alibi(2), "softcap": 30.0, "sinks": [0.5, 0.25]}
    arguments = {name: values[name] for name in takes}
    code = mw.explain_lowering(mw.causal(), target, 4, heads=2, **arguments)
    compile(code, target, "exec")
    lines = code.splitlines()
    stop = next(n for n, line in enumerate(lines) if line.startswith("lowered = "))
    space: dict[str, Any] = {}
    exec("\n".join(lines[: stop + 1]), space)
    assert type(space["lowered"]) is type(mw.lower(mw.causal(), target, 4, heads=2, **arguments))


def test_heads_are_those_of_bias_or_sinks() -> None:
    assert mw.lower(mw.causal(), "torch.sdpa", 4, bias=mw.bias.alibi(3))["attn_mask"].shape[1] == 3
    assert len(mw.lower(mw.causal(), "jax.splash", 4, sinks=[0.0, 1.0])["mask"].masks) == 2


@pytest.mark.parametrize("size", [0, 1])
def test_flex_takes_a_grid_of_one_cell(size: int) -> None:
    bias = mw.bias.grid([[0.5]], height=1, width=1)
    mod = mw.lower(mw.causal(), "torch.flex", q_len=size, bias=bias)["score_mod"]
    zero = torch.tensor(0)
    assert mod(torch.tensor(1.0), zero, zero, zero, zero).item() == 1.5
