"""The compiled kernel: is it there, which instruction set does it use, and whose threads?

`MASKWRIGHT_ISA` names an instruction set, or is "none" for no kernel at all. `MASKWRIGHT_KERNEL`
names another file to load it from, as tests do that were compiled with sanitizers.
"""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from functools import lru_cache
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from maskwright.engine.native.layout import ATTENTION, DONE
from maskwright.engine.native.parts import parts_of
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from maskwright.engine.native.layout import Given

VARIABLE: Final = "MASKWRIGHT_ISA"


@dataclass(frozen=True)
class Loaded:
    """The library, or why there is none."""

    functions: Any
    why: str
    path: Path | None = None

    @property
    def isas(self) -> tuple[str, ...]:
        """The instruction sets of this processor that the library knows, best first.

        >>> "baseline" in loaded().isas or loaded().functions is None
        True
        """
        found: list[str] = []
        while self.functions is not None and (name := self.functions.maskwright_isa_at(len(found))):
            found.append(name.decode())
        return tuple(found)

    @property
    def isa(self) -> str | None:
        """The one in use."""
        name: bytes | None = None if self.functions is None else self.functions.maskwright_isa()
        return None if name is None else name.decode()

    @property
    def borrows_threads(self) -> bool:
        """Does PyTorch's own pool do the work?"""
        return self.functions is not None and bool(self.functions.maskwright_borrows_threads())


@lru_cache(maxsize=1)
def loaded() -> Loaded:
    """The kernel of this installation, loaded once.

    >>> loaded() is loaded()
    True
    """
    wanted = os.environ.get(VARIABLE)
    if wanted == "none":
        return Loaded(None, f"{VARIABLE} is none")
    here = Path(__file__).parent
    places = [here / f"_kernel{end}" for end in EXTENSION_SUFFIXES]
    if other := os.environ.get("MASKWRIGHT_KERNEL"):
        places = [Path(other)]
    paths = [path for path in places if path.exists()]
    if not paths:
        return Loaded(None, "it was not built when maskwright was installed")
    try:
        functions = _typed(ctypes.CDLL(str(paths[0])))
    except (OSError, AttributeError) as error:
        return Loaded(None, f"{paths[0].name} can't be loaded: {error}")
    if functions.maskwright_size() != ATTENTION.size:
        return Loaded(None, f"{paths[0].name} is of another version of maskwright")
    found = Loaded(functions, "the best that this processor has", paths[0])
    if wanted is not None:
        use_isa(wanted, found)
        found = Loaded(functions, f"{VARIABLE} asks for it", paths[0])
    functions.maskwright_borrow_threads(None)
    return found


def run(which: str, given: Given, cells: int = 0) -> None:
    """One pass; whatever its addresses point to is held by the caller until it is done.

    `cells` says how much work it is; what would take long is done in several calls.
    """
    function = getattr(loaded().functions, f"maskwright_{which}")
    for part in parts_of(given, cells):
        if function(part.packed()) != DONE:
            raise MemoryError(
                "attention: there is not enough memory for a copy of the keys. "
                "Give fewer sequences or heads at a time."
            )


def borrow_threads() -> None:
    """Let PyTorch's threads do the work, now that it is loaded."""
    if loaded().functions is not None:
        loaded().functions.maskwright_borrow_threads(_borrowed())


def use_isa(name: str, library: Loaded | None = None) -> None:
    """Compute by this instruction set from now on."""
    library = loaded() if library is None else library
    known = library.isas
    if name not in known or library.functions.maskwright_use_isa(name.encode()) != DONE:
        raise ArgumentError(
            f"The instruction set {name!r} is none of those that this processor and the kernel "
            f"have. Set {VARIABLE} to one of {', '.join((*known, 'none'))}, or leave it out."
        )


def _typed(library: Any) -> Any:
    """With the types of its functions."""
    given, whole = ctypes.c_char_p, ctypes.c_int64
    for name, takes, gives in (
        ("maskwright_size", [], whole),
        ("maskwright_isa", [], ctypes.c_char_p),
        ("maskwright_isa_at", [whole], ctypes.c_char_p),
        ("maskwright_use_isa", [ctypes.c_char_p], whole),
        ("maskwright_borrow_threads", [ctypes.c_void_p], None),
        ("maskwright_borrows_threads", [], whole),
        ("maskwright_forward", [given], whole),
        ("maskwright_backward", [given], whole),
    ):
        function = getattr(library, name)
        function.argtypes, function.restype = takes, gives
    return library


def _borrowed() -> int | None:
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
    # A package that brings a library of its own keeps it in such a folder: that pool isn't PyTorch's.
    ours = [p for p in paths if p.name.startswith("libgomp") and ".libs" not in p.parent.name]
    for path in sorted(ours, key=lambda p: "torch" not in p.parts):
        try:
            parallel = ctypes.CDLL(str(path), mode=os.RTLD_NOLOAD | os.RTLD_NOW).GOMP_parallel
        except (OSError, AttributeError):
            continue
        return ctypes.cast(parallel, ctypes.c_void_p).value
    return None
