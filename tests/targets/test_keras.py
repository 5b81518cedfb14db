"""Keras on another backend than the tests' own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_keras_on_jax_gives_references_output() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests._helpers.keras_on_jax"],
        cwd=ROOT,
        env={**os.environ, "KERAS_BACKEND": "jax"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split("\n")) == 17
