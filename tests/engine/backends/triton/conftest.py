"""The tests `test_interpreted_*` run in a process with TRITON_INTERPRET=1, which `test_sample` starts.

`make test-triton` runs all of them. Triton reads the variable when it is imported, and with it
torch.compile would interpret its own kernels, so the other tests run without it. Without Triton only
the tests of the work lists are collected.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
# The compiler does not work in a process that interprets.
ignored = ["test_sample.py"]
collect_ignore_glob = ignored if INTERPRETED else ["test_interpreted_*.py"]
if INTERPRETED or not torch.cuda.is_available():
    collect_ignore_glob.append("test_gpu.py")
if find_spec("triton") is None:
    collect_ignore_glob += [*ignored, "test_bias_owners.py", "test_interpreted_*.py"]
