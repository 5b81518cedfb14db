"""The memory of both passes does not grow with the number of threads."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests._helpers.native_kernel import needs_kernel
from tests._helpers.run_python import run_python
from tests._helpers.sampling import subset_of_cases

pytestmark = [
    needs_kernel,
    pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs VmHWM"),
    pytest.mark.skipif("LD_PRELOAD" in os.environ, reason="sanitizers need memory of their own"),
]

MEASURE = """
import re, sys, torch, maskwright as mw
from maskwright.engine.backends import native
from maskwright.engine.call import AttentionOptions, Mode, read_call

def peak():
    status = open("/proc/self/status").read()
    return int(re.search(r"VmHWM:\\s+(\\d+)", status)[1]) * 1024

length, heads, dim = 65_536, 8, 64
torch.set_num_threads(32)
small = torch.ones(1, heads, 300, dim)
def both(mask, x):
    call = read_call(x, mask, AttentionOptions(), mode=Mode.EAGER)
    out, lse = native.forward(call)
    grads = native.backward(call, out, lse, x[0], None)
both(mw.window(back=15).on(300), [small] * 3)
bound = mw.window(back=15).on(length)
bound.spans
dtype = getattr(torch, sys.argv[1])
x = [torch.ones(1, heads, length, dim, dtype=dtype) for _ in range(3)]
tensors = 4 * x[0].numel() * x[0].element_size()
before = peak() + x[0].numel() * x[0].element_size()  # out is not counted
both(bound, x)
print((peak() - before) / tensors)
"""


@pytest.mark.slow
@pytest.mark.parametrize("dtype", subset_of_cases(["float32", "bfloat16"], 2, first=1))
def test_peak_memory_with_32_threads(dtype: str) -> None:
    done = run_python(MEASURE, dtype)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) <= 2.5
