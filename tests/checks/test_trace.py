"""`trace`: the mask that each attention call really has, whatever the call is made of."""

from __future__ import annotations

import json
import math
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.nn.attention.bias import causal_lower_right

import maskwright as mw
from maskwright.checks.trace import AttentionCall, recording, trace
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable

    from maskwright import Mask

B, H, T, D = 2, 4, 6, 8
C = H * D
LENGTHS = [4, 6]
INF = math.inf

LATER = torch.ones(T, T).triu(1).bool()
PADDED = torch.arange(T) >= torch.tensor(LENGTHS)[:, None]  # (B, T), True at padding
CAUSAL = mw.causal()
PADDING = mw.padding(lengths=LENGTHS)
PLANES: dict[str, Mask] = {
    "everything": mw.everything(),
    "causal": CAUSAL,
    "window": mw.window(back=2),
    "padding": PADDING,
    "causal and padding": CAUSAL & PADDING,
    "inverted": ~CAUSAL,
}


def cells(mask: Mask, q_len: int = T, kv_len: int | None = None, q_start: int | None = None) -> Any:
    return mask.on(q_len, kv_len, B, H, q_start).dense()


def assert_sees(call: AttentionCall, mask: Mask, **sizes: Any) -> None:
    queries, keys = call.seen.shape[2:]
    expected = cells(mask, queries, keys, **sizes)
    whole = np.broadcast_to(call.seen, (B, H, queries, keys))
    np.testing.assert_array_equal(whole, np.broadcast_to(expected, whole.shape))


def tensors(length: int = T, keys: int | None = None, heads: int = H) -> tuple[torch.Tensor, ...]:
    torch.manual_seed(0)
    keys = length if keys is None else keys
    return (
        torch.randn(B, H, length, D),
        torch.randn(B, heads, keys, D),
        torch.randn(B, heads, keys, D),
    )


def tokens(length: int = T, seed: int = 0) -> torch.Tensor:
    return torch.randn(B, length, C, generator=torch.Generator().manual_seed(seed))


def same_as_untraced(model: Any, *args: Any, **kwargs: Any) -> list[AttentionCall]:
    """The calls of a model, which gives to the bit what it gives by itself."""
    with torch.no_grad():
        plain = model(*args, **kwargs)
        with recording(model) as recorder:
            watched = model(*args, **kwargs)
    for one, other in zip(_flat(plain), _flat(watched), strict=True):
        assert torch.equal(one.nan_to_num(7.0), other.nan_to_num(7.0))
    return recorder.calls


def _flat(out: Any) -> list[torch.Tensor]:
    if isinstance(out, torch.Tensor):
        return [out]
    parts = out.values() if isinstance(out, dict) else out
    return [x for part in parts if isinstance(part, (torch.Tensor, tuple)) for x in _flat(part)]


# ── scaled_dot_product_attention ──────────────────────────────────────────────────────────────

sdpa = F.scaled_dot_product_attention


@pytest.mark.parametrize("form", ["bool", "-inf", "-1e9", "-200"])
@pytest.mark.parametrize("name", PLANES)
def test_sdpa_has_the_mask_that_it_was_given(name: str, form: str) -> None:
    keep = torch.from_numpy(cells(PLANES[name]))
    fill = 0.0 if form == "bool" else float(form)
    mask = keep if form == "bool" else torch.zeros(keep.shape).masked_fill(~keep, fill)
    [call] = trace(sdpa, *tensors(), attn_mask=mask)
    assert call.kernel == "sdpa"
    assert call.convention == ("bool, True keeps" if form == "bool" else "added")
    assert torch.equal(call.given, mask)
    if name == "inverted" and fill:
        # The last query sees nothing else, so that a finite fill hides nothing from it.
        rows = slice(0, T - 1) if math.isfinite(fill) else slice(0, T)
        assert (call.seen[:, :, rows] == cells(~CAUSAL)[:, :, rows]).all()
        assert call.seen[:, :, -1].all() == math.isfinite(fill)
    else:
        assert_sees(call, PLANES[name])
        assert repr(call.mask) == repr(mw.recognize(call.seen, axes="bhqk", polarity="keep").mask)


@pytest.mark.parametrize("fill", [-1.0, 1.0, -50.0])
def test_numbers_that_leave_a_weight_hide_nothing(fill: float) -> None:
    mask = torch.zeros(T, T).masked_fill(LATER, fill)
    [call] = trace(sdpa, *tensors(), attn_mask=mask)
    assert call.mask == mw.everything()
    assert call.hidden_share == 0.0
    assert call.convention == "added"


def test_alibi_far_away_is_seen() -> None:
    length = 400
    q, k, v = (x.expand(B, H, length, D) for x in tensors(1))
    far = torch.arange(length)[None] - torch.arange(length)[:, None]
    slopes = -far.abs().float() * 0.9
    [call] = trace(sdpa, q, k, v, attn_mask=slopes)
    assert call.mask == mw.everything()
    [call] = trace(sdpa, q, k, v, attn_mask=slopes.masked_fill(far > 0, -INF))
    assert call.mask == CAUSAL


def test_is_causal_is_from_the_upper_left() -> None:
    q, k, v = tensors(T, T + 3)
    [call] = trace(sdpa, q, k, v, is_causal=True)
    assert call.convention == "is_causal"
    assert_sees(call, CAUSAL, q_start=0)
    assert call.mask_text == "causal() from q_start=0"
    [call] = trace(sdpa, q, k, v, attn_mask=causal_lower_right(T, T + 3))
    assert_sees(call, CAUSAL)
    assert call.mask_text == "causal()"


def test_groups_of_heads_and_few_axes() -> None:
    q, k, v = tensors(heads=2)
    mask = torch.zeros(T, T).masked_fill(LATER, -INF)
    [call] = trace(sdpa, q, k, v, attn_mask=mask, enable_gqa=True)
    assert_sees(call, CAUSAL)
    assert (call.q_shape, call.k_shape) == ((B, H, T, D), (B, 2, T, D))
    for x in (q[0], q[0, 0], q[None]):
        [call] = trace(sdpa, x, x, x, is_causal=True)
        assert call.mask == CAUSAL
        assert len(call.q_shape) == 4


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_other_dtypes(dtype: torch.dtype) -> None:
    mask = torch.zeros(T, T).to(dtype).masked_fill(LATER, torch.finfo(dtype).min)
    [call] = trace(sdpa, *(x.to(dtype) for x in tensors()), attn_mask=mask)
    assert call.mask == CAUSAL


def test_sdpa_in_other_hands() -> None:
    """By an import of one's own, by torch.ops, in a script and in inference mode."""
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
    assert call.flow == ((B, H, T, D), (B, H, T, T), (B, H, T, D))


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
        [call] = recorder.calls  # and not a second one, when it is computed again
        assert call.mask == CAUSAL


# ── nn.MultiheadAttention ─────────────────────────────────────────────────────────────────────


def nn_masks() -> dict[str, tuple[dict[str, Any], Mask, str]]:
    dropped = {name: ~torch.from_numpy(cells(mask)[0, 0]) for name, mask in PLANES.items()}
    added = torch.zeros(T, T).masked_fill(LATER, -INF)
    return {
        "none": ({}, mw.everything(), "none"),
        "bool": ({"attn_mask": dropped["causal"]}, CAUSAL, "bool, True drops"),
        "inverted": ({"attn_mask": ~dropped["causal"]}, ~CAUSAL, "bool, True drops"),
        "window": ({"attn_mask": dropped["window"]}, mw.window(back=2), "bool, True drops"),
        "float": ({"attn_mask": added}, CAUSAL, "added"),
        "padding": ({"key_padding_mask": PADDED}, PADDING, "bool, True drops"),
        "both": (
            {"attn_mask": dropped["causal"], "key_padding_mask": PADDED},
            CAUSAL & PADDING,
            "bool, True drops",
        ),
        "hint": ({"attn_mask": dropped["causal"], "is_causal": True}, CAUSAL, ""),
    }


@pytest.mark.parametrize("weights", [True, False], ids=["weights", "no weights"])
@pytest.mark.parametrize("grad", [True, False], ids=["grad", "no grad"])
@pytest.mark.parametrize("batch_first", [True, False], ids=["batch first", "batch second"])
@pytest.mark.parametrize("name", nn_masks())
def test_multihead_attention(name: str, batch_first: bool, grad: bool, weights: bool) -> None:
    given, mask, convention = nn_masks()[name]
    layer = nn.MultiheadAttention(C, H, batch_first=batch_first).eval()
    x = tokens() if batch_first else tokens().transpose(0, 1)
    with torch.set_grad_enabled(grad), recording(layer) as recorder:
        layer(x, x, x, need_weights=weights, **given)
    [call] = recorder.calls
    fast = batch_first and not grad and name != "float"
    assert call.kernel == ("mha fast path" if fast else "mha")
    assert_sees(call, mask)
    assert call.q_shape == (B, H, T, D)
    assert call.flow == (x.shape, (B, H, T, D), (B, H, T, T), (B, H, T, D), x.shape)
    assert not call.cross
    assert not call.after_softmax
    if name == "hint":
        assert call.convention == ("bool, True drops" if weights or fast else "is_causal")
    else:
        assert call.convention == convention
    assert list(call.masks) == [key for key in given if key != "is_causal"]
    if not grad:
        same_as_untraced(layer, x, x, x, need_weights=weights, **given)


def test_a_wrong_hint_is_what_counts() -> None:
    """Without weights, nn's attention drops the mask and believes the hint."""
    layer = nn.MultiheadAttention(C, H).eval()
    x = tokens().transpose(0, 1)
    window = ~torch.from_numpy(cells(PLANES["window"])[0, 0])
    [call] = trace(layer, x, x, x, attn_mask=window, is_causal=True, need_weights=False)
    assert call.mask == CAUSAL
    [call] = trace(layer, x, x, x, attn_mask=window, is_causal=True, need_weights=True)
    assert call.mask == mw.window(back=2)


def test_multihead_attention_over_another_sequence() -> None:
    layer = nn.MultiheadAttention(C, H, batch_first=True)
    memory = tokens(T, seed=1)
    [call] = trace(layer, tokens(3), memory, memory, key_padding_mask=PADDED)
    assert call.cross
    assert_sees(call, PADDING)
    [call] = trace(layer, tokens(T), memory, memory)
    assert call.cross


def test_the_function_without_the_module() -> None:
    layer = nn.MultiheadAttention(C, H)
    x = tokens().transpose(0, 1)

    def attend(x: torch.Tensor) -> Any:
        return F.multi_head_attention_forward(
            x, x, x, C, H, layer.in_proj_weight, layer.in_proj_bias, None, None, False, 0.0,
            layer.out_proj.weight, layer.out_proj.bias, attn_mask=LATER, training=False,
        )  # fmt: skip

    [call] = same_as_untraced(attend, x)
    assert (call.layer, call.kernel, call.mask) == ("", "mha", CAUSAL)
    assert call.q_shape == (B, H, T, D)
    assert call.convention == "bool, True drops"


# ── nn.Transformer ────────────────────────────────────────────────────────────────────────────


def encoder(nested: bool, layers: int = 2, **options: Any) -> nn.TransformerEncoder:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(C, H, C, batch_first=True, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.TransformerEncoder(layer, layers, enable_nested_tensor=nested).eval()


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize("nested", [True, False], ids=["nested", "padded"])
def test_encoder_fast_path(nested: bool) -> None:
    model = encoder(nested)
    calls = same_as_untraced(model, tokens(), src_key_padding_mask=PADDED)
    assert [call.layer for call in calls] == ["layers.0.self_attn", "layers.1.self_attn"]
    for call in calls:
        assert call.kernel == "encoder fast path"
        assert call.mask == PADDING
        assert call.convention == ("nested tensor" if nested else "bool, True drops")
        assert call.flow[0] == call.flow[-1] == (B, T, C)
        assert call.flow[1:4] == ((B, H, T, D), (B, H, T, T), (B, H, T, D))
    calls = same_as_untraced(model, tokens(), mask=LATER)
    assert {call.mask for call in calls} == {CAUSAL}
    assert {call.kernel for call in calls} == {"encoder fast path"}


def test_encoder_takes_numbers_for_truth_values_on_the_fast_path() -> None:
    bias = torch.zeros(T, T).masked_fill(LATER, 0.5)
    [call] = same_as_untraced(encoder(nested=False, layers=1), tokens(), mask=bias)
    assert call.kernel == "encoder fast path"
    assert call.mask == CAUSAL


def test_encoder_slow_paths() -> None:
    model = encoder(nested=False, norm_first=True)
    with recording(model) as recorder:  # with gradients
        model(tokens(), mask=LATER, src_key_padding_mask=PADDED)
    assert [call.layer for call in recorder.calls] == ["layers.0.self_attn", "layers.1.self_attn"]
    for call in recorder.calls:
        assert call.kernel == "mha"
        assert_sees(call, CAUSAL & PADDING)


def test_decoder_has_two_masks_a_layer() -> None:
    layer = nn.TransformerDecoderLayer(C, H, C, batch_first=True)
    model = nn.TransformerDecoder(layer, 2).eval()
    calls = same_as_untraced(
        model, tokens(3), tokens(seed=1), tgt_mask=LATER[:3, :3], memory_key_padding_mask=PADDED
    )
    assert [call.layer for call in calls] == [
        "layers.0.self_attn",
        "layers.0.multihead_attn",
        "layers.1.self_attn",
        "layers.1.multihead_attn",
    ]
    assert [call.cross for call in calls] == [False, True, False, True]
    assert [call.mask for call in calls] == [CAUSAL, PADDING, CAUSAL, PADDING]


def test_whole_transformer() -> None:
    model = nn.Transformer(C, H, 1, 1, C, batch_first=True).eval()
    calls = trace(model, tokens(), tokens(3, seed=1), tgt_is_causal=True, tgt_mask=LATER[:3, :3])
    assert [call.layer for call in calls] == [
        "encoder.layers.0.self_attn",
        "decoder.layers.0.self_attn",
        "decoder.layers.0.multihead_attn",
    ]
    assert [call.mask for call in calls] == [mw.everything(), CAUSAL, mw.everything()]
    assert [call.cross for call in calls] == [False, False, True]


# ── flex_attention ────────────────────────────────────────────────────────────────────────────


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # inductor's own
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
        assert_sees(call, CAUSAL & PADDING)
        [call] = trace(attend, q, k, v)
        assert (call.mask, call.convention) == (mw.everything(), "none")
    for fill in (-INF, -1e9):

        def later(score: Any, b: Any, h: Any, q: Any, k: Any, fill: float = fill) -> Any:
            return torch.where(q >= k, score, fill)

        def score_mod(score: Any, b: Any, h: Any, q: Any, k: Any) -> Any:
            return later(score, b, h, q, k)

        [call] = trace(flex_attention, q, k, v, score_mod=score_mod)
        assert (call.mask, call.convention) == (CAUSAL, "score_mod")


def test_flex_attention_gives_what_it_gives_untraced() -> None:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q, k, v = tensors()
    block_mask = create_block_mask(lambda b, h, q, k: q >= k, None, None, T, T, device="cpu")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        plain = flex_attention(q, k, v, block_mask=block_mask)
    with recording(flex_attention, outputs=True) as recorder:
        watched = flex_attention(q, k, v, block_mask=block_mask)
    assert torch.equal(plain, watched)
    assert torch.equal(plain, recorder.outputs[0])


# ── maskwright's own ──────────────────────────────────────────────────────────────────────────


def test_maskwright_attention() -> None:
    from maskwright.integrations.torch import MultiheadAttention

    q, k, v = tensors()
    mask = CAUSAL & PADDING
    [call] = same_as_untraced(lambda q: mw.attention(q, k, v, mask), q)
    assert call.kernel == "maskwright"
    assert call.given is mask
    assert_sees(call, mask)
    for impl in ("dense", "reference"):
        [call] = trace(mw.attention, q, k, v, mask, impl=impl)
        assert call.kernel == "maskwright"
    [call] = trace(sdpa, q, k, v, attn_mask=mask)
    assert call.kernel == "maskwright"
    assert_sees(call, mask)
    [call] = trace(mw.attention, q[:, :, -2:], k, v, CAUSAL)
    assert call.mask_text == "causal()"
    layer, x = MultiheadAttention(C, H, batch_first=True), tokens()
    [call] = trace(layer, x, x, x, attn_mask=mask, need_weights=False)
    assert (call.kernel, call.cross) == ("maskwright", False)
    assert_sees(call, mask)
    [call] = trace(layer, x, x, x, attn_mask=mask, need_weights=True)
    assert_sees(call, mask)


# ── written by hand ───────────────────────────────────────────────────────────────────────────

Weigh = "Callable[[torch.Tensor], torch.Tensor]"


class ByHand(nn.Module):
    """Attention with as many places to do it wrong as there are."""

    def __init__(
        self,
        before: Any = lambda scores: scores,
        after: Any = lambda weights: weights,
        form: str = "matmul",
        softmax: Any = lambda scores: scores.softmax(-1),
    ) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.project = nn.Linear(C, 3 * C)
        self.out = nn.Linear(C, C)
        self.drop = nn.Dropout(0.5)
        self.before, self.after, self.form, self.softmax = before, after, form, softmax

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = self.project(x).view(batch, length, 3, H, D).unbind(2)
        if self.form == "einsum":
            scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / math.sqrt(D)
            weights = self.after(self.drop(self.softmax(self.before(scores))))
            out = torch.einsum("bhqk,bkhd->bqhd", weights, v)
        elif self.form == "einsum, heads last":
            scores = torch.einsum("bqhd,bkhd->bqkh", q, k) / math.sqrt(D)
            weights = self.softmax(self.before(scores.permute(0, 3, 1, 2)))
            weights = self.after(weights.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2))
            out = torch.einsum("bhqk,bkhd->bqhd", weights, v)
        elif self.form == "bmm":
            q, k, v = (x.transpose(1, 2).reshape(-1, length, D) for x in (q, k, v))
            scores = torch.bmm(q, k.transpose(1, 2)).mul_(D**-0.5)
            scores = self.before(scores.view(batch, H, length, length))
            weights = self.softmax(scores.view(-1, length, length))
            weights = self.after(self.drop(weights).view(batch, H, length, length))
            out = torch.bmm(weights.view(-1, length, length), v)
            out = out.view(batch, H, length, D).transpose(1, 2)
        elif self.form == "transposed":
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            scores = (k @ q.mT).mT / math.sqrt(D)
            out = (v.mT @ self.after(self.softmax(self.before(scores))).mT).mT.transpose(1, 2)
        elif self.form == "queries first":
            scores = torch.einsum("bqhd,bkhd->bqhk", q, k) / math.sqrt(D)
            weights = self.softmax(self.before(scores.transpose(1, 2))).transpose(1, 2)
            weights = self.after(weights.transpose(1, 2)).transpose(1, 2)
            out = torch.einsum("bqhk,bkhd->bqhd", weights, v)
        else:
            q, k, v = (x.transpose(1, 2) for x in (q, k, v))
            scores = q @ k.transpose(-2, -1) / math.sqrt(D)
            out = self.after(self.drop(self.softmax(self.before(scores)))) @ v
            out = out.transpose(1, 2)
        return self.out(out.reshape(batch, length, C))


FORMS = ["matmul", "einsum", "einsum, heads last", "bmm", "transposed", "queries first"]
KEEP = ~LATER
APPLIED: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "masked_fill -inf": lambda s, keep: s.masked_fill(~keep, -INF),
    "masked_fill -1e9": lambda s, keep: s.masked_fill(~keep, -1e9),
    "masked_fill min": lambda s, keep: s.masked_fill(~keep, torch.finfo(s.dtype).min),
    "masked_fill_": lambda s, keep: s.masked_fill_(~keep, -INF),
    "masked_fill -200": lambda s, keep: s.masked_fill(~keep, -200.0),
    "where": lambda s, keep: torch.where(keep, s, -1e9),
    "where, turned": lambda s, keep: torch.where(~keep, torch.tensor(-INF), s),
    "add": lambda s, keep: s + torch.zeros(keep.shape).masked_fill(~keep, -INF),
    "add_": lambda s, keep: s.add_((1.0 - keep.float()) * -1e4),
    "sub": lambda s, keep: s - (~keep).float() * 1e9,
    "index": lambda s, keep: s.index_put((~keep.expand_as(s),), torch.tensor(-INF)),
    "before the scale": lambda s, keep: s.masked_fill(~keep, -1e3) / 8,
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", ["causal", "window", "causal and padding"])
def test_by_hand(name: str, form: str) -> None:
    keep = torch.from_numpy(cells(PLANES[name])).expand(B, H, T, T)
    model = nn.Sequential(ByHand(lambda s: s.masked_fill(~keep, -INF), form=form))
    [call] = same_as_untraced(model.eval(), tokens())
    assert (call.layer, call.kernel) == ("0", "softmax")
    assert_sees(call, PLANES[name])
    assert call.convention == "bool, True drops"
    assert call.q_shape == call.k_shape == call.v_shape == (B, H, T, D)
    assert call.flow == ((B, T, C), (B, H, T, D), (B, H, T, T), (B, H, T, D), (B, T, C))
    assert torch.equal(call.given, ~keep)
    assert not call.after_softmax
    assert not call.cross


@pytest.mark.parametrize("how", APPLIED)
def test_masks_before_the_softmax(how: str) -> None:
    [call] = same_as_untraced(ByHand(lambda s: APPLIED[how](s, KEEP)).eval(), tokens())
    assert call.mask == CAUSAL
    assert call.given is not None or how == "index"
    words = {"where": "bool, True keeps", "add": "added", "add_": "added", "sub": "added"}
    if how != "index":
        assert call.convention == words.get(how, "bool, True drops")


NOT_HIDING: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "nothing": lambda s: s,
    "0 and 1 added": lambda s: s + KEEP.float(),
    "1 and 0 added": lambda s: s + LATER.float(),
    "multiplied": lambda s: s * KEEP,
    "tril": lambda s: s.tril(),
    "-1": lambda s: s.masked_fill(LATER, -1.0),
    "-10 added": lambda s: s + LATER * -10.0,
    "capped afterwards": lambda s: torch.tanh(s.masked_fill(LATER, -1e9) / 5) * 5,
}


@pytest.mark.parametrize("how", NOT_HIDING)
def test_what_hides_nothing(how: str) -> None:
    [call] = same_as_untraced(ByHand(NOT_HIDING[how]).eval(), tokens())
    assert call.mask == mw.everything()
    assert not call.after_softmax
    assert (call.convention == "none") == (how in ("nothing", "tril"))


AFTER: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "masked_fill": lambda w: w.masked_fill(LATER, 0.0),
    "masked_fill_": lambda w: w.masked_fill_(LATER, 0.0),
    "multiplied": lambda w: w * KEEP,
    "multiplied by floats": lambda w: w * KEEP.float(),
    "where": lambda w: torch.where(KEEP, w, 0.0),
    "tril": lambda w: w.tril(),
}
WRONG_AFTER: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "-1e9": lambda w: w.masked_fill(LATER, -1e9),
    "added": lambda w: w + torch.zeros(T, T).masked_fill(LATER, -1e4),
}


@pytest.mark.parametrize("how", WRONG_AFTER)
def test_fills_after_the_softmax_hide_nothing(how: str) -> None:
    [call] = same_as_untraced(ByHand(after=WRONG_AFTER[how]).eval(), tokens())
    assert call.mask == mw.everything()
    assert call.after_softmax
    assert call.given.shape == (T, T)


@pytest.mark.parametrize("form", ["matmul", "bmm", "einsum"])
@pytest.mark.parametrize("how", AFTER)
def test_masks_after_the_softmax(how: str, form: str) -> None:
    [call] = same_as_untraced(ByHand(after=AFTER[how], form=form).eval(), tokens())
    assert call.mask == CAUSAL
    assert call.after_softmax
    assert call.convention == "after the softmax"


def test_weights_that_are_rescaled_sum_to_one() -> None:
    def rescaled(w: torch.Tensor) -> torch.Tensor:
        w = w * KEEP
        return w / w.sum(-1, keepdim=True)

    [call] = trace(ByHand(after=rescaled), tokens())
    assert call.mask == CAUSAL
    assert not call.after_softmax
    assert call.convention == "after the softmax, rescaled"


def test_empty_rows_that_are_cleared_afterwards() -> None:
    keep = torch.from_numpy(cells(~CAUSAL)[0, 0])
    [call] = trace(
        ByHand(lambda s: s.masked_fill(~keep, -INF), lambda w: w.nan_to_num(0.0)), tokens()
    )
    assert call.mask == ~CAUSAL or (call.seen == keep.numpy()).all()
    assert not call.after_softmax
    [call] = trace(
        ByHand(lambda s: s.masked_fill(~keep, -1e9), lambda w: w.masked_fill(~keep, 0.0)), tokens()
    )
    assert (call.seen == keep.numpy()).all()
    assert not call.after_softmax
    assert call.convention == "bool, True drops"
    [call] = trace(ByHand(lambda s: s.masked_fill(~keep, -INF)), tokens())  # the row is NaN
    assert (call.seen == keep.numpy()).all()


SOFTMAXES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "F.softmax": lambda s: F.softmax(s, dim=-1),
    "torch.softmax": lambda s: torch.softmax(s, -1),
    "nn.Softmax": nn.Softmax(dim=-1),
    "in single precision": lambda s: F.softmax(s, dim=-1, dtype=torch.float32).to(s.dtype),
    "special": lambda s: torch.special.softmax(s, -1),
    "safe": lambda s: torch._safe_softmax(s, -1),
    "exp": lambda s: (s - s.amax(-1, keepdim=True)).exp() / s.exp().sum(-1, keepdim=True),
    "exp_": lambda s: s.exp_().div_(s.sum(-1, keepdim=True)),
}


@pytest.mark.parametrize("how", SOFTMAXES)
def test_softmaxes(how: str) -> None:
    model = ByHand(lambda s: s.masked_fill(LATER, -INF), softmax=SOFTMAXES[how])
    [call] = trace(model, tokens())
    assert call.mask == CAUSAL
    assert call.layer == ""


def test_half_precision_loses_weights_that_no_mask_took() -> None:
    model = ByHand(lambda s: (s * 100).masked_fill(LATER, -INF)).half()
    model.softmax = SOFTMAXES["in single precision"]
    [call] = trace(model, tokens().half() * 4)
    assert call.mask == CAUSAL
    assert not call.after_softmax


def test_dropout_is_no_mask() -> None:
    model = ByHand(lambda s: s.masked_fill(LATER, -INF))
    with recording(model) as recorder:
        model.train()(tokens())
    [call] = recorder.calls
    assert call.mask == CAUSAL
    assert not call.after_softmax


def test_alibi_by_hand() -> None:
    far = torch.arange(300)[None] - torch.arange(300)[:, None]
    model = ByHand(lambda s: (s + far).masked_fill(far > 0, -INF))
    [call] = trace(model, tokens(300))
    assert call.mask == CAUSAL


def test_baddbmm() -> None:
    def attend(q: torch.Tensor) -> torch.Tensor:
        mask = torch.zeros(1, T, T).masked_fill(LATER, -1e4)
        return torch.bmm(torch.baddbmm(mask, q, q.transpose(1, 2)).softmax(-1), q)

    [call] = trace(attend, tensors()[0][0])
    assert (call.mask, call.convention) == (CAUSAL, "added")
    assert call.given.shape == (1, T, T)


def test_inference_mode_by_hand() -> None:
    model = ByHand(lambda s: s.masked_fill(LATER, -INF)).eval()
    with torch.inference_mode(), recording(model) as recorder:
        model(tokens())
    [call] = recorder.calls
    assert call.mask == CAUSAL


def test_one_head_and_shared_keys() -> None:
    def one_head(x: torch.Tensor) -> torch.Tensor:
        return (x @ x.mT).masked_fill(LATER, -INF).softmax(-1) @ x

    [call] = trace(one_head, tokens())
    assert (call.mask, call.q_shape) == (CAUSAL, (B, 1, T, C))

    def shared(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        scores = torch.einsum("bhqd,bkd->bhqk", q, k).masked_fill(LATER, -INF)
        return torch.einsum("bhqk,bkd->bhqd", scores.softmax(-1), k)

    q, k, _ = tensors()
    [call] = trace(shared, q, k[:, 0])
    assert (call.mask, call.q_shape, call.k_shape) == (CAUSAL, (B, H, T, D), (B, 1, T, D))


def test_one_query_and_a_cache() -> None:
    class Cached(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project = nn.Linear(C, 3 * C)

        def forward(self, x: torch.Tensor, past: torch.Tensor) -> torch.Tensor:
            q, k, v = (
                x.view(B, -1, H, D).transpose(1, 2) for x in self.project(x).chunk(3, dim=-1)
            )
            k, v = torch.cat([past, k], 2), torch.cat([past, v], 2)
            return (q @ k.mT).softmax(-1) @ v

    [call] = trace(Cached(), tokens(1), tensors(5)[0])
    assert call.mask == mw.everything()
    assert (call.q_shape, call.k_shape) == ((B, H, 1, D), (B, H, 6, D))
    assert not call.cross


def test_sinks_are_no_keys() -> None:
    def sink(scores: torch.Tensor) -> torch.Tensor:
        scores = scores.masked_fill(LATER, -INF)
        wide = torch.cat([scores, torch.zeros(B, H, T, 1)], -1)
        return wide.softmax(-1)[..., :-1]

    [call] = trace(ByHand(softmax=sink), tokens())
    assert call.mask == CAUSAL
    assert not call.after_softmax


def test_weights_that_are_computed_are_no_tokens() -> None:
    model = ByHand(lambda s: s.masked_fill(LATER, -INF))
    nn.utils.parametrizations.weight_norm(model.project)
    [call] = trace(model, tokens())
    assert (call.mask, call.cross) == (CAUSAL, False)


def test_a_buffer_that_layers_share() -> None:
    buffer = torch.empty(B, H, T, T)

    def through(scores: torch.Tensor) -> torch.Tensor:
        return buffer.copy_(scores).masked_fill_(LATER, -INF)

    for call in trace(Stack(ByHand(through), ByHand(through)), tokens()):
        assert (call.mask, call.convention) == (CAUSAL, "bool, True drops")


class Mixture(nn.Module):
    """Experts that a router weighs, and words at the end: softmaxes that are no attention."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = ByHand(lambda s: s.masked_fill(LATER, -INF))
        self.router, self.words = nn.Linear(C, 3), nn.Linear(C, 9)
        self.experts = nn.Parameter(torch.randn(3, C, C))
        self.embedding = nn.Parameter(torch.randn(9, C))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.attention(x)
        share = self.router(x).softmax(-1)
        each = torch.einsum("btc,ecd->bted", x, self.experts)
        x = torch.einsum("bte,bted->btd", share, each)
        return self.words(x).softmax(-1) @ self.embedding


def test_routers_and_distributions_are_not_recorded() -> None:
    calls = trace(Mixture(), tokens())
    assert [call.layer for call in calls] == ["attention"]


# ── models of transformers ────────────────────────────────────────────────────────────────────

IDS = torch.tensor([[5, 6, 7, 8, 0, 0], [5, 6, 7, 8, 9, 4]])
REAL = (IDS != 0).long()


def assert_real_rows_see(call: AttentionCall, mask: Mask) -> None:
    """Rows of padding may see what they like."""
    rows = np.broadcast_to(~PADDED.numpy()[:, None, :], (B, H, T))
    whole = np.broadcast_to(call.seen, (B, H, T, T))
    np.testing.assert_array_equal(whole[rows], np.broadcast_to(cells(mask), whole.shape)[rows])


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral"])
def test_decoders(name: str, implementation: str) -> None:
    from tests.integrations.tiny_models import DECODERS, WINDOW

    [tiny] = [tiny for tiny in DECODERS if tiny.name == name]
    model = tiny.build(implementation)
    calls = same_as_untraced(model, IDS, attention_mask=REAL)
    stem = "transformer.h.{}.attn" if name == "gpt2" else "model.layers.{}.self_attn"
    assert [call.layer for call in calls] == [stem.format(i) for i in range(2)]
    mask = CAUSAL & PADDING
    if name == "mistral":
        mask = mask & mw.window(back=WINDOW - 1)
    for call in calls:
        assert call.kernel == ("softmax" if implementation == "eager" else "sdpa")
        assert not call.cross
        assert_real_rows_see(call, mask)
    [call, *_] = trace(model, IDS[1:])
    assert call.mask == (mw.window(back=WINDOW - 1) if name == "mistral" else CAUSAL)
    assert call.q_shape == (1, H, T, D)


def test_bert() -> None:
    import transformers

    config = transformers.BertConfig(
        vocab_size=40, hidden_size=C, intermediate_size=C, num_hidden_layers=2,
        num_attention_heads=H,
    )  # fmt: skip
    for implementation in ("eager", "sdpa"):
        config._attn_implementation = implementation
        model = transformers.BertModel(config).eval()
        calls = same_as_untraced(model, IDS, attention_mask=REAL)
        assert [call.layer for call in calls] == [
            f"encoder.layer.{i}.attention.self" for i in range(2)
        ]
        for call in calls:
            assert call.mask == PADDING


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_encoder_decoders(name: str) -> None:
    import transformers

    if name == "t5":
        config = transformers.T5Config(
            vocab_size=40, d_model=C, d_kv=D, d_ff=C, num_layers=2, num_heads=H,
            decoder_start_token_id=0,
        )  # fmt: skip
        model = transformers.T5ForConditionalGeneration(config).eval()
    else:
        from tests.integrations.tiny_models import SEQ2SEQ

        config = transformers.BartConfig(**SEQ2SEQ)
        config._attn_implementation = "eager"
        model = transformers.BartForConditionalGeneration(config).eval()
    target = torch.tensor([[1, 2, 3, 4], [4, 3, 2, 1]])
    calls = same_as_untraced(
        model, input_ids=IDS, attention_mask=REAL, decoder_input_ids=target, use_cache=False
    )
    assert len(calls) == 6
    assert [call.cross for call in calls] == [False] * 2 + [False, True] * 2
    assert all("encoder" in call.layer for call in calls[:2])
    assert all("decoder" in call.layer for call in calls[2:])
    expected = [PADDING, PADDING, CAUSAL, PADDING, CAUSAL, PADDING]
    assert [call.mask for call in calls] == expected


# ── what holds for all ────────────────────────────────────────────────────────────────────────


class Stack(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


def causal_layer() -> ByHand:
    return ByHand(lambda s: s.masked_fill(LATER, -INF))


def test_layers_that_differ_are_named() -> None:
    found = trace(Stack(causal_layer(), ByHand(), causal_layer(), ByHand()), tokens())
    assert [call.layer for call in found] == [f"layers.{i}" for i in range(4)]
    assert found.differences == (
        "layers.1, layers.3 have another mask than layers.0: everything()",
    )
    lines = str(found).splitlines()
    assert len(lines) == 6
    assert lines[1].startswith("layers.0  softmax  (2, 6, 32) → (2, 4, 6, 8) → ")
    assert "causal()" in lines[1]
    assert lines[1].endswith("42 %")
    assert trace(Stack(causal_layer(), causal_layer()), tokens()).differences == ()
    assert str(trace(nn.Linear(C, C), tokens())) == "no attention calls"


def test_a_trace_is_a_sequence_and_plain_data() -> None:
    found = trace(Stack(causal_layer(), causal_layer()), tokens())
    assert len(found) == 2
    assert found[1].index == 1
    assert [call.layer for call in found] == ["layers.0", "layers.1"]
    told = json.loads(json.dumps(found.as_dict()))["calls"][0]
    assert told["mask"] == "causal()"
    assert told["flow"][2] == [B, H, T, T]
    with pytest.raises(AttributeError):
        found[0].layer = "other"  # type: ignore[misc]
    with pytest.raises(ValueError, match="read-only"):
        found[0].seen[0] = True


def test_what_no_expression_says() -> None:
    keep = torch.rand(B, H, T, T) > 0.5
    [call] = trace(sdpa, *tensors(), attn_mask=keep | torch.eye(T).bool())
    assert call.mask is not None
    assert len(call.mask_text) < 80


def test_functions_that_call_modules() -> None:
    model = Stack(causal_layer())
    assert [call.layer for call in trace(lambda x: model(x), tokens())] == ["layers.0"]
    assert [call.layer for call in trace(model.forward, tokens())] == ["layers.0"]


def test_compiled_models_run_eagerly() -> None:
    model = torch.compile(Stack(causal_layer()), backend="eager")
    [call] = trace(model, tokens())
    assert (call.layer, call.mask) == ("layers.0", CAUSAL)


def test_outputs_and_modules_are_kept() -> None:
    model = Stack(causal_layer(), ByHand()).eval()
    with torch.no_grad(), recording(model, outputs=True, modules=True) as recorder:
        out = model(tokens())
    assert [tuple(x.shape) for x in recorder.outputs] == [(B, H, T, D)] * 2
    names = [name for name, _ in recorder.modules]
    assert names[-1] == ""
    assert (
        names.index("layers.0.project") < names.index("layers.0") < names.index("layers.1.project")
    )
    assert torch.equal(recorder.modules[-1][1], out)


def leftovers() -> tuple[object, ...]:
    return (
        nn.Module.__call__,
        torch.overrides.has_torch_function,
        F.has_torch_function,
        torch.overrides._get_current_function_mode_stack(),
        torch.utils._python_dispatch._get_current_dispatch_mode_stack(),
    )


def test_a_model_that_raises_leaves_nothing_behind() -> None:
    def fail(scores: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("on purpose")

    model, before = Stack(causal_layer(), ByHand(fail)), leftovers()
    model.layers[0].train()
    model.layers[1].eval()
    with pytest.raises(RuntimeError, match="on purpose"):
        trace(model, tokens())
    assert leftovers() == before
    assert [layer.training for layer in model.layers] == [True, False]
    with pytest.raises(RuntimeError, match="on purpose"), recording(model) as recorder:
        model(tokens())
    assert leftovers() == before
    assert [call.layer for call in recorder.calls] == ["layers.0"]
    with pytest.raises(RuntimeError):
        trace(sdpa, *tensors(), attn_mask=torch.ones(3, 3).bool())
    assert leftovers() == before


def test_the_model_is_left_as_it_was() -> None:
    model = Stack(causal_layer(), causal_layer()).train()
    state = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    trace(model, tokens())
    trace(lambda x: F.dropout(x), tokens())
    assert torch.equal(torch.rand(1), expected)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(model.state_dict()[name], value) for name, value in state.items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(not module._forward_hooks for module in model.modules())


def test_gradients_go_through_a_recording() -> None:
    model, x = Stack(causal_layer(), causal_layer()).eval(), tokens()
    model(x).sum().backward()
    plain = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    with recording(model) as recorder:
        model(x).sum().backward()
    assert len(recorder.calls) == 2
    for one, parameter in zip(plain, model.parameters(), strict=True):
        assert torch.equal(one, parameter.grad)


def test_recordings_nest() -> None:
    model = Stack(causal_layer()).eval()
    with recording(model) as outer, recording(model) as inner:
        model(tokens())
    assert [call.layer for call in outer.calls] == [call.layer for call in inner.calls]


def test_a_default_device_does_not_disturb() -> None:
    with torch.device("cpu"):
        [call] = trace(causal_layer(), tokens())
    assert call.mask == CAUSAL


@pytest.mark.parametrize("model", [None, 3, torch.ones(2)])
def test_what_is_no_model(model: Any) -> None:
    with pytest.raises(ArgumentError, match=r"^trace: the model is .*\. Give a module"):
        trace(model)
    with (
        pytest.raises(ArgumentError, match=r"^recording: the model is"),
        recording(model),
    ):
        pass
