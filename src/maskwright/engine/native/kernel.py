"""Loads the extension module of the C kernel, and chooses the instruction set."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import lru_cache
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any, Final

from maskwright.errors import ArgumentError

INTERFACE: Final = 2  # of the functions in csrc/module.c
ISA_VARIABLE: Final = "MASKWRIGHT_ISA"
KERNEL_VARIABLE: Final = "MASKWRIGHT_KERNEL"


@dataclass(frozen=True)
class Kernel:
    """The loaded extension module, or the reason why there is none.

    Attributes:
        module: The extension module, or None.
        reason: Why this instruction set is used, or why there is no kernel.
        path: The module's file.
    """

    module: Any
    reason: str
    path: Path | None = None

    @property
    def isas(self) -> tuple[str, ...]:
        """The instruction sets that this processor and the kernel support, best first.

        >>> "baseline" in loaded().isas or loaded().module is None
        True
        """
        return () if self.module is None else self.module.isas()

    @property
    def isa(self) -> str | None:
        """The instruction set in use, or None without a kernel."""
        return None if self.module is None else self.module.isa()

    @property
    def borrows_threads(self) -> bool:
        """Whether the kernel runs on PyTorch's OpenMP threads."""
        return self.module is not None and self.module.borrows_threads()


@lru_cache(maxsize=1)
def loaded() -> Kernel:
    """Returns the kernel of this installation, loaded on first use.

    Raises:
        ArgumentError: If `MASKWRIGHT_ISA` is not supported by this processor.

    >>> loaded() is loaded()
    True
    """
    isa = os.environ.get(ISA_VARIABLE)
    if isa == "none":
        return Kernel(None, f"{ISA_VARIABLE} is none")
    paths = [Path(__file__).parent / f"_kernel{suffix}" for suffix in EXTENSION_SUFFIXES]
    if other := os.environ.get(KERNEL_VARIABLE):
        paths = [Path(other)]
    path = next((path for path in paths if path.exists()), None)
    if path is None:
        return Kernel(None, f"it was not built when maskwright was installed{_build_failure()}")
    try:
        module = _load(path)
    except ImportError as error:
        return Kernel(None, f"{path.name} cannot be loaded: {error}")
    if getattr(module, "INTERFACE", None) != INTERFACE:
        return Kernel(None, f"{path.name} was built from another version of maskwright")
    if isa is None:
        return Kernel(module, "the best instruction set of this processor", path)
    kernel = Kernel(module, f"{ISA_VARIABLE} selects it", path)
    use_isa(isa, kernel)
    return kernel


@lru_cache(maxsize=1)
def borrow_threads() -> None:
    """Runs the kernel on the threads of PyTorch's OpenMP library, once PyTorch is loaded.

    The first call searches for that library; later calls do nothing.
    """
    if loaded().module is not None:
        loaded().module.borrow_threads()


def use_isa(name: str, kernel: Kernel | None = None) -> None:
    """Selects the instruction set for the following calls.

    Args:
        name: One of `Kernel.isas`.
        kernel: The kernel; `loaded()` if None.

    Raises:
        ArgumentError: If the processor or the kernel does not support it.
    """
    kernel = loaded() if kernel is None else kernel
    if kernel.module is None or not kernel.module.use_isa(name):
        raise ArgumentError(
            f"The instruction set {name!r} is not supported by this processor and the kernel. "
            f"Set {ISA_VARIABLE} to one of {', '.join((*kernel.isas, 'none'))}, or unset it."
        )


def thread_count() -> int:
    """Returns the number of threads without PyTorch: `OMP_NUM_THREADS`, or the available CPUs.

    >>> thread_count() >= 1
    True
    """
    value = os.environ.get("OMP_NUM_THREADS", "")
    if value.isdigit() and int(value):
        return int(value)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _load(path: Path) -> Any:
    loader = ExtensionFileLoader("maskwright.engine.native._kernel", str(path))
    spec = spec_from_file_location(loader.name, path, loader=loader)
    assert spec is not None
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def _build_failure() -> str:
    """The reason that setup.py stored when it could not build the kernel, after a colon."""
    path = Path(__file__).parent / "build_failure.txt"
    return f": {path.read_text().strip()}" if path.exists() else ""
