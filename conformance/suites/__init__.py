"""All suites by name."""

from __future__ import annotations

from conformance.suites import (
    attn_gym,
    families,
    flash_attention,
    jax,
    keras,
    magi,
    natten,
    onnx,
    operator_samples,
    pytorch,
    transformers,
    xformers,
)

SUITES = {
    suite.name: suite
    for suite in (
        operator_samples.SUITE,
        *pytorch.SUITES,
        onnx.SUITE,
        keras.SUITE,
        attn_gym.SUITE,
        xformers.SUITE,
        *jax.SUITES,
        flash_attention.SUITE,
        magi.SUITE,
        natten.SUITE,
        families.SUITE,
        *transformers.SUITES,
    )
}
