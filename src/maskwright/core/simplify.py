"""The laws of the algebra, one function per law: it returns a shorter equal mask, or None.

`simplify` applies them until none does. The set of cells stays the same on every frame that the
mask fits. Which frames it fits may change, so frames are checked against the original mask.
"""

from __future__ import annotations

from hashlib import blake2b
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from maskwright.core.atoms.position import Everything, Nothing
from maskwright.core.expr import Atom, Mask, walk
from maskwright.core.operators import And, Composite, Not, Or, PerAxis, Transpose
from maskwright.core.validate import FrozenArray
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable


def simplify(mask: Mask) -> Mask:
    """Returns an equal mask, simplified by the laws of set algebra and of the atoms.

    The result has the same cells on every frame that the mask fits. Where a term is dropped, so is
    its data: pass batch and heads to `.on()` if they came from it.

    Args:
        mask: An unbound mask.

    Returns:
        The simplified mask, or the mask itself if no law applies.

    Raises:
        ArgumentError: If `mask` is not a mask, or is bound.

    >>> import maskwright as mw
    >>> mw.simplify(mw.causal() & mw.window(back=7) & mw.everything())
    window(back=7)
    >>> mw.simplify(~(~mw.chunks(4) | ~mw.causal()))
    causal() & chunks(4)
    """
    if not isinstance(mask, Mask):
        raise ArgumentError(
            f"simplify: expected an unbound mask, got {type(mask).__name__}. Pass bound.mask."
        )
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


# ── laws of one operator ──────────────────────────────────────────────────────────────────────


def double_negation(mask: Not) -> Mask | None:
    """~~a = a."""
    return mask.term.term if isinstance(mask.term, Not) else None


def complement_of_all(mask: Not) -> Mask | None:
    """~everything = nothing, ~nothing = everything."""
    if isinstance(mask.term, Everything):
        return Nothing()
    return Everything() if isinstance(mask.term, Nothing) else None


def de_morgan(mask: Not) -> Mask | None:
    """~(~a | ~b) = a & b and its dual, if that has fewer negations."""
    if not isinstance(mask.term, (And, Or)):
        return None
    terms = mask.term.terms
    if 2 * sum(isinstance(term, Not) for term in terms) < len(terms):
        return None
    negated = tuple(term.term if isinstance(term, Not) else Not(term) for term in terms)
    return Or(negated) if isinstance(mask.term, And) else And(negated)


def push_transpose_inside(mask: Transpose) -> Mask | None:
    """.T of a composition is the composition of .T; most atoms have a closed form for their own."""
    return mask.term._transposed()


def equal_members(mask: PerAxis) -> Mask | None:
    """If all heads or batch rows have the same mask, the result is that mask."""
    return mask.masks[0] if len(set(mask.masks)) == 1 else None


def simpler_atom(mask: Mask) -> Mask | None:
    """An atom that equals a simpler one: stride(1) = everything()."""
    return mask._simpler()


# ── laws of & and | ───────────────────────────────────────────────────────────────────────────


def flatten(mask: And | Or) -> Mask | None:
    """(a & b) & c = a & b & c; a single term is itself; no term is the neutral element."""
    if len(mask.terms) == 1:
        return mask.terms[0]
    if not mask.terms:
        return Everything() if isinstance(mask, And) else Nothing()
    if not any(isinstance(term, type(mask)) for term in mask.terms):
        return None
    return type(mask)(tuple(t for term in mask.terms for t in term._terms_of(type(mask))))


def idempotence(mask: And | Or) -> Mask | None:
    """Idempotence: `a & a = a`, `a | a = a`."""
    once = tuple(dict.fromkeys(mask.terms))
    return type(mask)(once) if len(once) < len(mask.terms) else None


def neutral(mask: And | Or) -> Mask | None:
    """Neutral elements: `a & everything = a`, `a | nothing = a`."""
    idle = Everything if isinstance(mask, And) else Nothing
    rest = tuple(term for term in mask.terms if not isinstance(term, idle))
    return type(mask)(rest) if len(rest) < len(mask.terms) else None


def absorbing(mask: And | Or) -> Mask | None:
    """`a & nothing = a & ~a = nothing`, `a | everything = a | ~a = everything`."""
    absorber = Nothing() if isinstance(mask, And) else Everything()
    terms = set(mask.terms)
    opposed = any(isinstance(term, Not) and term.term in terms for term in terms)
    return absorber if opposed or absorber in terms else None


def absorption(mask: And | Or) -> Mask | None:
    """Absorption: `a & (a | b) = a`, `a | (a & b) = a`."""
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


def merge(mask: And | Or) -> Mask | None:
    """Two atoms of one class become one: window & window, padding & padding, and so on."""
    kept: list[Mask] = []
    for term in mask.terms:
        for index, other in enumerate(kept):
            merged = _merged(mask, other, term) if type(other) is type(term) else None
            if merged is not None:
                kept[index] = merged
                break
        else:
            kept.append(term)
    return type(mask)(tuple(kept)) if len(kept) < len(mask.terms) else None


def order(mask: And | Or) -> Mask | None:
    """Commutativity: `a & b = b & a`, so terms are sorted."""
    ordered = tuple(sorted(mask.terms, key=_rank))
    if any(_rank(a) == _rank(b) for a, b in pairwise(ordered)):
        ordered = tuple(sorted(mask.terms, key=lambda term: (_rank(term), _fingerprint(term))))
    return type(mask)(ordered) if ordered != mask.terms else None


_CHAIN_LAWS: Final = (flatten, idempotence, neutral, absorbing, absorption, merge, order)
# The laws of each operator; those of atoms are of any other class.
_LAWS: Final[dict[type[Mask], tuple[Callable[[Any], Mask | None], ...]]] = {
    Not: (double_negation, complement_of_all, de_morgan),
    Transpose: (push_transpose_inside,),
    PerAxis: (equal_members,),
    And: _CHAIN_LAWS,
    Or: _CHAIN_LAWS,
}


# ── machinery ─────────────────────────────────────────────────────────────────────────────────


def _settle(mask: Mask) -> Mask:
    while True:
        mask = _rebuild(mask)
        for law in _LAWS.get(type(mask), (simpler_atom,)):
            shorter = law(mask)
            if shorter is not None:
                mask = shorter
                break
        else:
            return mask


def _rebuild(mask: Mask) -> Mask:
    """The same operator on simplified parts."""
    if not isinstance(mask, Composite):
        return mask
    return mask._with_parts(tuple(simplify(part) for part in mask._parts()))


def _merged(chain: And | Or, mask: Mask, other: Mask) -> Mask | None:
    return mask._intersection(other) if isinstance(chain, And) else mask._union(other)


def _rank(term: Mask) -> tuple[int, int]:
    negated = isinstance(term, Not)
    return (term.term if isinstance(term, Not) else term)._rank, negated


def _fingerprint(mask: Mask) -> str:
    """A text that differs for different masks, is the same in every process, and is short."""
    parts = []
    for part in walk(mask):
        name, arguments = part._call() if isinstance(part, Atom) else (type(part).__name__, {})
        parts.append(f"{name}:{len(part._parts())}")
        for key, value in arguments.items():
            data = isinstance(value, FrozenArray) and value.data.size > 64
            parts.append(f"{key}={blake2b(value.data.tobytes()).hexdigest() if data else value!r}")
    return " ".join(parts)
