"""The definition of every mask, one cell at a time: does this query attend to this key?

Slow and independent: nothing here uses spans, and no other module imports this one; tests compare
everything fast with it. Positions are absolute. `frame` is needed only by atoms whose data is
indexed by the frame's rows and columns.
"""

from __future__ import annotations

from functools import singledispatch
from typing import TYPE_CHECKING, Any

from maskwright.core.atoms.array import Blocks, Dense, Where
from maskwright.core.atoms.index import IndexSet, Keys, Queries
from maskwright.core.atoms.position import Chunks, Everything, Nothing, Prefix, Stride, Window
from maskwright.core.atoms.structure import Graph, Image, Tree
from maskwright.core.atoms.tokens import Documents, Padding
from maskwright.core.operators import And, Not, Or, PerAxis, Transpose

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from maskwright.core.expr import Mask
    from maskwright.core.frame import Frame

    Rule = Callable[[int, int, int, int], bool]


def truth(mask: Mask, frame: Frame) -> list[list[list[list[bool]]]]:
    """All cells of the frame, (batch, heads, query, key), as nested lists.

    >>> import maskwright as mw
    >>> truth(mw.causal(), mw.causal().on(2).frame)
    [[[[True, False], [True, True]]]]
    """
    visible = rule(mask, frame)
    return [
        [
            [
                [visible(b, h, q, k) for k in range(frame.k_start, frame.k_stop)]
                for q in range(frame.q_start, frame.q_stop)
            ]
            for h in range(frame.heads)
        ]
        for b in range(frame.batch)
    ]


@singledispatch
def rule(mask: Mask, frame: Frame) -> Rule:
    """The function `visible(b, h, q, k)` of a mask, with q and k as positions."""
    raise TypeError(f"{type(mask).__name__} has no rule")


@rule.register(And)
def _(mask: And, frame: Frame) -> Rule:
    rules = [rule(term, frame) for term in mask.terms]
    return lambda b, h, q, k: all(may(b, h, q, k) for may in rules)


@rule.register(Or)
def _(mask: Or, frame: Frame) -> Rule:
    rules = [rule(term, frame) for term in mask.terms]
    return lambda b, h, q, k: any(may(b, h, q, k) for may in rules)


@rule.register(Not)
def _(mask: Not, frame: Frame) -> Rule:
    may = rule(mask.term, frame)
    return lambda b, h, q, k: not may(b, h, q, k)


@rule.register(Transpose)
def _(mask: Transpose, frame: Frame) -> Rule:
    may = rule(mask.term, frame.transposed)
    return lambda b, h, q, k: may(b, h, k, q)


@rule.register(PerAxis)
def _(mask: PerAxis, frame: Frame) -> Rule:
    rules = [rule(member, frame) for member in mask.masks]
    if mask.axis == "head":
        return lambda b, h, q, k: _select_row(rules, h)(b, h, q, k)
    return lambda b, h, q, k: _select_row(rules, b)(b, h, q, k)


@rule.register(Everything)
def _(mask: Everything, frame: Frame) -> Rule:
    return lambda b, h, q, k: True


@rule.register(Nothing)
def _(mask: Nothing, frame: Frame) -> Rule:
    return lambda b, h, q, k: False


@rule.register(Window)
def _(mask: Window, frame: Frame) -> Rule:
    def may(b: int, h: int, q: int, k: int) -> bool:
        recent = mask.back is None or k >= q - mask.back
        not_ahead = mask.ahead is None or k <= q + mask.ahead
        return recent and not_ahead

    return may


@rule.register(Prefix)
def _(mask: Prefix, frame: Frame) -> Rule:
    lengths = mask.lengths.data.tolist()
    return lambda b, h, q, k: 0 <= k < _select_row(lengths, b)


@rule.register(Chunks)
def _(mask: Chunks, frame: Frame) -> Rule:
    return lambda b, h, q, k: q // mask.size == k // mask.size


@rule.register(Stride)
def _(mask: Stride, frame: Frame) -> Rule:
    return lambda b, h, q, k: (q - k) % mask.every == mask.phase


@rule.register(Keys)
def _(mask: Keys, frame: Frame) -> Rule:
    selected = _selected(mask.where)
    return lambda b, h, q, k: k in _select_row(selected, b)


@rule.register(Queries)
def _(mask: Queries, frame: Frame) -> Rule:
    selected = _selected(mask.where)
    return lambda b, h, q, k: q in _select_row(selected, b)


@rule.register(Padding)
def _(mask: Padding, frame: Frame) -> Rule:
    if mask.lengths is not None:
        lengths = mask.lengths.data.tolist()
        return lambda b, h, q, k: 0 <= k < _select_row(lengths, b)
    assert mask.keep is not None
    keep = mask.keep.data.tolist()
    return lambda b, h, q, k: bool(_select_row(keep, b)[k])


@rule.register(Documents)
def _(mask: Documents, frame: Frame) -> Rule:
    if mask.ids is not None:
        ids = mask.ids.data.tolist()
    else:
        tokens = max(frame.k_stop, frame.q_stop)
        ids = []
        for lengths in mask.lengths or ():
            row = [number for number, length in enumerate(lengths) for _ in range(length)]
            ids.append(row + [-1] * (tokens - len(row)))

    def may(b: int, h: int, q: int, k: int) -> bool:
        document = _select_row(ids, b)
        return bool(document[q] == document[k] and document[k] != -1)

    return may


@rule.register(Tree)
def _(mask: Tree, frame: Frame) -> Rule:
    parents = mask.parents.data.tolist()

    def may(b: int, h: int, q: int, k: int) -> bool:
        place = q
        while place != -1:
            if place == k:
                return True
            place = _select_row(parents, b)[place]
        return False

    return may


@rule.register(Graph)
def _(mask: Graph, frame: Frame) -> Rule:
    edges = {(q, k) for q, k in mask.edges.data.tolist()}

    def may(b: int, h: int, q: int, k: int) -> bool:
        if q == k and mask.loops:
            return True
        return (q, k) in edges or (not mask.directed and (k, q) in edges)

    return may


@rule.register(Image)
def _(mask: Image, frame: Frame) -> Rule:
    def near(mine: int, theirs: int, size: int) -> bool:
        if mask.border == "shift":
            side = min(2 * mask.radius + 1, size)
            first = min(max(mine - mask.radius, 0), size - side)
            return first <= theirs < first + side
        return abs(mine - theirs) <= mask.radius

    def may(b: int, h: int, q: int, k: int) -> bool:
        (y, x), (v, u) = divmod(q, mask.width), divmod(k, mask.width)
        earlier = k <= q or not mask.raster
        return earlier and near(y, v, mask.height) and near(x, u, mask.width)

    return may


@rule.register(Dense)
def _(mask: Dense, frame: Frame) -> Rule:
    array = mask.array.data.tolist()

    def may(b: int, h: int, q: int, k: int) -> bool:
        rows = _select_row(_select_row(array, b), h)
        return bool(_select_row(_select_row(rows, q - frame.q_start), k - frame.k_start))

    return may


@rule.register(Blocks)
def _(mask: Blocks, frame: Frame) -> Rule:
    blocks = mask.map.data.tolist()

    def may(b: int, h: int, q: int, k: int) -> bool:
        line = (q - frame.q_start) // mask.q_size
        return bool(
            _select_row(_select_row(blocks, b), h)[line][(k - frame.k_start) // mask.kv_size]
        )

    return may


@rule.register(Where)
def _(mask: Where, frame: Frame) -> Rule:
    return lambda b, h, q, k: bool(mask.fn(b, h, q, k))


def _select_row(rows: Sequence[Any], index: int) -> Any:
    """The data of one batch row or head; data with one row is shared by all."""
    return rows[0] if len(rows) == 1 else rows[index]


def _selected(where: IndexSet) -> list[set[int]]:
    if where.runs is not None:
        runs = where.runs.data.tolist()
        return [{position for start, stop in runs for position in range(start, stop)}]
    assert where.flags is not None
    return [{p for p, on in enumerate(row) if on} for row in where.flags.data.tolist()]
