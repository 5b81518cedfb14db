"""The node tests of Attention and FlexAttention that ship with onnx, with its reference evaluator as original."""

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
    from onnx.reference import ReferenceEvaluator

    feeds = dict(zip((name for name in case.node.input if name), case.inputs, strict=True))
    names = [name for name in case.node.output if name]
    return dict(zip(names, ReferenceEvaluator(case.node).run(names, feeds), strict=True))


SUITE = Suite("onnx", "node tests of Attention and FlexAttention", "the operators", run)
