"""The floating-point peak to which shares refer: FMA instructions on registers, in every thread.

It is measured in the same run as what refers to it, and no kernel can exceed it. Without a C compiler
a 2048³ matmul of PyTorch takes its place, which good kernels may exceed; results say which it was.
"""

from __future__ import annotations

import ctypes
import math
import os
import shutil
import subprocess
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from maskwright.engine.native import loaded

if TYPE_CHECKING:
    from collections.abc import Callable

MATRIX = 2_048
FMA, MATMUL = "FMA instructions on registers", f"a {MATRIX}³ matmul in float32"
ACCUMULATORS = 12  # more than latency × ports of any current CPU, and fewer than its registers
ROUNDS = 2_000_000  # of each call: some milliseconds, within a time slice of the scheduler
BYTES = {"avx512": 64, "avx2": 32}  # of a vector, by instruction set

_SOURCE = r"""
typedef float vec __attribute__((vector_size(BYTES)));
float multiply_add(long rounds, float factor, float summand) {
    vec a[ACCUMULATORS], x = {0}, y = {0};
    x += factor, y += summand;
    for (int i = 0; i < ACCUMULATORS; i++) a[i] = y + (float)i;
    for (long n = 0; n < rounds; n++)
        for (int i = 0; i < ACCUMULATORS; i++) a[i] = a[i] * x + y;
    vec sum = a[0];
    for (int i = 1; i < ACCUMULATORS; i++) sum += a[i];
    return sum[0];
}
"""


class Yardstick(NamedTuple):
    """A computation at the peak, and its floating-point operations."""

    name: str
    flops: float
    run: Callable[[], object]


def yardstick() -> Yardstick:
    """The peak of the processor with as many threads as torch has now, whichever kernel is selected."""
    best = next(iter(loaded().isas), "")
    width, threads = BYTES.get(best, 16), torch.get_num_threads()
    multiply_add = _compiled(width)
    if multiply_add is None:
        square = torch.randn(MATRIX, MATRIX)
        return Yardstick(MATMUL, 2.0 * MATRIX**3, lambda: square @ square)
    pool = ThreadPoolExecutor(threads)

    def run() -> None:
        list(pool.map(lambda _: multiply_add(ROUNDS, 0.5, 1.0), range(threads)))

    return Yardstick(FMA, 2.0 * ACCUMULATORS * (width / 4) * ROUNDS * threads, run)


@cache
def _compiled(width: int) -> Callable[[int, float, float], float] | None:
    """The loop in C, or None without a compiler."""
    compiler = shutil.which(os.environ.get("CC", "cc"))
    if compiler is None:
        return None
    options = ["-O3", "-march=native", "-ffp-contract=fast", "-shared", "-fPIC"]
    sizes = [f"-DBYTES={width}", f"-DACCUMULATORS={ACCUMULATORS}"]
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder, "peak.so")
        done = subprocess.run(
            [compiler, *options, *sizes, "-x", "c", "-", "-o", str(library)],
            input=_SOURCE,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            return None
        multiply_add = ctypes.CDLL(str(library)).multiply_add
    multiply_add.argtypes = [ctypes.c_long, ctypes.c_float, ctypes.c_float]
    multiply_add.restype = ctypes.c_float
    return multiply_add  # type: ignore[no-any-return]


@dataclass
class Peak:
    """The best rate of the yardstick, measured again and again during a run."""

    yardstick: Yardstick = field(default_factory=yardstick)
    best: float = 0.0  # floating-point operations per second
    asked: float = -math.inf

    def ask(self, rounds: int = 5, every: float = 0.0) -> float:
        """The best rate so far; measured again if the last time is `every` seconds ago."""
        if time.perf_counter() - self.asked >= every:
            for _ in range(rounds):
                begin = time.perf_counter()
                self.yardstick.run()
                took = time.perf_counter() - begin
                self.best = max(self.best, self.yardstick.flops / took)
            self.asked = time.perf_counter()
        return self.best
