"""Source code that builds a mask, as one would write it by hand.

A mask becomes a comparison of `row` and `col`, the positions of queries and keys, in numpy, torch
or jax.numpy. Where an atom has no such formula, the code calls maskwright.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from maskwright.core.expr import Atom, find
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    import numpy.typing as npt

    from maskwright.core.bound import BoundMask
    from maskwright.core.validate import FrozenArray, IntArray

Library = Literal["np", "torch", "jnp"]

IMPORTS: Final = {
    "np": "import numpy as np",
    "torch": "import torch",
    "jnp": "import jax.numpy as jnp",
}


def mask_code(bound: BoundMask, library: Library) -> list[str]:
    """Lines that import the library and build `mask`, True where a query attends."""
    check_text(bound)
    writer = CodeWriter(library, bound._home.tokens, bound.frame.q_start < 0)
    formula = bound.mask._formula(writer, "row", "col")
    if formula is None:
        return _by_maskwright(bound, library)
    frame, lib = bound.frame, library
    return [
        IMPORTS[lib],
        "",
        f"row = {lib}.arange({frame.q_start}, {frame.q_stop})[:, None]  # queries' positions",
        f"col = {lib}.arange({frame.kv_len})[None, :]  # keys' positions",
        *writer.data,
        f"mask = {lib}.broadcast_to({_bare(formula)}, {bound.shape})  # True keeps",
    ]


def check_text(bound: BoundMask) -> None:
    """Raises ArgumentError for a mask that has no source."""
    if not all(atom.serializable for atom in find(bound.mask, Atom)):
        raise ArgumentError(
            "explain_lowering: where(...) holds a function, which has no text. "
            "Pass the mask without it, or call lower()."
        )


def bound_code(bound: BoundMask) -> str:
    """Source of the bound mask as a call of maskwright."""
    check_text(bound)
    home, frame = bound._home, bound.frame
    whole = (
        f'mw.parse("{bound.mask!r}").on({home.q_len}, {home.kv_len}, '
        f"batch={home.batch}, heads={home.heads}, q_start={home.q_start})"
    )
    if home != frame:
        whole += f".rows({bound._part.row}, {bound._part.row_stop}, kv_len={frame.kv_len})"
    return whole


def fill_code(least: float, of_dtype: float, finfo: str) -> str:
    """Source of the fill, from the minimum of an additive mask and that of its dtype."""
    if least == of_dtype:
        return f"{finfo}.min"
    return repr(least) if -math.inf < least < 0 else 'float("-inf")'


def _by_maskwright(bound: BoundMask, library: Library) -> list[str]:
    whole = bound_code(bound)
    dense = {
        "np": f"{whole}.dense()",
        "torch": f"torch.from_numpy({whole}.dense())",
        "jnp": f"jnp.asarray({whole}.dense())",
    }
    return [
        IMPORTS[library],
        "",
        "import maskwright as mw",
        "",
        f"mask = {dense[library]}  # True keeps",
    ]


class CodeWriter:
    """Writes formulas over two arrays of positions, and the tables that they look up."""

    def __init__(self, library: Library, tokens: int, negative: bool) -> None:
        self.library = library
        self.tokens = tokens
        self.negative = negative  # whether a query has a position below 0
        self.data: list[str] = []

    def constant(self, value: bool, row: str, col: str) -> str:
        """An array of one value."""
        return f"(({row} {'==' if value else '!='} {row}) & ({col} == {col}))"

    def before(self, position: str, lengths: FrozenArray) -> str:
        """Whether `position` is one of the first `lengths` tokens of its sequence."""
        test = f"({position} < {self._per_sequence(lengths)})"
        negative = position == "row" and self.negative
        return f"(({position} >= 0) & {test})" if negative else test

    def contains(self, positions: IntArray, position: str) -> str:
        """Whether `position` is in a list of positions."""
        return f"{self.library}.isin({position}, {self._array(positions)})"

    def lookup(self, name: str, table: npt.NDArray[Any], position: str) -> str:
        """The entry of a (batch, tokens) table at `position`."""
        stored = self._store(name, table)
        return (
            f"{stored}[0, {position}]" if len(table) == 1 else f"{stored}[:, {position}][:, None]"
        )

    def _per_sequence(self, lengths: FrozenArray) -> str:
        if lengths.data.size == 1:
            return str(int(lengths.data[0]))
        return f"{self._array(lengths.data)}[:, None, None, None]"

    def _store(self, name: str, data: npt.NDArray[Any]) -> str:
        """Defines a table, and returns its name."""
        source = self._array(data)
        for line in self.data:
            if line.partition(" = ")[2] == source:
                return line.partition(" = ")[0]
        taken = sum(line.startswith(name) for line in self.data)
        name = f"{name}_{taken + 1}" if taken else name
        self.data.append(f"{name} = {source}")
        return name

    def _array(self, data: npt.NDArray[Any]) -> str:
        make = "tensor" if self.library == "torch" else "array"
        kind = ", dtype=int" if not data.size and self.library != "torch" else ""
        return f"{self.library}.{make}({data.astype(np.int64).tolist()}{kind})"


def _bare(formula: str) -> str:
    """The formula without the pair of parentheses around all of it."""
    depth = 0
    for index, letter in enumerate(formula):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if depth == 0 and index < len(formula) - 1:
            return formula
    return formula[1:-1]
