"""Verification of the Triton kernels on a GPU: errors against the reference, and times.

`maskwright doctor --device cuda --verify` runs it and stores the faster backend for the device.
"""

from __future__ import annotations

import math
import time
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from maskwright.core import atoms
from maskwright.core.validate import read_choice
from maskwright.engine.api import attention
from maskwright.engine.gpu_choice import device_key, store, versions
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable

    from maskwright.core.expr import Mask

DEVICES: Final = ("cuda", "cpu")
ROUNDS: Final = 5
# Largest error relative to the largest entry of the exact result; gradients get twice that.
TOLERANCES: Final = {"float32": 1e-5, "float16": 4e-3, "bfloat16": 3e-2}


@dataclass(frozen=True)
class Check:
    """One mask and dtype: the errors relative to the largest entry, and the times in seconds."""

    mask: str
    dtype: str
    error: float
    gradient_error: float
    passed: bool
    seconds: float
    default_seconds: float


@dataclass(frozen=True)
class Verification:
    """The result of a verification: all checks, and the backend that follows from them."""

    device: str
    versions: dict[str, str]
    checks: tuple[Check, ...]
    speedup: float
    choice: str

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        failed = [check for check in self.checks if not check.passed]
        lines = [
            f"{self.device}, torch {self.versions['torch']}, triton {self.versions['triton']}",
            f"{len(self.checks) - len(failed)} of {len(self.checks)} checks passed, "
            f"{self.speedup:.2f} times the speed of the default (geometric mean)",
            *(
                f"failed: {check.mask}, {check.dtype}: error {check.error:.1e}, "
                f"of gradients {check.gradient_error:.1e}"
                for check in failed
            ),
            f"backend for this device: {self.choice}",
        ]
        return "\n".join(lines)


def suite(length: int) -> dict[str, Mask]:
    """The masks that are compared and timed."""
    third = length // 3
    return {
        "everything": atoms.everything(),
        "causal": atoms.causal(),
        "window": atoms.window(back=length // 8),
        "sinks": (atoms.window(back=length // 8) | atoms.keys(range(4))) & atoms.causal(),
        "documents": atoms.causal() & atoms.documents(lengths=[third, length - third]),
        "prefix": atoms.causal() | atoms.prefix(length // 4),
        "padding": atoms.causal() & atoms.padding(lengths=[length - 7, third]),
        "dilated": atoms.window(back=length // 4) & atoms.stride(4),
        "no row": atoms.nothing(),
    }


def verify(
    device: str = "cuda",
    length: int = 1024,
    dtypes: tuple[str, ...] = tuple(TOLERANCES),
    masks: tuple[str, ...] | None = None,
) -> Verification:
    """Compare the Triton kernels with the reference on a device, and time them.

    Args:
        device: "cuda", also for ROCm; "cpu" runs them in Triton's interpreter, for tests.
        length: Number of queries and keys.
        dtypes: Names of the dtypes.
        masks: Names of the masks of `suite`, all by default.

    Returns:
        All checks. `choice` is "triton" if all passed and the kernels are faster than the default
        on average, else "default". It is stored for a GPU, not for the interpreter.

    Raises:
        ArgumentError: The device is not available.
        MissingError: Triton is not installed.
    """
    import torch

    read_choice(device, "doctor: device", DEVICES)
    if device == "cuda" and not torch.cuda.is_available():
        raise ArgumentError(
            "doctor: device='cuda' is not available: torch finds no CUDA or ROCm GPU. Run it on a "
            "machine with one, with a torch build for it."
        )
    masks_by_name = suite(length)
    names = tuple(masks_by_name) if masks is None else masks
    checks = tuple(
        _check(name, masks_by_name[name], dtype, device, length)
        for name in names
        for dtype in dtypes
    )
    ratios = [check.default_seconds / check.seconds for check in checks if check.seconds]
    speedup = math.exp(sum(map(math.log, ratios)) / len(ratios)) if ratios else 0.0
    passed = all(check.passed for check in checks)
    choice = "triton" if passed and speedup > 1 else "default"
    key = device_key()
    if device == "cuda" and key is not None:
        store(key, choice)
    name = torch.cuda.get_device_name() if device == "cuda" else "Triton's interpreter"
    return Verification(name, versions(), checks, speedup, choice)


def _check(name: str, mask: Mask, dtype: str, device: str, length: int) -> Check:
    """One mask: errors of output and gradients, and times of forward and backward."""
    import torch

    generator = torch.Generator().manual_seed(0)
    shapes = ((2, 4, length, 64), (2, 2, length, 64), (2, 2, length, 64))
    inputs = [
        torch.randn(shape, generator=generator).to(device, getattr(torch, dtype)).requires_grad_()
        for shape in shapes
    ]
    grad = torch.randn(shapes[0], generator=generator).to(device, getattr(torch, dtype))

    def run(impl: str, tensors: Any) -> tuple[Any, ...]:
        q, k, v = tensors
        out = attention(q, k, v, mask, enable_gqa=True, impl=impl)
        grads = torch.autograd.grad(out, tensors, grad.to(out.dtype), materialize_grads=True)
        return (out.detach(), *grads)

    exact = run("reference", [x.detach().double().requires_grad_() for x in inputs])
    ours = run("triton", inputs)
    errors = [
        float((a.double() - b).abs().max()) / (float(b.abs().max()) or 1.0)
        for a, b in zip(ours, exact, strict=True)
    ]
    limit = TOLERANCES[dtype]
    passed = errors[0] <= limit and max(errors[1:]) <= 2 * limit
    default = "blocks"
    if device == "cuda":  # what is used there without a stored choice
        default = "sdpa" if name in ("everything", "causal") else "flex"
    result = Check(name, dtype, errors[0], max(errors[1:]), passed, 0.0, 0.0)
    return replace(
        result,
        seconds=_best_time(lambda: run("triton", inputs), device),
        default_seconds=_best_time(lambda: run(default, inputs), device),
    )


def _best_time(run: Callable[[], object], device: str) -> float:
    """The best of several times in seconds; on a GPU until it has finished. One in the interpreter."""
    import torch

    best = math.inf
    for _ in range(ROUNDS if device == "cuda" else 1):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        run()
        if device == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best
