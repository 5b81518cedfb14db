"""Models of other frameworks: NumPy, JAX, Keras and generate()."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import maskwright as mw
from maskwright.auditing.frameworks import AuditCall, adapt
from tests._helpers.sampling import subset_of_cases
from tests._helpers.tiny_architectures import ARCHITECTURES

RNG = np.random.default_rng(0)
FLOATS = RNG.normal(size=(2, 8, 4)).astype(np.float32)
IDS = RNG.integers(1, 20, (2, 8))


def numpy_attention(x: Any, keep: Any) -> Any:
    """Attention from its definition."""
    scores = np.where(keep, x @ x.swapaxes(1, 2), -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return weights / weights.sum(-1, keepdims=True) @ x


def jax_attention(x: Any, keep: Any) -> Any:
    scores = jnp.where(keep, x @ x.swapaxes(1, 2), -jnp.inf)
    return jax.nn.softmax(scores, -1) @ x


def causal(length: int) -> Any:
    return np.tri(length, dtype=bool)


def statuses(report: mw.AuditReport) -> dict[str, str]:
    return {result.probe: result.status.value for result in report.answers}


# ── NumPy ─────────────────────────────────────────────────────────────────────────────────────


def test_numpy_function_of_floats() -> None:
    report = mw.audit(lambda x: numpy_attention(x, causal(x.shape[1])), FLOATS, expects="causal")
    assert report.ok, report
    assert statuses(report)["gradient"] == "not_applicable"
    report = mw.audit(lambda x: numpy_attention(x, True), FLOATS, expects="causal")
    assert report.findings[0].probe == "leak"


def test_numpy_function_of_ids_and_mask() -> None:
    table = RNG.normal(size=(20, 4))

    def model(ids: Any, mask: Any, broken: bool = False) -> Any:
        assert isinstance(ids, np.ndarray)
        keys = np.ones_like(mask) if broken else mask
        return {"hidden": numpy_attention(table[ids], keys[:, None, :].astype(bool))}

    mask = np.arange(8) < np.array([[8], [5]])
    inputs = {"ids": IDS, "mask": mask}
    expects = mw.padding(keep=mask)
    assert not mw.audit(model, inputs, expects=expects).findings
    assert mw.audit(model, {**inputs, "broken": True}, expects=expects).findings


def test_numpy_output_and_steps() -> None:
    def model(x: Any) -> Any:
        return "name", x.cumsum(1)

    def step(model: Any, piece: Any, state: Any) -> Any:
        assert isinstance(piece, np.ndarray)
        before = np.zeros_like(piece[:, :1]) if state is None else state
        out = before + piece.cumsum(1)
        return out, out[:, -1:]

    def wrong(model: Any, piece: Any, state: Any) -> Any:
        return piece.cumsum(1), 0

    options: Any = {"expects": "causal", "output": lambda result: result[1]}
    good = mw.audit(model, FLOATS, step=step, **options)
    assert statuses(good)["steps"] == "passed", good
    bad = mw.audit(model, FLOATS, step=wrong, **options)
    assert {finding.probe for finding in bad.findings} == {"steps"}


# ── JAX ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("jit", [False, True])
def test_jax_function(jit: bool) -> None:
    def healthy(x: Any) -> Any:
        return jax_attention(x, causal(x.shape[1]))

    def leaking(x: Any) -> Any:
        return jax_attention(x, True)

    wrap = jax.jit if jit else lambda function: function
    report = mw.audit(wrap(healthy), jnp.asarray(FLOATS), expects="causal")
    assert report.ok, report
    assert statuses(report)["gradient"] == "passed"
    report = mw.audit(wrap(leaking), jnp.asarray(FLOATS), expects="causal")
    assert {"leak", "gradient"} <= {finding.probe for finding in report.findings}


def test_jax_gradient_is_that_of_jax() -> None:
    call = adapt(AuditCall(lambda x, y: (jnp.sin(x) * y,), (jnp.asarray(FLOATS),) * 2))
    x, y = (given.clone().requires_grad_() for given in call.inputs)
    call.model(x, y).sum().backward()
    assert torch.allclose(x.grad, torch.cos(x) * y)
    assert torch.allclose(y.grad, torch.sin(x))


def test_jax_gradient_leak_that_a_stopped_gradient_hides() -> None:
    """The gradient of what `stop_gradient` hides is 0, but a change of the input is not."""

    def model(x: Any) -> Any:
        return jax.lax.stop_gradient(jax_attention(x, True))

    report = mw.audit(model, jnp.asarray(FLOATS), expects="causal")
    assert {finding.probe for finding in report.findings} >= {"leak"}
    assert statuses(report)["gradient"] == "not_applicable"  # a gradient of 0 cannot fail


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "int32", "bool"])
def test_arrays_keep_dtype_and_values(dtype: str) -> None:
    x = jnp.asarray(FLOATS).astype(dtype)
    seen = []

    def model(given: Any) -> Any:
        seen.append(given)
        return given

    call = adapt(AuditCall(model, x))
    assert str(call.inputs.dtype) == f"torch.{dtype}"
    out = call.model(call.inputs)
    assert torch.equal(out, call.inputs)
    assert seen[0].dtype == x.dtype
    assert np.array_equal(np.asarray(seen[0]), np.asarray(x))


# ── Keras ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("backend", subset_of_cases(["torch", "jax", "numpy"], 3, first=1))
def test_keras_model(backend: str) -> None:
    quick = {"OMP_NUM_THREADS": "1", "JAX_DISABLE_MOST_OPTIMIZATIONS": "1"}  # compiles faster
    environment = {**os.environ, **quick, "KERAS_BACKEND": backend}
    command = [sys.executable, "-W", "ignore", "-m", "tests._helpers.audit_keras"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(backend) == 2
    expected = "not_applicable" if backend == "numpy" else "passed"
    assert f"'gradient': '{expected}'" in done.stdout.splitlines()[1]


# ── generate ──────────────────────────────────────────────────────────────────────────────────

GENERATE = ("leak", "padding", "batch", "numbers")


def left_padded() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 100, (2, 8), generator=generator)
    mask = torch.ones_like(ids)
    mask[1, :3] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}


def test_generate_of_model() -> None:
    model = ARCHITECTURES["llama"].build("sdpa")
    report = mw.audit(model.generate, left_padded())
    assert not report.findings, report
    assert statuses(report)["batch"] == statuses(report)["leak"] == "passed", report


def test_generate_that_drops_the_padding_mask() -> None:
    """TransformerLens#999."""
    model = ARCHITECTURES["llama"].build("sdpa")

    class Dropping(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model

        def generate(self, input_ids: Any, **more: Any) -> Any:
            more["attention_mask"] = torch.ones_like(input_ids)
            return self.inner.generate(input_ids, **more)

    report = mw.audit(Dropping().generate, left_padded(), probes=GENERATE)
    assert report.findings, report


def test_function_around_generate() -> None:
    model = ARCHITECTURES["llama"].build("sdpa")

    def first_logits(input_ids: Any, attention_mask: Any, ignore: bool = False) -> Any:
        mask = torch.ones_like(attention_mask) if ignore else attention_mask
        found = model.generate(
            input_ids, attention_mask=mask, max_new_tokens=2, min_new_tokens=2, do_sample=False,
            output_logits=True, return_dict_in_generate=True,
        )  # fmt: skip
        return torch.stack(found.logits, 1)

    inputs = left_padded()
    expects = {"input_ids": mw.padding(keep=inputs["attention_mask"].bool().numpy())}
    good = mw.audit(first_logits, inputs, expects=expects, probes=GENERATE)
    assert not good.findings, good
    bad = mw.audit(first_logits, {**inputs, "ignore": True}, expects=expects, probes=GENERATE)
    assert bad.findings, bad


def test_inputs_of_generate_are_needed() -> None:
    model = ARCHITECTURES["llama"].build("sdpa")
    with pytest.raises(mw.ArgumentError, match="inputs of generate"):
        mw.audit(model.generate)
