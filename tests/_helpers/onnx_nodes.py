"""The node tests of Attention and FlexAttention that ship with onnx, through `mw.attention`.

The adapter translates a node to arguments of `mw.attention`: masks to mask expressions, the finite
part of a float attn_mask to a bias. `qk_matmul_output` is read through `mw.attention`, too: softmax
weights are the output for v = identity, and the score of a cell is the logsumexp of a row in which
only that key is visible.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

import maskwright as mw

INPUTS = ("Q", "K", "V", "attn_mask", "past_key", "past_value", "nonpad_kv_seqlen")
HANDLED = {
    "is_causal", "kv_num_heads", "q_num_heads", "qk_matmul_output_mode", "scale", "softcap",
    "softmax_precision", "left_window_size", "right_window_size",
}  # fmt: skip


@dataclass(frozen=True)
class NodeCase:
    """One call of `expect` in the node tests of onnx."""

    name: str
    node: Any
    inputs: tuple[np.ndarray, ...]
    outputs: tuple[np.ndarray, ...]

    @property
    def attributes(self) -> dict[str, Any]:
        return {a.name: helper.get_attribute_value(a) for a in self.node.attribute}


@cache
def collect(operator: str) -> dict[str, NodeCase]:
    """All cases of an operator, by name."""
    module = importlib.import_module(f"onnx.backend.test.case.node.{operator.lower()}")
    found: dict[str, NodeCase] = {}

    def expect(node: Any, inputs: Any, outputs: Any, name: str, **_: Any) -> None:
        found[name] = NodeCase(name, node, tuple(inputs), tuple(outputs))

    original, module.expect = module.expect, expect
    state = np.random.get_state()
    try:
        np.random.seed(0)
        for export in sorted(n for n in dir(getattr(module, operator)) if n.startswith("export")):
            getattr(getattr(module, operator), export)()
    finally:
        module.expect = original
        np.random.set_state(state)
    return found


def to_torch(x: np.ndarray) -> torch.Tensor:
    if x.dtype.name == "bfloat16":  # of ml_dtypes
        return torch.from_numpy(x.view(np.int16).copy()).view(torch.bfloat16)
    return torch.from_numpy(np.ascontiguousarray(x))


def to_numpy(x: torch.Tensor) -> np.ndarray:
    return x.double().numpy()


def run_attention(case: NodeCase, impl: str = "auto") -> dict[str, np.ndarray]:
    """The outputs of an Attention node, by name, in float64."""
    attributes = case.attributes
    assert set(attributes) <= HANDLED, "an attribute that the adapter does not know"
    assert all(name in ("", *INPUTS) for name in case.node.input)
    present = [name for name in case.node.input if name]
    given = dict(zip(present, case.inputs, strict=True))
    q, k, v = (given[name] for name in ("Q", "K", "V"))
    three = q.ndim == 3
    if three:
        heads, kv_heads = attributes["q_num_heads"], attributes["kv_num_heads"]
        q, k, v = (split(x, n) for x, n in ((q, heads), (k, kv_heads), (v, kv_heads)))
    past = 0
    if "past_key" in given:
        past = given["past_key"].shape[2]
        k = np.concatenate([given["past_key"], k], axis=2)
        v = np.concatenate([given["past_value"], v], axis=2)
    mask, bias = mask_and_bias(case, given, q.shape, k.shape[2], past)
    tensors = [to_torch(x) for x in (q, k, v)]
    arguments: dict[str, Any] = {
        "scale": attributes.get("scale"),
        "softcap": attributes.get("softcap") or None,  # ONNX: 0 is none
        "enable_gqa": q.shape[1] != k.shape[1],
        "q_start": past,
        "impl": impl,
    }
    out = to_numpy(mw.attention(*tensors, mask, bias=bias, **arguments))
    if three:
        out = np.moveaxis(out, 1, 2).reshape(out.shape[0], out.shape[2], -1)
    results = {"Y": out, "present_key": k, "present_value": v}
    if len(case.node.output) == 4:
        mode = attributes.get("qk_matmul_output_mode", 0)
        results["qk_matmul_output"] = score_output(mode, tensors, mask, bias, arguments)
    names = [name for name in case.node.output if name]
    return {name: np.asarray(results[_usual(name, case)], np.float64) for name in names}


def _usual(name: str, case: NodeCase) -> str:
    order = ("Y", "present_key", "present_value", "qk_matmul_output")
    return order[list(case.node.output).index(name)]


def split(x: np.ndarray, heads: int) -> np.ndarray:
    """(B, T, H·D) to (B, H, T, D)."""
    return np.moveaxis(x.reshape(*x.shape[:2], heads, -1), 1, 2)


def mask_and_bias(
    case: NodeCase, given: dict[str, np.ndarray], shape: tuple[int, ...], kv_len: int, past: int
) -> tuple[mw.Mask, Any]:
    """The mask expression, and the finite part of a float attn_mask."""
    q_len = shape[2]
    attributes = case.attributes
    left, right = (attributes.get(f"{side}_window_size", -1) for side in ("left", "right"))
    causal = bool(attributes.get("is_causal", 0))
    lengths = given.get("nonpad_kv_seqlen")
    mask: mw.Mask = mw.everything()
    bias = None
    window = mw.window(*(None if side < 0 else int(side) for side in (left, right)))
    position_mask = (mw.causal() & window) if causal else window
    if lengths is None:
        mask = mask & position_mask
    else:  # the positions of a row's queries end at its number of keys
        rows = [
            mw.dense(position_mask.on(q_len, kv_len, q_start=int(n) - q_len).dense()[0, 0])
            for n in lengths
        ]
        mask = mask & mw.by_batch(rows) & mw.padding(lengths=lengths.tolist())
    cells = given.get("attn_mask")
    if cells is not None:
        missing = kv_len - cells.shape[-1]
        keep = cells if cells.dtype == np.bool_ else np.isfinite(cells.astype(np.float64))
        assert cells.dtype == np.bool_ or not np.isposinf(cells.astype(np.float64)).any()
        pad = [(0, 0)] * (cells.ndim - 1) + [(0, missing)]
        keep = np.pad(keep, pad)
        keep = np.broadcast_to(keep, np.broadcast_shapes(keep.shape, (1, 1, q_len, kv_len)))
        mask = mask & mw.dense(keep)
        if cells.dtype != np.bool_:
            values = np.where(keep, np.pad(cells.astype(np.float64), pad), 0.0)
            bias = mw.bias.tensor(values.astype(np.float32))
    return mask, bias


def score_output(
    mode: int, tensors: list[torch.Tensor], mask: mw.Mask, bias: Any, arguments: dict[str, Any]
) -> np.ndarray:
    """qk_matmul_output: 0 scores, 1 after softcap, 2 after bias and mask, 3 softmax weights."""
    q, k, v = tensors
    keys = k.shape[2]
    if mode == 3:
        identity = torch.eye(keys, dtype=v.dtype).expand(*k.shape[:3], keys).contiguous()
        return to_numpy(mw.attention(q, k, identity, mask, bias=bias, **arguments))
    if mode < 2:
        mask, bias = mw.everything(), None
    columns = []
    for key in range(keys):
        one = mask & mw.keys([key])
        _, lse = mw.attention(q, k, v, one, bias=bias, return_lse=True, **arguments)
        columns.append(to_numpy(lse))
    return np.stack(columns, axis=-1)


def run_flex_attention(case: NodeCase, impl: str = "auto") -> dict[str, np.ndarray]:
    """The output of a FlexAttention node."""
    attributes = case.attributes
    assert set(attributes) <= {"scale", "score_mod", "prob_mod"}
    q, k, v = (to_torch(x) for x in case.inputs)
    softcap, mask, bias = None, mw.everything(), None
    if "score_mod" in attributes:
        shape = (q.shape[0], q.shape[1], q.shape[2], k.shape[2])
        softcap, mask, bias = read_score_mod(attributes["score_mod"], shape)
    if "prob_mod" in attributes:
        v = v * read_factor(attributes["prob_mod"])  # a factor of the weights is one of the values
    out = mw.attention(
        q,
        k,
        v,
        mask,
        scale=attributes.get("scale"),
        softcap=softcap,
        bias=bias,
        enable_gqa=q.shape[1] != k.shape[1],
        q_start=0,
        impl=impl,
    )
    return {"Y": to_numpy(out)}


def read_score_mod(graph: Any, shape: tuple[int, ...]) -> tuple[float | None, mw.Mask, Any]:
    """A score_mod graph as soft cap, mask and bias."""
    if [node.op_type for node in graph.node] == ["Div", "Tanh", "Mul"]:
        return float(numpy_helper.to_array(graph.initializer[0])), mw.everything(), None
    zero = np.zeros(shape, np.float32)
    some = np.random.default_rng(0).normal(size=shape).astype(np.float32)
    added, result = evaluate(graph, zero), evaluate(graph, some)
    visible = np.isfinite(added)
    assert np.allclose((result - some)[visible], added[visible], atol=1e-5), "not a bias"
    assert np.isneginf(result[~visible]).all()
    return None, mw.dense(visible), mw.bias.tensor(np.where(visible, added, 0.0))


def read_factor(graph: Any) -> float:
    """The factor of a prob_mod graph that multiplies by a constant."""
    assert [node.op_type for node in graph.node] == ["Mul"]
    return float(numpy_helper.to_array(graph.initializer[0]))


def evaluate(graph: Any, scores: np.ndarray) -> np.ndarray:
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 25)], ir_version=11)
    return ReferenceEvaluator(model).run(None, {graph.input[0].name: scores})[0]
