"""The node tests of Attention and FlexAttention in onnx; the original is its reference evaluator."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from conformance.runners import Side, run_functions
from conformance.sources import installed
from conformance.suite import Runs, Suite

if TYPE_CHECKING:
    from conformance.sources import Sources

TOLERANCE = {"float64": 1e-6, "float32": 1e-5, "float16": 5e-3, "bfloat16": 4e-2}


def run(sources: Sources) -> Runs:  # noqa: ARG001 - the tests are in the installed package
    """All node tests of both operators."""
    release = installed("onnx")
    from tests._helpers.onnx_nodes import collect, run_attention, run_flex_attention

    tests = {}
    for operator, ours in (("Attention", run_attention), ("FlexAttention", run_flex_attention)):
        tests.update({name: partial(check, case, ours) for name, case in collect(operator).items()})
    return run_functions(f"onnx {release}", tests)


def check(case: Any, ours: Any, side: Side) -> None:
    """Raise if an output of a node is not the expected one."""
    outputs = ours(case) if side == "maskwright" else evaluate(case)
    tolerance = TOLERANCE[case.inputs[0].dtype.name]
    for (name, output), expected in zip(outputs.items(), case.outputs, strict=True):
        np.testing.assert_allclose(
            np.asarray(output).astype(np.float64),
            np.asarray(expected).astype(np.float64),
            rtol=tolerance,
            atol=tolerance,
            err_msg=name,
        )


def evaluate(case: Any) -> dict[str, np.ndarray]:
    """The outputs of a node by onnx's reference evaluator."""
    from onnx import helper
    from onnx.reference import ReferenceEvaluator

    def describe(names: list[str], arrays: tuple[np.ndarray, ...]) -> list[Any]:
        kinds = [helper.np_dtype_to_tensor_dtype(np.asarray(x).dtype) for x in arrays]
        return [
            helper.make_tensor_value_info(n, k, None) for n, k in zip(names, kinds, strict=True)
        ]

    names = [[name for name in part if name] for part in (case.node.input, case.node.output)]
    inputs, outputs = map(describe, names, (case.inputs, case.outputs))
    opsets = [helper.make_opsetid("", 25), helper.make_opsetid("ai.onnx.preview", 1)]
    graph = helper.make_graph([case.node], "node", inputs, outputs)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=11)
    feeds = dict(zip(names[0], case.inputs, strict=True))
    results = ReferenceEvaluator(model).run(names[1], feeds)
    return dict(zip(names[1], results, strict=True))


SUITE = Suite(
    "onnx", "node tests of Attention and FlexAttention", "the reference evaluator of ONNX", run
)
