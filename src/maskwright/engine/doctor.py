"""What `maskwright doctor` reports: versions, the C kernel, threads, and the backend in use."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from maskwright.engine.api import explain_backend

if TYPE_CHECKING:
    from pathlib import Path

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
    others = [name for name in kernel.isas if name != kernel.isa]
    found = {
        "python": f"{platform.python_version()} on {platform.system()} {platform.machine()}",
        "numpy": np.__version__,
        "torch": _torch_version() if has_torch else "not installed",
        "kernel": f"{kernel.isa or 'none'}: {kernel.reason}",
        "library": str(kernel.path or "none"),
        "other instruction sets": ", ".join(others) or "none",
        "threads": kernel.threads,
        "attention": _attention(has_torch),
    }
    if kernel.isa is None:
        found["fix"] = _fix()
    return found


class _Kernel(NamedTuple):
    isa: str | None
    isas: tuple[str, ...]
    reason: str
    path: Path | None
    threads: str


def _kernel(has_torch: bool) -> _Kernel:
    """The state of the C kernel: the only use of the binding in this module."""
    from maskwright.engine.native.bindings import borrow_threads, loaded, thread_count

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
