"""These run where TensorFlow is: `.venv-tf/bin/python -m pytest tests/tensorflow`."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
if importlib.util.find_spec("tensorflow"):
    os.environ["KERAS_BACKEND"] = "tensorflow"

# TensorFlow and what it imports warn as they load. Where it is missing, the tests skip themselves.
with warnings.catch_warnings(), contextlib.suppress(ImportError):
    warnings.simplefilter("ignore")
    import tensorflow  # noqa: F401
