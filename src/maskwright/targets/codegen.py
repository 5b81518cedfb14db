"""Code for people: the few lines that a person would write to make a mask by hand.

A mask becomes a comparison of `row` and `col`, the positions of queries and keys, in numpy, torch
or jax.numpy. Where an atom has no such formula, the lines call maskwright.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from maskwright.core.atoms.array import Where
from maskwright.core.atoms.index import IndexSet, Keys, Queries
from maskwright.core.atoms.position import Chunks, Everything, Nothing, Prefix, Stride, Window
from maskwright.core.atoms.tokens import Documents, Padding
from maskwright.core.expr import And, Not, Or, Transpose, walk
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    import numpy.typing as npt

    from maskwright.core.bound import BoundMask
    from maskwright.core.expr import Mask
    from maskwright.core.validate import FrozenArray, IntArray

Library = Literal["np", "torch", "jnp"]

IMPORTS: Final = {
    "np": "import numpy as np",
    "torch": "import torch",
    "jnp": "import jax.numpy as jnp",
}


def mask_code(bound: BoundMask, library: Library) -> list[str]:
    """Lines that import the library and make `mask`, True where a query may see a key."""
    check_text(bound)
    writer = _Writer(library, bound._home.tokens, bound.frame.q_start < 0)
    try:
        formula = writer.formula(bound.mask, "row", "col")
    except KeyError:
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
    """Refuse a mask that source can't hold."""
    if any(isinstance(part, Where) for part in walk(bound.mask)):
        raise ArgumentError(
            "explain_lowering: where(...) holds a function, which has no text. "
            "Explain the mask without it, or call lower()."
        )


def bound_code(bound: BoundMask) -> str:
    """Source of the bound mask, by maskwright itself."""
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
    """Source of what hides, from the least number of an additive mask and of its dtype."""
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


class _Writer:
    """Formulas over two position arrays; what they look up is written down before them."""

    def __init__(self, library: Library, tokens: int, negative: bool) -> None:
        self.library = library
        self.tokens = tokens
        self.negative = negative  # does a query sit before position 0?
        self.data: list[str] = []

    def formula(self, mask: Mask, row: str, col: str) -> str:
        """Source of the mask's truth; KeyError where an atom has no formula."""
        if isinstance(mask, (And, Or)):
            sign, dull = (" & ", Everything) if isinstance(mask, And) else (" | ", Nothing)
            if not mask.terms:
                return self._constant(isinstance(mask, And), row, col)
            terms = [term for term in mask.terms if not isinstance(term, dull)] or mask.terms
            said = [self.formula(term, row, col) for term in terms]
            return f"({sign.join(said)})" if len(said) > 1 else said[0]
        if isinstance(mask, Not):
            return f"~{self.formula(mask.term, row, col)}"
        if isinstance(mask, Transpose):
            return self.formula(mask.term, col, row)
        return self._atom(mask, row, col)

    def _atom(self, mask: Mask, row: str, col: str) -> str:
        if isinstance(mask, (Everything, Nothing)):
            return self._constant(isinstance(mask, Everything), row, col)
        if isinstance(mask, Window):
            ends = []
            if mask.back is not None:
                ends.append(f"({col} >= {_plus(row, -mask.back)})")
            if mask.ahead is not None:
                ends.append(f"({col} <= {_plus(row, mask.ahead)})")
            return f"({' & '.join(ends)})" if len(ends) == 2 else ends[0]
        if isinstance(mask, Prefix):
            return self._first(col, mask.lengths)
        if isinstance(mask, Chunks):
            return f"({row} // {mask.size} == {col} // {mask.size})"
        if isinstance(mask, Stride):
            return f"(({row} - {col}) % {mask.every} == {mask.phase})"
        if isinstance(mask, Padding):
            if mask.lengths is not None:
                return self._first(col, mask.lengths)
            assert mask.keep is not None
            return f"({self._look_up('keep', mask.keep.data, col)} == 1)"
        if isinstance(mask, Documents):
            name = self._store("document", _documents(mask, self.tokens))
            at = [self._at(name, mask._batch, place) for place in (row, col)]
            return f"(({at[0]} == {at[1]}) & ({at[1]} >= 0))"
        if isinstance(mask, Keys):
            return self._chosen(mask.where, "chosen_keys", col)
        if isinstance(mask, Queries):
            return self._chosen(mask.where, "chosen_queries", row)
        raise KeyError(type(mask).__name__)

    def _constant(self, truth: bool, row: str, col: str) -> str:
        return f"(({row} {'==' if truth else '!='} {row}) & ({col} == {col}))"

    def _chosen(self, where: IndexSet, name: str, place: str) -> str:
        if where.positions is not None:
            return f"{self.library}.isin({place}, {self._array(where.positions.data)})"
        assert where.flags is not None
        return f"({self._look_up(name, where.flags.data, place)} == 1)"

    def _first(self, place: str, lengths: FrozenArray) -> str:
        """The first tokens of each sequence; none of them sits before position 0."""
        said = f"({place} < {self._per_sequence(lengths)})"
        return f"(({place} >= 0) & {said})" if place == "row" and self.negative else said

    def _per_sequence(self, lengths: FrozenArray) -> str:
        if lengths.data.size == 1:
            return str(int(lengths.data[0]))
        return f"{self._array(lengths.data)}[:, None, None, None]"

    def _look_up(self, name: str, data: npt.NDArray[Any], place: str) -> str:
        return self._at(self._store(name, data), len(data), place)

    def _at(self, name: str, batch: int, place: str) -> str:
        return f"{name}[0, {place}]" if batch == 1 else f"{name}[:, {place}][:, None]"

    def _store(self, name: str, data: npt.NDArray[Any]) -> str:
        taken = sum(line.startswith(name) for line in self.data)
        name = f"{name}_{taken + 1}" if taken else name
        self.data.append(f"{name} = {self._array(data)}")
        return name

    def _array(self, data: npt.NDArray[Any]) -> str:
        make = "tensor" if self.library == "torch" else "array"
        kind = ", dtype=int" if not data.size and self.library != "torch" else ""
        return f"{self.library}.{make}({data.astype(np.int64).tolist()}{kind})"


def _documents(mask: Documents, tokens: int) -> IntArray:
    """(batch, tokens): the document of every token, -1 for padding."""
    if mask.ids is not None:
        return mask.ids.data
    ids = np.full((mask._batch, tokens), -1)
    for row, lengths in zip(ids, mask.lengths or (), strict=True):
        row[: sum(lengths)] = np.repeat(np.arange(len(lengths)), lengths)
    return ids


def _plus(name: str, by: int) -> str:
    return f"{name} {'-' if by < 0 else '+'} {abs(by)}" if by else name


def _bare(formula: str) -> str:
    """The formula without the one pair of brackets that surrounds all of it."""
    depth = 0
    for index, letter in enumerate(formula):
        depth += {"(": 1, ")": -1}.get(letter, 0)
        if depth == 0 and index < len(formula) - 1:
            return formula
    return formula[1:-1]
