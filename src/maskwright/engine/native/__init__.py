"""The C kernel for CPUs: bindings, loading, and the choice of the instruction set.

The sources are in `src/`. The library is called through ctypes, and, as an extension module, by
`maskwright.engine.fast_path`.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import c_char_p, c_double, c_int64, c_uint64, c_void_p
from dataclasses import dataclass
from functools import lru_cache
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NoReturn

from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator

FLOAT32: Final = 0
BFLOAT16: Final = 1
FLOAT16: Final = 2
MAX_HEAD_DIM: Final = 256
MAX_TERMS: Final = 4

OK: Final = 0
DECLINED: Final = -1  # by the functions of the extension module
ERR_NO_MEMORY: Final = 1
ERR_INTERRUPTED: Final = 2

ISA_VARIABLE: Final = "MASKWRIGHT_ISA"
KERNEL_VARIABLE: Final = "MASKWRIGHT_KERNEL"


class Tensor(ctypes.Structure):
    """A tensor (batch, heads, rows, dim): address, and strides in elements."""

    _fields_ = (
        ("data", c_void_p),
        ("batch_stride", c_int64),
        ("head_stride", c_int64),
        ("row_stride", c_int64),
        ("dim_stride", c_int64),
    )


class RowTensor(ctypes.Structure):
    """A float32 tensor (batch, heads, rows): the logsumexp or its gradient."""

    _fields_ = (
        ("data", c_void_p),
        ("batch_stride", c_int64),
        ("head_stride", c_int64),
        ("row_stride", c_int64),
    )


class Spans(ctypes.Structure):
    """The spans of a mask: numbers of planes, and the addresses of the int64 arrays."""

    _fields_ = (
        ("batch", c_int64),
        ("heads", c_int64),
        ("offsets", c_void_p),
        ("starts", c_void_p),
        ("stops", c_void_p),
    )


class Dropout(ctypes.Structure):
    """Seed and probability, and where this call's rows and keys are in the whole tensors."""

    _fields_ = (
        ("seed", c_uint64),
        ("p", c_double),
        ("q_offset", c_int64),
        ("q_stride", c_int64),
        ("k_offset", c_int64),
        ("k_stride", c_int64),
    )


class Term(ctypes.Structure):
    """One term of the bias; see src/kernel_args.h. Strides are in elements."""

    _fields_ = (
        ("data", c_void_p),
        ("batch_stride", c_int64),
        ("head_stride", c_int64),
        ("row_stride", c_int64),
        ("key_stride", c_int64),
        ("origin", c_int64),
        ("rows", c_void_p),
        ("keys", c_void_p),
        ("grad", c_void_p),
        ("grad_batch_stride", c_int64),
        ("grad_head_stride", c_int64),
        ("grad_row_stride", c_int64),
        ("grad_length", c_int64),
    )


class ScoreArgs(ctypes.Structure):
    """Soft cap, bias and sinks of one kernel call."""

    _fields_ = (
        ("softcap", c_double),
        ("num_terms", c_int64),
        ("in_order", c_int64),
        ("sinks", c_void_p),
        ("dsinks", RowTensor),
        ("terms", Term * MAX_TERMS),
    )


class KernelArgs(ctypes.Structure):
    """The arguments of one kernel call; `KernelArgs` in src/kernel_args.h.

    It defines the layout and is checked against C. Calls are packed with `pack_args`, which is much
    faster than filling a structure. The fields from `dout` on are for the backward pass.
    """

    _fields_ = (
        ("batch", c_int64),
        ("heads", c_int64),
        ("kv_heads", c_int64),
        ("q_len", c_int64),
        ("kv_len", c_int64),
        ("head_dim", c_int64),
        ("v_head_dim", c_int64),
        ("dtype", c_int64),
        ("threads", c_int64),
        ("scale", c_double),
        ("spans", Spans),
        ("dropout", Dropout),
        ("scores", c_void_p),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("out", Tensor),
        ("lse", RowTensor),
        ("dout", Tensor),
        ("dq", Tensor),
        ("dk", Tensor),
        ("dv", Tensor),
        ("dlse", RowTensor),
    )


def leaf_fields(
    structure: type[ctypes.Structure], prefix: str = "", base: int = 0
) -> Iterator[tuple[str, int, int]]:
    """Yields name, offset and size of every field that is not itself a structure.

    >>> next(leaf_fields(KernelArgs))
    ('batch', 0, 8)
    """
    fields: tuple[tuple[str, Any], ...] = tuple(structure._fields_)  # type: ignore[arg-type]
    for name, kind in fields:
        offset = base + getattr(structure, name).offset
        if issubclass(kind, ctypes.Array):
            for n in range(kind._length_):
                first = offset + n * ctypes.sizeof(kind._type_)
                yield from leaf_fields(kind._type_, f"{prefix}{name}[{n}].", first)
        elif issubclass(kind, ctypes.Structure):
            yield from leaf_fields(kind, f"{prefix}{name}.", offset)
        else:
            yield f"{prefix}{name}", offset, ctypes.sizeof(kind)


_FORMATS: Final = {c_int64: "q", c_uint64: "Q", c_double: "d", c_void_p: "Q"}


def _leaf_formats(structure: type[ctypes.Structure]) -> str:
    """The format of every field, as in the module struct."""
    fields: tuple[tuple[str, Any], ...] = tuple(structure._fields_)  # type: ignore[arg-type]
    return "".join(_FORMATS.get(kind) or _leaf_formats(kind) for _, kind in fields)


_ARGS: Final = Struct("=" + _leaf_formats(KernelArgs))

pack_args: Final = _ARGS.pack
"""Returns the values of all fields of `KernelArgs`, in order, as the bytes of the structure."""

NO_BACKWARD: Final = (0,) * 24
"""The fields from `dout` on in a forward call."""


@dataclass(frozen=True)
class Kernel:
    """The loaded library, or the reason why there is none.

    Attributes:
        library: The ctypes library, or None.
        reason: Why this instruction set is used, or why there is no kernel.
        path: The library's file.
        extension: The library as an extension module, or None.
    """

    library: Any
    reason: str
    path: Path | None = None
    extension: Any = None

    @property
    def isas(self) -> tuple[str, ...]:
        """The instruction sets that this processor and the library support, best first.

        >>> "baseline" in loaded().isas or loaded().library is None
        True
        """
        names: list[str] = []
        while self.library is not None and (name := self.library.maskwright_isa_at(len(names))):
            names.append(name.decode())
        return tuple(names)

    @property
    def isa(self) -> str | None:
        """The instruction set in use, or None without a kernel."""
        name: bytes | None = None if self.library is None else self.library.maskwright_isa()
        return None if name is None else name.decode()

    @property
    def borrows_threads(self) -> bool:
        """Whether the kernel runs on PyTorch's OpenMP threads."""
        return self.library is not None and bool(self.library.maskwright_borrows_threads())


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
        library = _declare(ctypes.CDLL(str(path)))
    except (OSError, AttributeError) as error:
        return Kernel(None, f"{path.name} cannot be loaded: {error}")
    layouts = ((library.maskwright_field, KernelArgs), (library.maskwright_score_field, ScoreArgs))
    if any(
        _library_fields(field) != [*leaf_fields(kind), ("", 0, ctypes.sizeof(kind))]
        for field, kind in layouts
    ):
        return Kernel(None, f"{path.name} was built from another version of maskwright")
    extension = _extension_module(path)
    if isa is None:
        return Kernel(library, "the best instruction set of this processor", path, extension)
    kernel = Kernel(library, f"{ISA_VARIABLE} selects it", path, extension)
    use_isa(isa, kernel)
    return kernel


def raise_error(name: str, code: int) -> NoReturn:
    """Raises the exception of a return code that is not 0.

    Args:
        name: "forward" or "backward".
        code: The code that the kernel returned.

    Raises:
        MemoryError: If scratch memory could not be allocated.
        KeyboardInterrupt: If a signal handler raised it during the call. Any other exception of a
            signal handler is raised likewise.
        RuntimeError: If an argument was invalid, which is an internal error.
    """
    library = loaded().library
    if code == ERR_INTERRUPTED:
        ctypes.PyDLL(library._name).maskwright_reraise()
        raise KeyboardInterrupt
    if code == ERR_NO_MEMORY:
        raise MemoryError(
            f"attention: not enough memory for the scratch buffers of the {name} pass. "
            "Pass fewer sequences or heads at a time."
        )
    rule = library.maskwright_error(code)
    detail = f"error code {code}" if rule is None else rule.decode()
    raise RuntimeError(f"Internal error of the {name} kernel: {detail}.")


@lru_cache(maxsize=1)
def borrow_threads() -> None:
    """Runs the kernel on the threads of PyTorch's OpenMP library, once PyTorch is loaded.

    The first call searches for that library; later calls do nothing.
    """
    if loaded().library is not None:
        loaded().library.maskwright_borrow_threads(_find_gomp_parallel())


def use_isa(name: str, kernel: Kernel | None = None) -> None:
    """Selects the instruction set for the following calls.

    Args:
        name: One of `Kernel.isas`.
        kernel: The kernel; `loaded()` if None.

    Raises:
        ArgumentError: If the processor or the library does not support it.
    """
    kernel = loaded() if kernel is None else kernel
    isas = kernel.isas
    if name not in isas or kernel.library.maskwright_use_isa(name.encode()) != OK:
        raise ArgumentError(
            f"The instruction set {name!r} is not supported by this processor and the kernel. "
            f"Set {ISA_VARIABLE} to one of {', '.join((*isas, 'none'))}, or unset it."
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


def _build_failure() -> str:
    """The reason that setup.py stored when it could not build the kernel, after a colon."""
    path = Path(__file__).parent / "build_failure.txt"
    return f": {path.read_text().strip()}" if path.exists() else ""


def _declare(library: Any) -> Any:
    """Declares the argument and return types of the library's functions."""
    args, field = c_char_p, ctypes.POINTER(c_int64)
    for name, argtypes, restype in (
        ("maskwright_field", [c_int64, field, field], c_char_p),
        ("maskwright_score_field", [c_int64, field, field], c_char_p),
        ("maskwright_error", [c_int64], c_char_p),
        ("maskwright_isa", [], c_char_p),
        ("maskwright_isa_at", [c_int64], c_char_p),
        ("maskwright_use_isa", [c_char_p], c_int64),
        ("maskwright_borrow_threads", [c_void_p], None),
        ("maskwright_borrows_threads", [], c_int64),
        ("maskwright_forward", [args], c_int64),
        ("maskwright_backward", [args], c_int64),
        ("maskwright_tanh", [c_void_p, c_void_p, c_int64], None),
        ("maskwright_profile", [c_int64], None),
        ("maskwright_phase", [c_int64, field], c_char_p),
    ):
        function = getattr(library, name)
        function.argtypes, function.restype = argtypes, restype
    return library


def _extension_module(path: Path) -> Any:
    """The library as an extension module; None if it is not one, as a library built by hand."""
    loader = ExtensionFileLoader("maskwright.engine.native._kernel", str(path))
    spec = spec_from_file_location(loader.name, path, loader=loader)
    try:
        module = None if spec is None else module_from_spec(spec)
    except ImportError:
        return None
    if module is not None:
        loader.exec_module(module)
    return module


def _library_fields(field: Any) -> list[tuple[str, int, int]]:
    """The fields of a structure as C reports them; the last one is the whole structure."""
    fields: list[tuple[str, int, int]] = []
    offset, size = c_int64(), c_int64()
    while name := field(len(fields), offset, size):
        fields.append((name.decode(), offset.value, size.value))
    return [*fields, ("", offset.value, size.value)]


def _find_gomp_parallel() -> int | None:
    """The address of GOMP_parallel in the OpenMP library that PyTorch has loaded, if any."""
    maps = Path("/proc/self/maps")
    if not maps.exists():
        return None
    paths = {
        Path(line[line.index("/") :])
        for line in maps.read_text(errors="replace").splitlines()
        if "/" in line and ".so" in line
    }
    names = {path.name.split(".")[0] for path in paths}
    if "libtorch_cpu" not in names or names & {"libiomp5", "libomp"}:
        return None
    # Other packages keep their own copy in a folder named *.libs: that pool is not PyTorch's.
    candidates = [p for p in paths if p.name.startswith("libgomp") and ".libs" not in p.parent.name]
    for path in sorted(candidates, key=lambda p: "torch" not in p.parts):
        try:
            function = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_NOW).GOMP_parallel
        except (OSError, AttributeError):
            continue
        return ctypes.cast(function, c_void_p).value
    return None
