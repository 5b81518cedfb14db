"""The laws of the algebra, one law a function. A law gives a shorter mask of the same set, or None.

`simplify` applies them until none holds. The set never changes on any frame that the mask fits;
what may change is which frames fit, so frames are always checked against what the user said.
"""

from __future__ import annotations

from dataclasses import replace
from hashlib import blake2b
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple, TypeGuard

import numpy as np

from maskwright.core.atoms.array import Blocks, Dense
from maskwright.core.atoms.index import IndexSet, Keys, Queries
from maskwright.core.atoms.position import Chunks, Everything, Nothing, Prefix, Stride, Window
from maskwright.core.atoms.structure import Graph, Image, Tree, unique_pairs
from maskwright.core.atoms.tokens import Documents, Padding
from maskwright.core.expr import And, Atom, Mask, Not, Or, PerAxis, Transpose, walk
from maskwright.core.validate import FrozenArray
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable

# Terms of an & or | are put in this order, so that the order in which they were said is the same.
_ORDER = (
    Everything, Nothing, Window, Chunks, Stride, Prefix, Padding, Documents, Keys, Queries,
    Tree, Graph, Image, Blocks, Dense,
)  # fmt: skip


def simplify(mask: Mask) -> Mask:
    """An equal mask, shorter where the laws of sets and of the atoms allow.

    It allows the same cells on every frame that the mask fits. A term that goes takes its data
    along, so pass batch and heads to `.on()` where they came from that.

    >>> import maskwright as mw
    >>> mw.simplify(mw.causal() & mw.window(back=7) & mw.everything())
    window(back=7)
    >>> mw.simplify(~(~mw.chunks(4) | ~mw.causal()))
    causal() & chunks(4)
    """
    if not isinstance(mask, Mask):
        raise ArgumentError(f"simplify: got {type(mask).__name__}. Give a mask that is not bound.")
    simple = mask._cached("simplified", lambda: _simplified(mask))
    return mask if simple is None else simple


def _simplified(mask: Mask) -> Mask | None:
    """The simplified mask, or None if it is the mask itself."""
    # A cache that referred to its own mask would keep it until the next garbage collection.
    simple = _settle(mask)
    if simple is mask:
        return None
    simple._cached("simplified", lambda: None)
    return simple


def transposed(mask: Mask) -> Mask | None:
    """The mask with queries and keys changed over, said without .T; None where that needs .T."""
    if isinstance(mask, (And, Or)):
        terms = tuple(_turn(term) for term in mask.terms)
        return And(terms) if isinstance(mask, And) else Or(terms)
    if isinstance(mask, Not):
        return Not(_turn(mask.term))
    if isinstance(mask, PerAxis):
        return replace(mask, masks=tuple(_turn(member) for member in mask.masks))
    if isinstance(mask, Transpose):
        return mask.term
    if isinstance(mask, (Everything, Nothing, Chunks, Documents)):
        return mask
    if isinstance(mask, Window):
        return Window(mask.ahead, mask.back)
    if isinstance(mask, Stride):
        return Stride(mask.every, -mask.phase % mask.every)
    if isinstance(mask, Keys):
        return Queries(mask.where)
    if isinstance(mask, Queries):
        return Keys(mask.where)
    if isinstance(mask, Image) and mask.border == "cut":
        whole = replace(mask, raster=False)
        return And((whole, Window(0, None))) if mask.raster else whole
    if isinstance(mask, Graph):
        return mask if not mask.directed else _turn_graph(mask)
    if isinstance(mask, Dense):
        return Dense(FrozenArray(mask.array.data.swapaxes(2, 3)))
    if isinstance(mask, Blocks):
        return Blocks(FrozenArray(mask.map.data.swapaxes(2, 3)), mask.kv_size, mask.q_size)
    return None


# ── laws of one operator ──────────────────────────────────────────────────────────────────────


def double_negation(mask: Mask) -> Mask | None:
    """~~a = a."""
    return mask.term.term if isinstance(mask, Not) and isinstance(mask.term, Not) else None


def complement_of_all(mask: Mask) -> Mask | None:
    """~everything = nothing, and the other way round."""
    if isinstance(mask, Not) and isinstance(mask.term, Everything):
        return Nothing()
    return Everything() if isinstance(mask, Not) and isinstance(mask.term, Nothing) else None


def de_morgan(mask: Mask) -> Mask | None:
    """~(~a | ~b) = a & b and its dual, where that leaves fewer nots."""
    if not isinstance(mask, Not) or not isinstance(mask.term, (And, Or)):
        return None
    terms = mask.term.terms
    if 2 * sum(isinstance(term, Not) for term in terms) < len(terms):
        return None
    turned = tuple(term.term if isinstance(term, Not) else Not(term) for term in terms)
    return Or(turned) if isinstance(mask.term, And) else And(turned)


def turn_inside(mask: Mask) -> Mask | None:
    """.T of a composition is the composition of .T; most atoms know their own."""
    return transposed(mask.term) if isinstance(mask, Transpose) else None


def alike_everywhere(mask: Mask) -> Mask | None:
    """The same mask for every head, or for every batch row, is that mask."""
    return mask.masks[0] if isinstance(mask, PerAxis) and len(set(mask.masks)) == 1 else None


def trivial_atom(mask: Mask) -> Mask | None:
    """Atoms that say everything or nothing, or a window, in a roundabout way."""
    if isinstance(mask, Stride) and mask.every == 1:
        return Everything()
    if isinstance(mask, Chunks) and mask.size == 1:
        return Window(0, 0)
    if isinstance(mask, (Keys, Queries)) and mask.where.positions is not None:
        return None if mask.where.positions.data.size else Nothing()
    if isinstance(mask, Graph) and not mask.edges.data.size:
        return Window(0, 0) if mask.loops else Nothing()
    return None


# ── laws of & and | ───────────────────────────────────────────────────────────────────────────


def flatten(mask: Mask) -> Mask | None:
    """(a & b) & c = a & b & c; one term alone is itself; none at all is the neutral one."""
    if not _is_chain(mask):
        return None
    if len(mask.terms) == 1:
        return mask.terms[0]
    if not mask.terms:
        return Everything() if isinstance(mask, And) else Nothing()
    if not any(isinstance(term, type(mask)) for term in mask.terms):
        return None
    return type(mask)(
        tuple(
            t
            for term in mask.terms
            for t in (term.terms if isinstance(term, type(mask)) else (term,))
        )
    )


def idempotence(mask: Mask) -> Mask | None:
    """A & a = a, a | a = a."""
    if not _is_chain(mask):
        return None
    once = tuple(dict.fromkeys(mask.terms))
    return type(mask)(once) if len(once) < len(mask.terms) else None


def neutral(mask: Mask) -> Mask | None:
    """A & everything = a, a | nothing = a."""
    if not _is_chain(mask):
        return None
    idle = Everything if isinstance(mask, And) else Nothing
    rest = tuple(term for term in mask.terms if not isinstance(term, idle))
    return type(mask)(rest) if len(rest) < len(mask.terms) else None


def absorbing(mask: Mask) -> Mask | None:
    """A & nothing = nothing, a | everything = everything; so with a & ~a and a | ~a."""
    if not _is_chain(mask):
        return None
    last = Nothing() if isinstance(mask, And) else Everything()
    terms = set(mask.terms)
    opposed = any(isinstance(term, Not) and term.term in terms for term in terms)
    return last if opposed or last in terms else None


def absorption(mask: Mask) -> Mask | None:
    """A & (a | b) = a, a | (a & b) = a."""
    if not _is_chain(mask):
        return None
    dual = Or if isinstance(mask, And) else And
    kept = tuple(
        term
        for term in mask.terms
        if not (
            isinstance(term, dual)
            and any(other in term.terms for other in mask.terms if other is not term)
        )
    )
    return type(mask)(kept) if len(kept) < len(mask.terms) else None


def merge(mask: Mask) -> Mask | None:
    """Two atoms of a kind become one: window & window, padding & padding, and so on."""
    if not _is_chain(mask):
        return None
    join = _meet if isinstance(mask, And) else _join
    kept: list[Mask] = []
    for term in mask.terms:
        for place, other in enumerate(kept):
            one = join(other, term) if type(other) is type(term) else None
            if one is not None:
                kept[place] = one
                break
        else:
            kept.append(term)
    return type(mask)(tuple(kept)) if len(kept) < len(mask.terms) else None


def order(mask: Mask) -> Mask | None:
    """A & b = b & a: terms stand in one order, whichever way they were said."""
    if not _is_chain(mask):
        return None
    ordered = tuple(sorted(mask.terms, key=_rank))
    if any(_rank(a) == _rank(b) for a, b in pairwise(ordered)):
        ordered = tuple(sorted(mask.terms, key=lambda term: (_rank(term), _fingerprint(term))))
    return type(mask)(ordered) if ordered != mask.terms else None


_LAWS: tuple[Callable[[Mask], Mask | None], ...] = (
    double_negation, complement_of_all, de_morgan, turn_inside, alike_everywhere, trivial_atom,
    flatten, idempotence, neutral, absorbing, absorption, merge, order,
)  # fmt: skip


# ── machinery ─────────────────────────────────────────────────────────────────────────────────


def _settle(mask: Mask) -> Mask:
    while True:
        mask = _rebuild(mask)
        for law in _LAWS:
            shorter = law(mask)
            if shorter is not None:
                mask = shorter
                break
        else:
            return mask


def _rebuild(mask: Mask) -> Mask:
    """The same operator over simplified parts."""
    if isinstance(mask, Atom):
        return mask
    if isinstance(mask, (And, Or)):
        return replace(mask, terms=tuple(simplify(term) for term in mask.terms))
    if isinstance(mask, PerAxis):
        return replace(mask, masks=tuple(simplify(member) for member in mask.masks))
    if isinstance(mask, (Not, Transpose)):
        return replace(mask, term=simplify(mask.term))
    return mask


def _is_chain(mask: Mask) -> TypeGuard[And | Or]:
    return isinstance(mask, (And, Or))


def _rank(term: Mask) -> tuple[int, int]:
    negated = isinstance(term, Not)
    kind = type(term.term if isinstance(term, Not) else term)
    return (_ORDER.index(kind) if kind in _ORDER else len(_ORDER), negated)


def _fingerprint(mask: Mask) -> str:
    """Different for different masks, and the same from run to run; short however much data."""
    said = []
    for part in walk(mask):
        name, given = part._call() if isinstance(part, Atom) else (type(part).__name__, {})
        said.append(f"{name}:{len(part._parts())}")
        for key, value in given.items():
            data = isinstance(value, FrozenArray) and value.data.size > 64
            said.append(f"{key}={blake2b(value.data.tobytes()).hexdigest() if data else value!r}")
    return " ".join(said)


def _turn(mask: Mask) -> Mask:
    closed = transposed(mask)
    return Transpose(mask) if closed is None else closed


def _turn_graph(mask: Graph) -> Graph:
    flipped = unique_pairs(mask.edges.data[:, ::-1])
    return Graph(FrozenArray(flipped), mask.directed, mask.loops)


def _meet(one: Mask, other: Mask) -> Mask | None:
    """One atom for the intersection of two of a kind, where there is one."""
    if isinstance(one, Window) and isinstance(other, Window):
        return Window(_least(one.back, other.back), _least(one.ahead, other.ahead))
    if isinstance(one, Chunks) and isinstance(other, Chunks):
        small, large = sorted((one.size, other.size))
        return Chunks(small) if large % small == 0 else None
    if isinstance(one, Stride) and isinstance(other, Stride):
        coarse, fine = sorted((one, other), key=lambda mask: mask.every)
        fits = fine.every % coarse.every == 0 and fine.phase % coarse.every == coarse.phase
        return fine if fits else None
    return _by_data(one, other, _Picks(np.minimum, np.logical_and, np.intersect1d))


def _join(one: Mask, other: Mask) -> Mask | None:
    """One atom for the union of two of a kind, where there is one."""
    if isinstance(one, Window) and isinstance(other, Window):
        # Every window holds the query itself, so two always overlap and make one.
        back, ahead = _most(one.back, other.back), _most(one.ahead, other.ahead)
        return Everything() if back is None and ahead is None else Window(back, ahead)
    if isinstance(one, Chunks) and isinstance(other, Chunks):
        small, large = sorted((one.size, other.size))
        return Chunks(large) if large % small == 0 else None
    return _by_data(one, other, _Picks(np.maximum, np.logical_or, np.union1d))


class _Picks(NamedTuple):
    """How two lengths, flags or sets of positions become one."""

    lengths: Callable[..., np.ndarray]
    flags: Callable[..., np.ndarray]
    positions: Callable[..., np.ndarray]


def _by_data(one: Mask, other: Mask, pick: _Picks) -> Mask | None:
    if isinstance(one, Prefix) and isinstance(other, Prefix):
        return _by_length(one, other, pick.lengths)
    if isinstance(one, Padding) and isinstance(other, Padding):
        if one.lengths is not None and other.lengths is not None:
            return _by_length(one, other, pick.lengths)
        return _by_keep(one, other, pick.flags)
    return _by_choice(one, other, pick.positions)


def _by_length(
    one: Prefix | Padding, other: Prefix | Padding, pick: Callable[..., np.ndarray]
) -> Mask | None:
    assert one.lengths is not None
    assert other.lengths is not None
    mine, theirs = one.lengths.data, other.lengths.data
    if mine.size != theirs.size and 1 not in (mine.size, theirs.size):
        return None  # these never fit one frame; binding them will say so
    return replace(one, lengths=FrozenArray(pick(mine, theirs)))


def _by_keep(one: Padding, other: Padding, pick: Callable[..., np.ndarray]) -> Mask | None:
    tokens = {mask.keep.data.shape[1] for mask in (one, other) if mask.keep is not None}
    if len(tokens) != 1:
        return None
    (count,) = tokens
    mine, theirs = (_kept(mask, count) for mask in (one, other))
    if mine.shape[0] != theirs.shape[0] and 1 not in (mine.shape[0], theirs.shape[0]):
        return None
    both = pick(mine, theirs)
    return Padding(None, FrozenArray(both)) if both.shape[0] else None


def _kept(mask: Padding, tokens: int) -> np.ndarray:
    if mask.keep is not None:
        return mask.keep.data
    assert mask.lengths is not None
    return np.arange(tokens) < mask.lengths.data[:, None]


def _by_choice(one: Mask, other: Mask, pick: Callable[..., np.ndarray]) -> Mask | None:
    for kind in (Keys, Queries):
        if isinstance(one, kind) and isinstance(other, kind):
            mine, theirs = one.where.positions, other.where.positions
            if mine is not None and theirs is not None:
                return kind(IndexSet(FrozenArray(pick(mine.data, theirs.data)), None))
    return None


def _least(one: int | None, other: int | None) -> int | None:
    known = [limit for limit in (one, other) if limit is not None]
    return min(known, default=None)


def _most(one: int | None, other: int | None) -> int | None:
    return None if one is None or other is None else max(one, other)
