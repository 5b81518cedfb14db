"""All suites by name."""

from __future__ import annotations

from conformance.suites import families, keras, onnx, operator_samples, pytorch, transformers

SUITES = {
    suite.name: suite
    for suite in (
        operator_samples.SUITE,
        *pytorch.SUITES,
        onnx.SUITE,
        keras.SUITE,
        families.SUITE,
        *transformers.SUITES,
    )
}
