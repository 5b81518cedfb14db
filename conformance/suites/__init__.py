"""All suites by name."""

from __future__ import annotations

from conformance.suites import onnx, operator_samples, transformers

SUITES = {
    suite.name: suite for suite in (operator_samples.SUITE, onnx.SUITE, *transformers.SUITES)
}
