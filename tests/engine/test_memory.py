"""Memory: attention under a narrow mask never holds anything of the size of the scores."""

from __future__ import annotations

import sys

import pytest

from tests._helpers.run_python import run_python

LENGTH = 8192

CODE = f"""
import resource, torch, maskwright as mw
torch.set_num_threads(1)

def run(length):
    for dropout_p in (0.0, 0.1):
        given = [torch.randn(1, 1, length, 64, requires_grad=True) for _ in range(3)]
        out, lse = mw.attention(
            *given, mw.window(back=255), dropout_p=dropout_p, return_lse=True
        )
        (out.sum() + lse.sum()).backward()

def most():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

run(512)  # what is loaded once
before = most()
run({LENGTH})
print(most() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="ru_maxrss is in kilobytes on Linux only")
def test_nothing_of_size_of_scores_is_held() -> None:
    done = run_python(CODE)
    assert done.returncode == 0, done.stderr
    scores = LENGTH * LENGTH * 4
    assert int(done.stdout) < scores / 2
