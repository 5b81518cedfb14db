"""Runners: the real attention of a framework with the lowered mask, against the reference.

Each takes what `lower` gave and the mask's true cells, and fails where an output differs in any
row; fully masked rows must be exactly zero, where the target returns zero.
"""

from __future__ import annotations

import warnings
from functools import cache
from importlib.util import find_spec
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention

from tests._helpers.reference_attention import attention, attention_weights, random_qkv

if TYPE_CHECKING:
    from collections.abc import Callable

WIDTH = 4  # of a head


def same(found: Any, right: np.ndarray, allowed: np.ndarray, close: float) -> None:
    """(B, H, T, D): equal in all rows, and exactly zero in fully masked ones."""
    found = np.asarray(found, np.float64)
    assert found.shape == right.shape
    assert np.allclose(found, right, rtol=close, atol=close)
    assert not found[~allowed.any(axis=3)].any()


def tensors(allowed: np.ndarray, dtype: Any = torch.float64) -> list[torch.Tensor]:
    return [torch.from_numpy(part).to(dtype) for part in random_qkv(allowed.shape, WIDTH)]


def by_hand_in_numpy(given: np.ndarray, allowed: np.ndarray) -> None:
    """What people write: np.where(mask, scores, -inf), then a softmax that minds empty rows."""
    q, k, v = random_qkv(allowed.shape, WIDTH)
    scores = q @ np.swapaxes(k, 2, 3) / 2.0
    bias = np.where(given, 0.0, -np.inf) if given.dtype == np.bool_ else given
    weights = attention_weights(scores, scores + bias > -np.inf)
    same(weights @ v, attention(q, k, v, allowed), allowed, 1e-12)


def by_hand_in_torch(given: torch.Tensor, allowed: np.ndarray) -> None:
    """masked_fill or a sum, softmax, and nan_to_num for empty rows."""
    q, k, v = tensors(allowed)
    scores = q @ k.mT / 2.0
    floats = given.dtype != torch.bool
    scores = scores + given if floats else scores.masked_fill(~given, float("-inf"))
    out = scores.softmax(dim=-1).nan_to_num(0.0) @ v
    same(out, attention(q.numpy(), k.numpy(), v.numpy(), allowed), allowed, 1e-12)


def sdpa(given: dict[str, Any], allowed: np.ndarray) -> None:
    mask = given["attn_mask"]
    kind = mask.dtype if mask is not None and mask.dtype.is_floating_point else torch.float64
    q, k, v = tensors(allowed, kind)
    out = scaled_dot_product_attention(q, k, v, **given)
    right = attention(q.double().numpy(), k.double().numpy(), v.double().numpy(), allowed)
    same(out.double(), right, allowed, 1e-5 if kind == torch.float32 else 1e-12)


def flex(given: Any, allowed: np.ndarray) -> None:
    if allowed.shape[3] == 0:
        return  # flex_attention itself takes a maximum over no keys, and fails
    if allowed.shape[2] > 9:
        return  # retraced per call: small masks are enough, the blocks are read
    q, k, v = tensors(allowed)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
        out = flex_attention(q, k, v, block_mask=given)
    same(out, attention(q.numpy(), k.numpy(), v.numpy(), allowed), allowed, 1e-12)


def for_an_even_number_of_heads(given: Any, cells: list[np.ndarray]) -> list[np.ndarray]:
    """Masks that are the same for all heads serve any number of them: torch is fastest on even."""
    if any(isinstance(mask, torch.Tensor) and mask.ndim == 3 for mask in given):
        return cells
    return [np.concatenate([part, part], axis=1) for part in cells]


@cache
def mha_module(heads: int, dtype: torch.dtype) -> nn.MultiheadAttention:
    """nn.MultiheadAttention whose projections change nothing."""
    size = heads * WIDTH
    module = nn.MultiheadAttention(size, heads, batch_first=True, dtype=dtype)
    with torch.no_grad():
        module.in_proj_weight.copy_(torch.eye(size).repeat(3, 1))
        module.out_proj.weight.copy_(torch.eye(size))
        module.in_proj_bias.zero_()
        module.out_proj.bias.zero_()
    return module


def mha(given: dict[str, Any], allowed: np.ndarray) -> None:
    """In train and eval, with and without gradients and weights; fast path on and off."""
    allowed = for_an_even_number_of_heads(given.values(), [allowed])[0]
    b, h, t, s = allowed.shape
    floats = [
        m.dtype for m in given.values() if isinstance(m, torch.Tensor) and m.is_floating_point()
    ]
    kind = floats[0] if floats else torch.float64
    module = mha_module(h, kind)
    q, k, v = tensors(allowed, kind)
    inputs = [(q, k, v), (q, q, q)] if t == s else [(q, k, v)]
    for train, grad, (q, k, v) in product((True, False), (True, False), inputs):
        module.train(train)
        packed = {id(x): x.transpose(1, 2).reshape(b, x.shape[2], h * WIDTH) for x in (q, k, v)}
        right = attention(q.double().numpy(), k.double().numpy(), v.double().numpy(), allowed)
        for need_weights in [given["need_weights"]] if "need_weights" in given else (True, False):
            arguments = {**given, "need_weights": need_weights}
            with torch.set_grad_enabled(grad):
                out, weights = module(packed[id(q)], packed[id(k)], packed[id(v)], **arguments)
            out = out.detach().reshape(b, t, h, WIDTH).transpose(1, 2)
            same(out.double(), right, allowed, 1e-5 if kind == torch.float32 else 1e-12)
            if need_weights and allowed.size:
                seen = attention_weights((q @ k.mT / 2.0).numpy(), allowed).mean(axis=1)
                assert np.allclose(weights.detach().numpy(), seen, atol=1e-5)


@cache
def transformer_module(heads: int, dtype: torch.dtype, norm_first: bool) -> nn.Transformer:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="enable_nested_tensor is True")
        torch.manual_seed(1)
        return nn.Transformer(
            *(heads * WIDTH, heads, 1, 1, 8),
            dropout=0.0,
            batch_first=True,
            norm_first=norm_first,
            dtype=dtype,
        )


def transformer_is_right(given: dict[str, Any], cells: list[np.ndarray], dtype: Any) -> bool:
    """Is the output, in every mode, that of full masks of floats on the slow path?"""
    b, h, t, s = cells[2].shape
    rng = np.random.default_rng(3)
    inputs = [torch.from_numpy(rng.standard_normal((b, n, h * WIDTH))).to(dtype) for n in (s, t)]
    names = ("src_mask", "tgt_mask", "memory_mask")
    full = {
        name: torch.zeros(part.shape, dtype=dtype)
        .masked_fill(torch.from_numpy(~part), float("-inf"))
        .flatten(0, 1)
        for name, part in zip(names, cells, strict=True)
    }
    close = 1e-10 if dtype == torch.float64 else 3e-4
    for norm_first in (False, True):
        module = transformer_module(h, dtype, norm_first)
        with slow_path(), torch.no_grad():
            right = module.train()(*inputs, **full)
        for train, grad in product((True, False), (True, False)):
            module.train(train)
            with torch.set_grad_enabled(grad), warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*nested tensors is in prototype stage")
                out = module(*inputs, **given).detach()
            if not torch.allclose(out, right, rtol=close, atol=close):
                return False
    return True


class slow_path:  # noqa: N801 - reads as a statement
    """nn.Transformer without its fused kernels."""

    def __enter__(self) -> None:
        torch.backends.mha.set_fastpath_enabled(False)

    def __exit__(self, *_: object) -> None:
        torch.backends.mha.set_fastpath_enabled(True)


def transformer(given: dict[str, Any], cells: list[np.ndarray], dtype: Any = None) -> None:
    if any(0 in part.shape for part in cells):
        return  # nn.MultiheadAttention itself can't view a mask without elements
    cells = for_an_even_number_of_heads(given.values(), cells)
    assert transformer_is_right(given, cells, dtype or torch.float32)


def jax(given: dict[str, Any], allowed: np.ndarray) -> None:
    from jax.nn import dot_product_attention

    q, k, v = random_qkv(allowed.shape, WIDTH)
    inputs = [np.moveaxis(x, 1, 2).astype(np.float32) for x in (q, k, v)]  # (B, T, H, D)
    out = np.moveaxis(np.asarray(dot_product_attention(*inputs, **given)), 1, 2)
    same(out, attention(q, k, v, allowed), allowed, 2e-5)


def splash(given: dict[str, Any], allowed: np.ndarray) -> None:
    """Splash attention's own reference, which runs on every machine."""
    if allowed.shape[3] == 0:
        return  # the reference itself takes a maximum over no keys, and fails
    from jax import vmap
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_kernel as kernel

    q, k, v = random_qkv(allowed.shape, WIDTH)
    run = kernel.make_masked_mha_reference(given["mask"])
    inputs = [x.astype(np.float32) for x in (q / np.sqrt(WIDTH), k, v)]
    out = vmap(run)(*inputs, given["segment_ids"])
    same(out, attention(q, k, v, allowed), allowed, 2e-5)


@cache
def keras_layer(heads: int, dropout: float) -> Any:
    """keras.layers.MultiHeadAttention whose projections change nothing."""
    import keras

    size = heads * WIDTH
    layer = keras.layers.MultiHeadAttention(heads, WIDTH, use_bias=False, dropout=dropout)
    layer.build((None, None, size), (None, None, size))
    same_in = np.eye(size).reshape(size, heads, WIDTH)
    layer.set_weights([same_in, same_in, same_in, np.eye(size).reshape(heads, WIDTH, size)])
    return layer


def keras(given: dict[str, Any], allowed: np.ndarray) -> None:
    """By the fused path, with scores asked for, and with dropout (which is off outside training)."""
    b, h, t, _ = allowed.shape
    q, k, v = random_qkv(allowed.shape, WIDTH)
    right = attention(q, k, v, allowed)
    inputs = [np.moveaxis(x, 1, 2).reshape(b, -1, h * WIDTH).astype(np.float32) for x in (q, v, k)]
    for dropout, scores in ((0.0, False), (0.0, True), (0.5, False)):
        out = keras_layer(h, dropout)(*inputs, **given, return_attention_scores=scores)
        out = out[0] if scores else out
        out = np.asarray(out.detach() if hasattr(out, "detach") else out)
        same(np.moveaxis(out.reshape(b, t, h, WIDTH), 1, 2), right, allowed, 2e-5)


def onnx_model(given: Any, feeds: dict[str, np.ndarray], opset: int) -> Any:
    """A model of one Attention node, with the lowered attributes and the inputs in `feeds`."""
    from onnx import helper

    order = ["Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen"]
    names = [name if name in feeds else "" for name in order]
    while not names[-1]:
        names.pop()
    outputs = ["Y", "present_key", "present_value"] if "past_key" in feeds else ["Y"]
    kinds = {name: helper.np_dtype_to_tensor_dtype(x.dtype) for name, x in feeds.items()}
    graph = helper.make_graph(
        [helper.make_node("Attention", names, outputs, **given.attributes)],
        "attention",
        [helper.make_tensor_value_info(name, kinds[name], x.shape) for name, x in feeds.items()],
        [helper.make_tensor_value_info(name, kinds["Q"], None) for name in outputs],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=11)


def onnx_feeds(given: Any, allowed: np.ndarray, past_len: int, dtype: Any) -> dict[str, Any]:
    q, k, v = (x.astype(dtype) for x in random_qkv(allowed.shape, WIDTH))
    feeds = {"Q": q, "K": k[:, :, past_len:], "V": v[:, :, past_len:], **given.inputs}
    if past_len:
        feeds |= {"past_key": k[:, :, :past_len], "past_value": v[:, :, :past_len]}
    return feeds


def onnx_runtime(model: Any, feeds: dict[str, Any]) -> np.ndarray:
    onnxruntime = pytest.importorskip("onnxruntime")

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    providers = ["CPUExecutionProvider"]
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=providers)
    return session.run(None, feeds)[0]


def onnx(given: Any, allowed: np.ndarray, past_len: int = 0, opset: int = 24) -> None:
    """By the reference evaluator in float64 and by ONNX Runtime in float32."""
    from onnx.reference import ReferenceEvaluator

    if 0 in allowed.shape or past_len == allowed.shape[3]:
        return  # ONNX Runtime takes no empty Q or K, and the evaluator no maximum over no keys
    right = attention(*random_qkv(allowed.shape, WIDTH), allowed)
    mask = given.inputs.get("attn_mask")
    fixed = None if mask is None or mask.dtype == np.bool_ else mask.dtype
    feeds = onnx_feeds(given, allowed, past_len, fixed or np.float64)
    model = onnx_model(given, feeds, opset)
    out = ReferenceEvaluator(model).run(None, feeds)[0]
    same(out, right, allowed, 1e-12 if out.dtype == np.float64 else 1e-5)
    if find_spec("onnxruntime") is None:
        return  # it has no release for this Python: test_onnx reports that as skipped
    if any("window" in name for name in given.attributes):
        return  # not implemented by ONNX Runtime: see test_onnx
    if fixed is not None and fixed != np.float32:
        return  # ONNX Runtime returns NaN for fully masked rows in float64: see test_onnx
    feeds = onnx_feeds(given, allowed, past_len, np.float32)
    same(onnx_runtime(onnx_model(given, feeds, opset), feeds), right, allowed, 1e-5)


RUNNERS: dict[str, Callable[[Any, np.ndarray], None]] = {
    "numpy": by_hand_in_numpy,
    "additive": by_hand_in_numpy,
    "torch.bool": by_hand_in_torch,
    "torch.additive": by_hand_in_torch,
    "torch.sdpa": sdpa,
    "torch.mha": mha,
    "torch.flex": flex,
    "jax": jax,
    "jax.splash": splash,
    "keras": keras,
    "onnx": onnx,
}  # the other targets have no kernel that runs on a CPU
