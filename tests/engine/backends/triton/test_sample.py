"""A sample of the interpreted tests, in a process with TRITON_INTERPRET=1; `make test-triton` runs all."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from maskwright.engine.backends.triton import _is_interpreted

HERE = Path(__file__).parent
SAMPLE = (
    "test_interpreted_kernels.py::test_forward_and_backward[sinks-bfloat16-scores]",
    "test_interpreted_kernels.py::test_forward_and_backward[causal-float16-gqa]",
    "test_interpreted_kernels.py::test_decode[by_head-float32-one_query]",
    "test_interpreted_kernels.py::test_masked_values_that_are_not_finite_have_no_influence[causal-v-inf]",
    "test_interpreted_biases.py::test_gradient_of_a_term[distance-by head-dtype1-20]",
    "test_interpreted_attention.py::test_gradients_of_output_and_logsumexp[causal]",
)


def test_sample_of_interpreted_tests() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short"]
        + [str(HERE / name) for name in SAMPLE],
        env={**os.environ, "TRITON_INTERPRET": "1", "MASKWRIGHT_MAX_SKIPPED": "0"},
        cwd=HERE.parents[3],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert f"{len(SAMPLE)} passed" in done.stdout
    assert not _is_interpreted()  # this process compiles
