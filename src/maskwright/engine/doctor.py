"""What `maskwright doctor` and `maskwright bench` report about this machine.

`facts` are versions, the C kernel, threads and the backend in use. `compare_with_sdpa` times a mask
against SDPA with the same mask as a dense tensor.
"""

from __future__ import annotations

import math
import os
import platform
import shutil
import subprocess
import time
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from maskwright._memory import free_memory
from maskwright.core.frame import MAX_BYTES
from maskwright.core.validate import parse_int
from maskwright.engine.api import attention, explain_backend
from maskwright.errors import ArgumentError, SizeError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from maskwright.core.bound import BoundMask
    from maskwright.core.expr import Mask

ROUNDS: Final = 5  # of a comparison of times
FLOAT32: Final = 4  # bytes
REINSTALL: Final = (
    "pip install --force-reinstall --no-deps --no-cache-dir maskwright"
    " (in a clone of the repository: . instead of maskwright)"
)


def facts() -> dict[str, str]:
    """The facts by name.

    Returns:
        One line per fact. "fix" is there only if the kernel is missing.

    >>> sorted(set(facts()) - {"fix"})
    ['attention', 'kernel', 'library', 'numpy', 'other instruction sets', 'python', 'threads', 'torch']
    """
    has_torch = find_spec("torch") is not None
    kernel = _kernel(has_torch)
    other_isas = [name for name in kernel.isas if name != kernel.isa]
    result = {
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "numpy": np.__version__,
        "torch": _torch_version() if has_torch else "not installed",
        "kernel": f"{kernel.isa or 'none'}: {kernel.reason}",
        "library": str(kernel.path or "none"),
        "other instruction sets": ", ".join(other_isas) or "none",
        "threads": kernel.threads,
        "attention": _attention(has_torch),
    }
    if kernel.isa is None:
        result["fix"] = _fix()
    return result


class _Kernel(NamedTuple):
    isa: str | None
    isas: tuple[str, ...]
    reason: str
    path: Path | None
    threads: str


def _kernel(has_torch: bool) -> _Kernel:
    """The state of the C kernel: the only use of the binding in this module."""
    from maskwright.engine.native.kernel import borrow_threads, loaded, thread_count

    library = loaded()
    if not has_torch:
        threads = f"{thread_count()}, started for each call"
    else:
        import torch

        borrow_threads()
        pool = "PyTorch's OpenMP pool"
        if library.isa is not None and not library.borrows_threads:
            pool = "started for each call, since PyTorch's OpenMP pool cannot be used"
        threads = f"{torch.get_num_threads()}, {pool}"
    return _Kernel(library.isa, library.isas, library.reason, library.path, threads)


def _fix() -> str:
    """How to get the kernel."""
    if os.environ.get("MASKWRIGHT_ISA") == "none":
        return "unset MASKWRIGHT_ISA, which disables the kernel"
    if platform.system() == "Windows":
        return "the kernel does not support Windows; use Linux, macOS or WSL"
    command = os.environ.get("CC") or next(filter(shutil.which, ("cc", "gcc", "clang")), "cc")
    if shutil.which(command.split()[0]) is None:
        return (
            f"there is no C compiler ({command}). Install GCC 12 or Clang 12, or newer (Debian and "
            f"Ubuntu: apt install gcc; Fedora: dnf install gcc; macOS: xcode-select --install), "
            f"then run: {REINSTALL}"
        )
    return (
        f"the C compiler is {_compiler_version(command.split()[0])}. The kernel needs GCC 12 or "
        f"Clang 12, or newer; CC=... selects another compiler. Then run: {REINSTALL}"
    )


def _compiler_version(command: str) -> str:
    done = subprocess.run([command, "--version"], capture_output=True, text=True, check=False)
    lines = done.stdout.splitlines()
    return f"{command}, {lines[0].strip()}" if lines else command


def _torch_version() -> str:
    import torch

    return str(torch.__version__)


def _attention(has_torch: bool) -> str:
    """The backends that calls on the CPU use, as `explain_backend` selects them."""
    single, double = (
        explain_backend((1, 1, 8, 64), dtype=dtype).backend for dtype in ("float32", "float64")
    )
    if single != "native":
        return (
            f"{single} on the CPU"
            if has_torch
            else "not available: numpy arrays need the C kernel, and torch is not installed"
        )
    if not has_torch:
        return "native, for numpy arrays; torch tensors need torch"
    return (
        "native on the CPU for float32, bfloat16 and float16 with a head_dim of at most 256, "
        f"else {double}"
    )


@dataclass(frozen=True)
class SpeedComparison:
    """The best times in seconds, and the backend that computed ours."""

    mask: str
    size: int
    heads: int
    head_dim: int
    seconds: dict[str, float]
    speedup: float | None  # None without SDPA
    backend: str
    phases: dict[str, float] | None = None
    """The share of each phase of the C kernel in its cycles, if they were counted."""
    sdpa_skipped_reason: str | None = None
    """The reason why SDPA was not timed, if it was not."""

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        return "\n".join(
            [
                f"{self.mask:.60}, {self.size:,} queries and keys, {self.heads} heads, "
                f"head_dim {self.head_dim}, float32",
                *(f"{name:<17} {took * 1e3:9.3f} ms" for name, took in self.seconds.items()),
                f"{self.sdpa_skipped_reason}, backend {self.backend}"
                if self.speedup is None
                else f"{self.speedup:.1f} times the speed of SDPA, backend {self.backend}",
                *(
                    f"{name:<30} {part:4.0%} of the cycles"
                    for name, part in (self.phases or {}).items()
                ),
            ]
        )


def compare_with_sdpa(
    mask: Mask, size: int, heads: int, head_dim: int = 64, *, profile: bool = False
) -> SpeedComparison:
    """Time `attention` and SDPA with a dense mask in turns, best of several rounds.

    SDPA is left out if its mask does not fit into the free memory.

    Args:
        mask: The mask.
        size: Number of queries and of keys.
        heads: Number of heads.
        head_dim: Head dimension.
        profile: Also run a forward and a backward pass that count the cycles of each phase.

    Returns:
        The best times and their ratio.

    Raises:
        ArgumentError: If `profile` is set and the C kernel does not compute the call.
        SizeError: If q, k, v and the output do not fit into the free memory.

    >>> import maskwright as mw
    >>> from maskwright.engine.doctor import compare_with_sdpa
    >>> print(str(compare_with_sdpa(mw.causal(), 32, 2)).splitlines()[0])
    causal(), 32 queries and keys, 2 heads, head_dim 64, float32
    """
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    parse_int(size, "bench: size", minimum=1)
    parse_int(heads, "bench: heads", minimum=1)
    parse_int(head_dim, "bench: head_dim", minimum=1)
    bound = mask.on(size, heads=heads)
    batch = bound.frame.batch
    free = free_memory()
    num_tensors = 9 if profile else 5  # q, k, v and two outputs; the backward pass has four more
    tensor_bytes = num_tensors * batch * size * heads * head_dim * FLOAT32
    if tensor_bytes > free:
        raise SizeError(
            f"bench: {size} queries and keys need {tensor_bytes / 1e9:.1f} GB for q, k, v and the "
            f"output, more than the {free / 1e9:.1f} GB that are free. "
            "Pass a smaller --size, --heads or --head-dim."
        )
    sdpa_skipped_reason = _sdpa_skipped_reason(bound, free - tensor_bytes)
    q, k, v = (torch.randn(batch, size, heads, head_dim).transpose(1, 2) for _ in range(3))
    runners: dict[str, Callable[[], object]] = {"maskwright": lambda: attention(q, k, v, bound)}
    if sdpa_skipped_reason is None:
        dense = torch.from_numpy(bound.dense())
        runners["SDPA, dense mask"] = lambda: scaled_dot_product_attention(q, k, v, attn_mask=dense)
    best = _best_times(runners)
    ours, *theirs = best.values()
    speedup = theirs[0] / ours if theirs else None
    backend = explain_backend(q, k, v, bound).backend
    phases = _phase_shares(backend, (q, k, v), bound) if profile else None
    return SpeedComparison(
        *(repr(mask), size, heads, head_dim, best, speedup, backend, phases, sdpa_skipped_reason)
    )


def _sdpa_skipped_reason(bound: BoundMask, free: float) -> str | None:
    """The reason why the dense mask of SDPA cannot be made in the free bytes, or None."""
    cells = math.prod(bound.shape)
    with_floats = cells * (1 + FLOAT32)  # to which SDPA converts the boolean mask
    for size, limit in ((cells, MAX_BYTES), (with_floats, free)):
        if size > limit:
            return (
                f"without SDPA: its dense mask needs {size / 1e9:.1f} GB, "
                f"more than {limit / 1e9:.1f} GB"
            )
    return None


def _phase_shares(backend: str, tensors: tuple[Any, ...], bound: BoundMask) -> dict[str, float]:
    """The share of each phase in the cycles of a forward and a backward pass."""
    import torch

    if backend != "native":
        raise ArgumentError(
            f"bench: profile counts the cycles of the C kernel, and the backend is {backend}. "
            "Leave it out, or see `maskwright doctor` for why there is no kernel."
        )
    q, k, v = (x.requires_grad_() for x in tensors)

    def both_passes() -> None:
        out = attention(q, k, v, bound)
        torch.autograd.grad(out, (q, k, v), torch.ones_like(out))

    cycles = {name: count for name, count in phase_cycles(both_passes).items() if count}
    return {name: count / sum(cycles.values()) for name, count in cycles.items()}


def phase_cycles(run: Callable[[], object]) -> dict[str, int]:
    """Counts the cycles that the C kernel spends in each phase while `run` runs.

    The counters are those of the time stamp counter, of all threads, and of all calls in the
    process. On processors other than x86 they are nanoseconds.

    Args:
        run: Calls attention.

    Returns:
        The cycles by phase, 0 for one that did not run.
    """
    from maskwright.engine.native.kernel import loaded

    kernel = loaded().module
    kernel.profile(True)
    try:
        run()
    finally:
        kernel.profile(False)
    cycles: dict[str, int] = kernel.phases()
    return cycles


def _best_times(runners: dict[str, Callable[[], object]]) -> dict[str, float]:
    best = dict.fromkeys(runners, float("inf"))
    for turn in range(ROUNDS + 1):
        for name, run in runners.items():
            start = time.perf_counter()
            run()
            if turn:  # the first round warms up
                best[name] = min(best[name], time.perf_counter() - start)
    return best
