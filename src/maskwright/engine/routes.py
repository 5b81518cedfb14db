"""Which way attention is computed, and why.

On CPU it is the kernel in C where there is one; dropout and float64 go by strips all the same.
Without it the plan itself is the choice: a single piece without a mask, or in the kernel's causal
mode, is what SDPA would do; a single masked piece is SDPA with a dense mask; else it is strips.
The plan takes the cheapest by the cost table. On other devices it is SDPA where no mask tensor is
needed, and FlexAttention else. `impl` names one, and never falls back to another.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from maskwright.core.arrays import read_choice
from maskwright.engine.costs import table
from maskwright.engine.native.bindings import loaded
from maskwright.engine.pieces import Piece
from maskwright.engine.plan import plan_of
from maskwright.errors import Unsupported
from maskwright.targets.facts import is_upper_left_causal, sees_everything

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask
    from maskwright.engine.plan import Plan

IMPLS: Final = ("auto", "native", "strips", "sdpa", "dense", "flex", "reference")


@dataclass(frozen=True)
class Route:
    """The way taken, in words why, and the plan where there is one.

    >>> import maskwright as mw
    >>> route = mw.explain_route(mw.causal(), 64, heads=8, impl="strips")
    >>> route.impl, route.kind
    ('strips', 'SDPA, is_causal')
    """

    impl: str
    kind: str
    why: str
    plan: Plan | None = None

    def __str__(self) -> str:
        lines = [f"{self.impl}: {self.kind}", self.why]
        return "\n".join(lines if self.plan is None else [*lines, str(self.plan)])


def read_impl(impl: object) -> str:
    """One of the ways by name."""
    return read_choice(impl, "attention: impl", IMPLS)


def choose(bound: BoundMask, impl: str, device: str, planes: tuple[int, int]) -> Route:
    """The way for this mask on this kind of device."""
    if impl == "auto":
        impl = _here() if device == "cpu" else _elsewhere(bound)
    if impl == "native":
        return _native_route(bound, device, planes)
    if impl == "strips":
        if device != "cpu":
            raise Unsupported(
                f"strips run on the CPU only, and q is on {device}. "
                'Pass impl="flex", or leave impl out.',
                target="strips",
                term="",
            )
        return plan_route(bound, planes)
    if impl == "sdpa" and not (sees_everything(bound) or is_upper_left_causal(bound)):
        raise Unsupported(
            "sdpa without a mask tensor says only everything() and, from the upper left, causal(), "
            f'and {bound.mask!r:.80} is neither. Pass impl="dense", or leave impl out.',
            target="sdpa",
            term=repr(bound.mask),
        )
    return Route(impl, _KINDS[impl], "asked for by name, or the only way on this device")


_KINDS: Final = {
    "sdpa": "SDPA without a mask tensor",
    "dense": "SDPA with a dense mask",
    "flex": "compiled FlexAttention",
    "reference": "dense softmax in float64",
}


def _here() -> str:
    return "strips" if loaded().library is None else "native"


def _native_route(bound: BoundMask, device: str, planes: tuple[int, int]) -> Route:
    if device != "cpu":
        raise Unsupported(
            f"The kernel in C runs on the CPU only, and q is on {device}. "
            'Pass impl="flex", or leave impl out.',
            target="native",
            term="",
        )
    library = loaded()
    if library.library is None:
        raise Unsupported(
            f"There is no kernel in C here: {library.reason}. Leave impl out.",
            target="native",
            term="",
        )
    cells, took = _native_cost(bound, "forward", planes)
    why = (
        f"about {took / 1e6:.3g} ms by the cost table: it reads the mask's intervals, {cells:,} cells; "
        f"its instructions are {library.isa}, {library.reason}"
    )
    return Route("native", "the kernel in C", why)


def native_line(bound: BoundMask, direction: str) -> str:
    """What the kernel in C would take, or why there is none, in a line.

    >>> import maskwright as mw
    >>> native_line(mw.causal().on(64), "forward").split(":")[0]
    'native'
    """
    library = loaded()
    if library.library is None:
        return f"native: no kernel in C: {library.reason}"
    cells, took = _native_cost(bound, direction)
    return (
        f"native: the kernel in C ({library.isa}), which is what runs: about {took / 1e6:.3g} ms by the "
        f"cost table for {cells:,} cells"
    )


def _native_cost(
    bound: BoundMask, direction: str, planes: tuple[int, int] | None = None
) -> tuple[int, float]:
    """Cells that are seen in all planes (batch rows times heads, as many as given), and their time."""
    batch, heads = planes or (bound.frame.batch, bound.frame.heads)
    copies = batch * heads / max(bound.frame.batch * bound.frame.heads, 1)
    cells = round(bound.count() * copies)
    return cells, table()[direction].native(cells, batch * heads * bound.shape[2])


def _elsewhere(bound: BoundMask) -> str:
    return "sdpa" if sees_everything(bound) or is_upper_left_causal(bound) else "flex"


def plan_route(bound: BoundMask, planes: tuple[int, int] | None = None) -> Route:
    """The way that the plan is, for so many batch rows and heads; the frame's if not given."""
    planes = planes or (bound.frame.batch, bound.frame.heads)
    plan = plan_of(bound, "forward", planes)
    costs = table()["forward"]
    dense = costs.strip(
        max(bound.shape[2], 1), bound.shape[3], masked=True, planes=planes[0] * planes[1]
    )
    kind = kind_of_plan(plan)
    why = (
        f"about {plan.nanoseconds / 1e6:.3g} ms by the cost table, "
        f"where SDPA with a dense mask would take {dense / 1e6:.3g} ms"
    )
    return Route("strips", kind, why, plan)


def kind_of_plan(plan: Plan) -> str:
    """What a plan comes down to, in the words of those who call SDPA by hand."""
    if not plan.pieces:
        return "nothing to compute"
    (piece, *_) = plan.pieces
    if not plan.covers or not plan.single or not isinstance(piece, Piece):
        return "strips"
    if piece.causal:
        return "SDPA, is_causal"
    return "SDPA, no mask" if piece.stencil is None else "SDPA, one small mask"
