"""`python -m benchmarks attention --device cuda`: the Triton kernels compared with SDPA and FlexAttention.

All compute the same from the same tensors, which is checked. Times are of CUDA events, best of n.
"""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

import torch

import maskwright as mw
from benchmarks.attention import DTYPES, difference, tensors
from benchmarks.measure import save
from benchmarks.patterns import make, patterns_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

ROUNDS = 20
IMPLS = ("triton", "flex", "sdpa")
NAME = "attention-cuda"


def run(options: argparse.Namespace) -> int:
    """Measure all cells on the GPU; 2 without a GPU."""
    if not torch.cuda.is_available():
        print("--device cuda: torch finds no CUDA or ROCm GPU. Run this on a machine with one.")
        return 2
    result: dict[str, Any] = {"device": torch.cuda.get_device_name(), "cells": []}
    result |= {"torch": torch.__version__, "hip": torch.version.hip, "cuda": torch.version.cuda}
    for group in options.lengths:
        for dtype in options.dtypes:
            for pattern in patterns_of(group):
                if options.patterns and pattern not in options.patterns:
                    continue
                result["cells"].append(measure(pattern, group, dtype))
                print(result["cells"][-1], file=sys.stderr, flush=True)
                save(NAME, result)
    print(f"written to {save(NAME, result)}")
    return 0


def measure(pattern: str, group: str, dtype: str) -> dict[str, Any]:
    """Best seconds of each backend, forward, and forward with backward."""
    case = make(pattern, group)
    q, k, v, grad = (x.to("cuda", DTYPES[dtype]) for x in tensors(case, DTYPES[dtype]))
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    found: dict[str, Any] = {"pattern": pattern, "group": group, "dtype": dtype, "seconds": {}}
    outputs: dict[str, torch.Tensor] = {}
    for impl in IMPLS:

        def forward(impl: str = impl) -> torch.Tensor:
            with torch.no_grad():
                return mw.attention(q, k, v, case.mask, impl=impl)

        def both(impl: str = impl) -> Any:
            out = mw.attention(*leaves, case.mask, impl=impl)
            return torch.autograd.grad(out, leaves, grad)

        try:
            outputs[impl] = forward()
            found["seconds"][impl] = [best_time(forward), best_time(both)]
        except Exception as error:  # the others go on
            found.setdefault("failed", {})[impl] = f"{type(error).__name__}: {error}"[:300]
    if "triton" in outputs:
        found["differs"] = {
            impl: difference((outputs["triton"],), (out,))
            for impl, out in outputs.items()
            if impl != "triton"
        }
    return found


def best_time(run: Callable[[], object]) -> float:
    """The best time of a call in seconds, by CUDA events."""
    best = math.inf
    for _ in range(ROUNDS + 1):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        best = min(best, start.elapsed_time(end) / 1e3)
    return best
