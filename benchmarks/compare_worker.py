"""Worker process of `python -m benchmarks compare`: times attention calls of one source tree.

The script runs against the current and an earlier version of maskwright, so it is standalone and
uses public API that both have. It reads one JSON request per line from stdin and writes one JSON
reply per line to stdout. Between requests it blocks on stdin.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

# The directory of a script comes first on sys.path; its modules are not to be imported here.
sys.path[:] = [entry for entry in sys.path if Path(entry).resolve() != Path(__file__).parent]

import numpy as np  # noqa: E402
import torch  # noqa: E402

import maskwright as mw  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

    Tensors = tuple[torch.Tensor, ...]

MAX_WARM_UP_SECONDS = 0.05  # a first call longer than this serves as the estimate, too
IDLE_POLL_SECONDS = 0.001


def attention_call(cell: dict[str, Any]) -> Callable[[], Tensors]:
    """Returns a function that computes the cell once, and returns the output and the gradients."""
    generator = torch.Generator().manual_seed(0)
    dtype = getattr(torch, cell["dtype"])

    def draw(length: int, heads: int) -> torch.Tensor:
        shape = (cell["batch"], length, heads, cell["head_dim"])
        return torch.randn(shape, generator=generator).to(dtype).transpose(1, 2)

    q, grad_out = draw(cell["q_len"], cell["heads"]), draw(cell["q_len"], cell["heads"])
    k, v = draw(cell["kv_len"], cell["kv_heads"]), draw(cell["kv_len"], cell["kv_heads"])
    options = {"enable_gqa": True} if cell["heads"] != cell["kv_heads"] else {}
    make_mask = eval(f"lambda: {cell['mask']}", dict(vars(mw)))
    get_mask = make_mask
    if not cell["new_mask"]:
        mask = make_mask()
        get_mask = lambda: mask  # noqa: E731

    def forward() -> Tensors:
        with torch.no_grad():
            return (mw.attention(q, k, v, get_mask(), **options),)

    def forward_backward() -> Tensors:
        out = mw.attention(q, k, v, get_mask(), **options)
        return (out, *torch.autograd.grad(out, (q, k, v), grad_out))

    if not cell["backward"]:
        return forward
    for tensor in (q, k, v):
        tensor.requires_grad_()
    return forward_backward


def timed(call: Callable[[], Tensors], calls: int = 1) -> float:
    """Returns the seconds per call of `calls` consecutive calls."""
    start = time.perf_counter()
    for _ in range(calls):
        call()
    return (time.perf_counter() - start) / calls


def wait_until_idle() -> None:
    """Returns once no thread of this process spins, so that the other worker has all cores."""
    while True:
        before = time.process_time()
        time.sleep(IDLE_POLL_SECONDS)
        if time.process_time() - before < 0.2 * IDLE_POLL_SECONDS:
            return


class Worker:
    """Answers requests; holds the prepared cell."""

    def __init__(self) -> None:
        self._call: Callable[[], Tensors] = tuple

    def hello(self) -> dict[str, Any]:
        """Returns where maskwright and its kernel were imported from."""
        q = torch.randn(1, 1, 64, 64)
        mw.attention(q, q, q, mw.causal())
        kernels = set()
        maps = Path("/proc/self/maps")
        if maps.exists():
            for line in maps.read_text().splitlines():
                path = Path(line.split(maxsplit=5)[-1])
                if path.name.startswith("_kernel."):
                    kernels.add(str(path))
        return {"package": mw.__file__, "kernels": sorted(kernels)}

    def prepare(self, cell: dict[str, Any], outputs: str | None = None) -> dict[str, Any]:
        """Make the tensors and the mask, save the outputs, and return the estimated seconds.

        The tensors of the previous call are freed afterwards, so these lie elsewhere in memory.
        """
        torch.set_num_threads(cell["threads"])
        call = attention_call(cell)
        start = time.perf_counter()
        tensors = call()
        seconds = time.perf_counter() - start
        if outputs is not None:
            np.savez(outputs, *(x.detach().float().numpy() for x in tensors))
        del tensors
        if seconds < MAX_WARM_UP_SECONDS:
            seconds = min(timed(call) for _ in range(3))
        self._call = call
        gc.collect()
        return {"seconds": seconds}

    def run(self, warm_up: int, calls: int, repeats: int) -> dict[str, Any]:
        """Returns the seconds per call: the best of `repeats` timings of `calls` calls each."""
        for _ in range(warm_up):
            self._call()
        return {"seconds": min(timed(self._call, calls) for _ in range(repeats))}


def main() -> None:
    """Answer requests until stdin is closed."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what libraries print does not mix with the replies
    worker = Worker()
    gc.disable()  # collection happens between cells, not during timings
    gc.freeze()  # and leaves out what the imports made
    for line in sys.stdin:
        request = json.loads(line)
        try:
            reply = getattr(worker, request.pop("command"))(**request)
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}".splitlines()[0][:300]}
        wait_until_idle()
        reply["cpu_seconds"] = time.process_time()
        replies.write(json.dumps(reply) + "\n")


if __name__ == "__main__":
    main()
