"""One mask, five libraries: PyTorch, JAX, Keras, TensorFlow and a sum by hand give the same weights."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

import maskwright as mw
from tests._helpers.framework_softmax import HERE, WITH_TENSORFLOW, by_hand

if TYPE_CHECKING:
    from tests._helpers.naive_softmax import Array

ROOT = Path(__file__).parents[2]
PADDING = mw.padding(ids=[[1, 2, 3, 0], [4, 5, 0, 0]], pad_id=0)
MASKS = {
    "padding": PADDING,
    "causal": mw.causal(),
    "combined": mw.causal() & PADDING,
}


def queries_and_keys() -> tuple[Array, Array]:
    """Two sequences of 4 tokens, each of 8 numbers."""
    q, k = np.random.default_rng(0).normal(size=(2, 2, 4, 8)).astype(np.float32)
    return q, k


def python_with_tensorflow() -> str | None:
    """This Python, or that of the environment which `make test-tf` sets up."""
    if importlib.util.find_spec("tensorflow"):
        return sys.executable
    other = ROOT / ".venv-tf" / "bin" / "python"
    return str(other) if other.exists() else None


@pytest.mark.parametrize("name", HERE)
@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
def test_c5_frameworks_agree_with_numpy(mask: mw.Mask, name: str) -> None:
    """What each of them is handed differs in polarity, shape and name; what comes out does not."""
    framework, way = HERE[name]
    pytest.importorskip(framework)
    q, k = queries_and_keys()
    expected = by_hand(q, k, mask)
    assert np.array_equal(expected > 0, np.broadcast_to(mask.on(4).dense()[:, 0], expected.shape))
    np.testing.assert_allclose(way(q, k, mask), expected, atol=1e-6)


def test_c5_tensorflow_agrees_with_numpy() -> None:
    """TensorFlow has an environment of its own, so it is asked by another Python."""
    python = python_with_tensorflow()
    if python is None:
        pytest.skip("TensorFlow is not here; make test-tf sets it up")
    q, k = queries_and_keys()
    mask = MASKS["combined"]
    done = subprocess.run(
        [python, "-m", "tests._helpers.framework_softmax"],
        input=json.dumps({"q": q.tolist(), "k": k.tolist(), "mask": repr(mask)}),
        cwd=ROOT,
        env={**os.environ, "KERAS_BACKEND": "tensorflow", "TF_CPP_MIN_LOG_LEVEL": "3"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found.keys() == WITH_TENSORFLOW.keys()
    for weights in found.values():
        np.testing.assert_allclose(weights, by_hand(q, k, mask), atol=1e-6)
