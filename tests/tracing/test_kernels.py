"""Effective masks of torch's, nn's and maskwright's attention functions."""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.nn.attention.bias import causal_lower_right

import maskwright as mw
from maskwright.engine.api import override_attention
from maskwright.tracing import recording, trace
from tests._helpers.traced_modules import (
    CAUSAL,
    FUTURE,
    INF,
    IS_PADDING,
    LENGTHS,
    MASKS,
    PADDING,
    B,
    C,
    D,
    H,
    T,
    assert_visible,
    cells,
    sdpa,
    tensors,
    tokens,
    trace_unchanged,
)

if TYPE_CHECKING:
    from maskwright import Mask

# ── scaled_dot_product_attention ──────────────────────────────────────────────────────────────


@pytest.mark.parametrize("form", ["bool", "-inf", "-1e9", "-200"])
@pytest.mark.parametrize("name", MASKS)
def test_sdpa_attn_mask(name: str, form: str) -> None:
    keep = torch.from_numpy(cells(MASKS[name]))
    fill = 0.0 if form == "bool" else float(form)
    mask = keep if form == "bool" else torch.zeros(keep.shape).masked_fill(~keep, fill)
    [call] = trace(sdpa, *tensors(), attn_mask=mask)
    assert call.kernel == "sdpa"
    assert call.convention == ("bool, True keeps" if form == "bool" else "added")
    assert torch.equal(call.mask_argument, mask)
    if name == "inverted" and fill:
        # The last row is fully masked, so that a finite value masks nothing in it.
        rows = slice(0, T - 1) if math.isfinite(fill) else slice(0, T)
        assert (call.visible[:, :, rows] == cells(~CAUSAL)[:, :, rows]).all()
        assert call.visible[:, :, -1].all() == math.isfinite(fill)
    else:
        assert_visible(call, MASKS[name])
        assert repr(call.mask) == repr(
            mw.recognize(call.visible, axes="bhqk", polarity="keep").mask
        )


@pytest.mark.parametrize("fill", [-1.0, 1.0, -50.0])
def test_additive_values_that_leave_weight_mask_nothing(fill: float) -> None:
    mask = torch.zeros(T, T).masked_fill(FUTURE, fill)
    [call] = trace(sdpa, *tensors(), attn_mask=mask)
    assert call.mask == mw.everything()
    assert call.masked_share == 0.0
    assert call.convention == "added"


def test_distant_keys_under_alibi_are_visible() -> None:
    length = 400
    q, k, v = (x.expand(B, H, length, D) for x in tensors(1))
    far = torch.arange(length)[None] - torch.arange(length)[:, None]
    slopes = -far.abs().float() * 0.9
    [call] = trace(sdpa, q, k, v, attn_mask=slopes)
    assert call.mask == mw.everything()
    [call] = trace(sdpa, q, k, v, attn_mask=slopes.masked_fill(far > 0, -INF))
    assert call.mask == CAUSAL


def test_is_causal_is_aligned_at_upper_left() -> None:
    q, k, v = tensors(T, T + 3)
    [call] = trace(sdpa, q, k, v, is_causal=True)
    assert call.convention == "is_causal"
    assert_visible(call, CAUSAL, q_start=0)
    assert call.mask_text == "causal() from q_start=0"
    [call] = trace(sdpa, q, k, v, attn_mask=causal_lower_right(T, T + 3))
    assert_visible(call, CAUSAL)
    assert call.mask_text == "causal()"


def test_gqa_and_fewer_than_four_axes() -> None:
    q, k, v = tensors(heads=2)
    mask = torch.zeros(T, T).masked_fill(FUTURE, -INF)
    [call] = trace(sdpa, q, k, v, attn_mask=mask, enable_gqa=True)
    assert_visible(call, CAUSAL)
    assert (call.q_shape, call.k_shape) == ((B, H, T, D), (B, 2, T, D))
    for x in (q[0], q[0, 0], q[None]):
        [call] = trace(sdpa, x, x, x, is_causal=True)
        assert call.mask == CAUSAL
        assert len(call.q_shape) == 4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes(dtype: torch.dtype) -> None:
    mask = torch.zeros(T, T).to(dtype).masked_fill(FUTURE, torch.finfo(dtype).min)
    [call] = trace(sdpa, *(x.to(dtype) for x in tensors()), attn_mask=mask)
    assert call.mask == CAUSAL


def test_sdpa_by_torch_ops_and_in_inference_mode() -> None:
    q, k, v = tensors()
    [call] = trace(torch.ops.aten.scaled_dot_product_attention, q, k, v, None, 0.0, True)
    assert call.mask == CAUSAL

    @torch.inference_mode()
    def inferred(q: torch.Tensor) -> torch.Tensor:
        return sdpa(q, q, q, is_causal=True)

    [call] = trace(inferred, q)
    assert (call.kernel, call.mask) == ("sdpa", CAUSAL)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("layout", [torch.strided, torch.jagged], ids=["strided", "jagged"])
def test_nested_tensors(layout: Any) -> None:
    each = [torch.randn(n, H, D) for n in LENGTHS]
    x = torch.nested.nested_tensor(each, layout=layout).transpose(1, 2)
    [call] = trace(sdpa, *[x if layout == torch.jagged else x.contiguous()] * 3)
    assert (call.mask, call.convention) == (PADDING, "nested tensor")
    assert call.shapes == ((B, H, T, D), (B, H, T, T), (B, H, T, D))


def test_vmap_and_checkpoints() -> None:
    from torch.utils.checkpoint import checkpoint

    def attend(q: torch.Tensor) -> torch.Tensor:
        return sdpa(q, q, q, is_causal=True)

    q, _, _ = tensors()
    [call] = trace(torch.vmap(attend), q)
    assert call.mask == CAUSAL
    for reentrant in (True, False):
        with recording(attend) as recorder:
            q = q.detach().requires_grad_()
            checkpoint(attend, q, use_reentrant=reentrant).sum().backward()
        [call] = recorder.calls  # the recomputation in backward is not recorded
        assert call.mask == CAUSAL


# ── nn.MultiheadAttention ─────────────────────────────────────────────────────────────────────


def mha_arguments() -> dict[str, tuple[dict[str, Any], Mask, str]]:
    dropped = {name: ~torch.from_numpy(cells(mask)[0, 0]) for name, mask in MASKS.items()}
    added = torch.zeros(T, T).masked_fill(FUTURE, -INF)
    return {
        "none": ({}, mw.everything(), "none"),
        "bool": ({"attn_mask": dropped["causal"]}, CAUSAL, "bool, True masks"),
        "inverted": ({"attn_mask": ~dropped["causal"]}, ~CAUSAL, "bool, True masks"),
        "window": ({"attn_mask": dropped["window"]}, mw.window(back=2), "bool, True masks"),
        "float": ({"attn_mask": added}, CAUSAL, "added"),
        "padding": ({"key_padding_mask": IS_PADDING}, PADDING, "bool, True masks"),
        "both": (
            {"attn_mask": dropped["causal"], "key_padding_mask": IS_PADDING},
            CAUSAL & PADDING,
            "bool, True masks",
        ),
        "hint": ({"attn_mask": dropped["causal"], "is_causal": True}, CAUSAL, ""),
    }


@pytest.mark.parametrize("weights", [True, False], ids=["weights", "no weights"])
@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no grad"])
@pytest.mark.parametrize("batch_first", [True, False], ids=["batch first", "batch second"])
@pytest.mark.parametrize("name", mha_arguments())
def test_multihead_attention(name: str, batch_first: bool, grad: bool, weights: bool) -> None:
    given, mask, convention = mha_arguments()[name]
    layer = nn.MultiheadAttention(C, H, batch_first=batch_first).eval()
    x = tokens() if batch_first else tokens().transpose(0, 1)
    with torch.set_grad_enabled(grad), recording(layer) as recorder:
        layer(x, x, x, need_weights=weights, **given)
    [call] = recorder.calls
    fast = batch_first and not grad and name != "float"
    assert call.kernel == ("mha fast path" if fast else "mha")
    assert_visible(call, mask)
    assert call.q_shape == (B, H, T, D)
    assert call.shapes == (x.shape, (B, H, T, D), (B, H, T, T), (B, H, T, D), x.shape)
    assert not call.cross
    assert not call.after_softmax
    if name == "hint":
        assert call.convention == ("bool, True masks" if weights or fast else "is_causal")
    else:
        assert call.convention == convention
    assert list(call.masks) == [key for key in given if key != "is_causal"]
    if not grad:
        trace_unchanged(layer, x, x, x, need_weights=weights, **given)


def test_mha_with_is_causal_ignores_mask() -> None:
    """With need_weights=False, nn.MultiheadAttention ignores attn_mask if is_causal is given."""
    layer = nn.MultiheadAttention(C, H).eval()
    x = tokens().transpose(0, 1)
    window = ~torch.from_numpy(cells(MASKS["window"])[0, 0])
    [call] = trace(layer, x, x, x, attn_mask=window, is_causal=True, need_weights=False)
    assert call.mask == CAUSAL
    [call] = trace(layer, x, x, x, attn_mask=window, is_causal=True, need_weights=True)
    assert call.mask == mw.window(back=2)


def test_multihead_cross_attention() -> None:
    layer = nn.MultiheadAttention(C, H, batch_first=True)
    memory = tokens(T, seed=1)
    [call] = trace(layer, tokens(3), memory, memory, key_padding_mask=IS_PADDING)
    assert call.cross
    assert_visible(call, PADDING)
    [call] = trace(layer, tokens(T), memory, memory)
    assert call.cross


def test_multi_head_attention_forward_without_module() -> None:
    layer = nn.MultiheadAttention(C, H)
    x = tokens().transpose(0, 1)

    def attend(x: torch.Tensor) -> Any:
        return F.multi_head_attention_forward(
            x, x, x, C, H, layer.in_proj_weight, layer.in_proj_bias, None, None, False, 0.0,
            layer.out_proj.weight, layer.out_proj.bias, attn_mask=FUTURE, training=False,
        )  # fmt: skip

    [call] = trace_unchanged(attend, x)
    assert (call.layer, call.kernel, call.mask) == ("", "mha", CAUSAL)
    assert call.q_shape == (B, H, T, D)
    assert call.convention == "bool, True masks"


# ── flex_attention ────────────────────────────────────────────────────────────────────────────


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inductor's own
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention() -> None:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q, k, v = tensors()
    lengths = torch.tensor(LENGTHS)
    block_mask = create_block_mask(
        lambda b, h, q, k: (q >= k) & (k < lengths[b]), B, None, T, T, device="cpu"
    )
    for attend in (flex_attention, torch.compile(flex_attention)):
        [call] = trace(attend, q, k, v, block_mask=block_mask)
        assert (call.kernel, call.convention) == ("flex", "mask_mod")
        assert_visible(call, CAUSAL & PADDING)
        [call] = trace(attend, q, k, v)
        assert (call.mask, call.convention) == (mw.everything(), "none")
    trace_unchanged(flex_attention, q, k, v, block_mask=block_mask)
    for fill in (-INF, -1e9):

        def later(score: Any, b: Any, h: Any, q: Any, k: Any, fill: float = fill) -> Any:
            return torch.where(q >= k, score, fill)

        def score_mod(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
            return later(score, b, h, q, k)

        [call] = trace(flex_attention, q, k, v, score_mod=score_mod)
        assert (call.mask, call.convention) == (CAUSAL, "score_mod")


# ── maskwright's own ──────────────────────────────────────────────────────────────────────────


def test_maskwright_attention() -> None:
    from maskwright.integrations import MultiheadAttention

    q, k, v = tensors()
    mask = CAUSAL & PADDING
    [call] = trace_unchanged(lambda q: mw.attention(q, k, v, mask), q)
    assert call.kernel == "maskwright"
    assert call.mask_argument is mask
    assert_visible(call, mask)
    for impl in ("blocks", "sdpa", "reference"):
        [call] = trace(mw.attention, q, k, v, mask, impl=impl)
        assert call.kernel == "maskwright"
    [call] = trace(sdpa, q, k, v, attn_mask=mask)
    assert call.kernel == "maskwright"
    assert_visible(call, mask)
    [call] = trace(mw.attention, q[:, :, -2:], k, v, CAUSAL)
    assert call.mask_text == "causal()"
    layer, x = MultiheadAttention(C, H, batch_first=True), tokens()
    [call] = trace(layer, x, x, x, attn_mask=mask, need_weights=False)
    assert (call.kernel, call.cross) == ("maskwright", False)
    assert_visible(call, mask)
    [call] = trace(layer, x, x, x, attn_mask=mask, need_weights=True)
    assert_visible(call, mask)


def test_no_mask_and_everything_differ_in_convention() -> None:
    q, k, v = tensors()
    [call] = trace(mw.attention, q, k, v)
    assert (call.convention, call.masks, call.mask) == ("none", {}, mw.everything())
    [call] = trace(mw.attention, q, k, v, mw.everything())
    assert (call.convention, list(call.masks)) == ("a mask", ["mask"])


def test_q_start_and_bound_masks() -> None:
    q, k, v = tensors(T, T + 3)
    for given in ({"mask": CAUSAL, "q_start": 0}, {"mask": CAUSAL.on(T, T + 3, q_start=0)}):
        [call] = trace(mw.attention, q, k, v, **given)
        assert call.mask_text == "causal() from q_start=0"
        assert_visible(call, CAUSAL, q_start=0)


def test_gradients_and_nested_recordings() -> None:
    q, k, v = (x.requires_grad_() for x in tensors())
    mask = CAUSAL & PADDING
    expected = torch.autograd.grad(mw.attention(q, k, v, mask).sum(), (q, k, v))
    with recording(mw.attention, outputs=True) as outer, recording(mw.attention) as inner:
        out = mw.attention(q, k, v, mask)
        found = torch.autograd.grad(out.sum(), (q, k, v))
    for recorder in (outer, inner):
        [call] = recorder.calls
        assert (call.kernel, call.mask_argument) == ("maskwright", mask)
    assert torch.equal(outer.outputs[0], out)
    for grad, right in zip(found, expected, strict=True):
        torch.testing.assert_close(grad, right)
    mw.attention(q, k, v, mask)
    assert len(outer.calls) == len(inner.calls) == 1


def test_other_threads_are_not_recorded() -> None:
    q, k, v = tensors()
    with ThreadPoolExecutor(1) as other, recording(mw.attention) as recorder:
        plain = other.submit(mw.attention, q, k, v, PADDING).result()
        # A copied context carries the observer into the other thread, where it records nothing.
        copied = other.submit(copy_context().run, mw.attention, q, k, v, PADDING).result()
        mw.attention(q, k, v, CAUSAL)
        assert (
            other.submit(trace, mw.attention, q, k, v, PADDING).result()[0].mask_argument is PADDING
        )
    [call] = recorder.calls
    assert call.mask_argument is CAUSAL
    expected = mw.attention(q, k, v, PADDING)
    assert torch.equal(plain, expected)
    assert torch.equal(copied, expected)


def test_override_applies_to_own_thread() -> None:
    q, k, v = tensors()
    expected = mw.attention(q, k, v, CAUSAL)
    seen = []

    def override(q: Any, k: Any, v: Any, mask: Any, options: Any) -> str:
        seen.append((mask, options))
        return "replaced"

    with ThreadPoolExecutor(1) as other, override_attention(override):
        assert mw.attention(q, k, v, CAUSAL, impl="blocks") == "replaced"
        elsewhere = other.submit(mw.attention, q, k, v, CAUSAL)
        assert torch.equal(elsewhere.result(), expected)
    [(mask, options)] = seen
    assert (mask, options.impl) == (CAUSAL, "blocks")
    assert torch.equal(mw.attention(q, k, v, CAUSAL), expected)
