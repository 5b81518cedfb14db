"""The tests `test_interpreted_*` run in a process with TRITON_INTERPRET=1, which `test_sample` starts.

`make test-triton` runs all of them. Triton reads the variable when it is imported, and with it
torch.compile would interpret its own kernels, so the other tests run without it.
"""

from __future__ import annotations

import os

import torch

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
collect_ignore_glob = ["test_sample.py"] if INTERPRETED else ["test_interpreted_*.py"]
if INTERPRETED or not torch.cuda.is_available():
    collect_ignore_glob.append("test_gpu.py")
