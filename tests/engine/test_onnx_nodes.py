"""An outside judge: all node tests of Attention and FlexAttention that ship with onnx.

Every case runs through `mw.attention`; see tests/_helpers/onnx_nodes.py for the translation.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

pytest.importorskip("onnx.backend.test.case.node.attention")

from tests._helpers.onnx_nodes import collect, run_attention, run_flex_attention

if TYPE_CHECKING:
    from tests._helpers.onnx_nodes import NodeCase

ATTENTION = collect("Attention")
FLEX_ATTENTION = collect("FlexAttention")
IMPLS = ("auto", "blocks", "reference")
TOLERANCE = {"float64": 1e-6, "float32": 1e-5, "float16": 5e-3, "bfloat16": 4e-2}


def compare(case: NodeCase, found: dict[str, np.ndarray]) -> None:
    assert len(found) == len(case.outputs)
    close = TOLERANCE[case.inputs[0].dtype.name]
    for (name, result), right in zip(found.items(), case.outputs, strict=True):
        expected = np.asarray(right).astype(np.float64)
        assert result.shape == expected.shape, name
        assert np.allclose(result, expected, rtol=close, atol=close), name


def test_no_case_is_left_out() -> None:
    """onnx 1.23 has 93 and 11; a newer one may have more, which run too."""
    assert len(ATTENTION) >= 93
    assert len(FLEX_ATTENTION) >= 11


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("name", ATTENTION)
def test_attention(name: str, impl: str) -> None:
    compare(ATTENTION[name], run_attention(ATTENTION[name], impl))


@pytest.mark.parametrize("impl", IMPLS)
@pytest.mark.parametrize("name", FLEX_ATTENTION)
def test_flex_attention(name: str, impl: str) -> None:
    compare(FLEX_ATTENTION[name], run_flex_attention(FLEX_ATTENTION[name], impl))
