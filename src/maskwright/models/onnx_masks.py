"""A mask as ONNX operators over positions, so that one graph knows it at every length.

What chooses by position alone can be said: everything, nothing, causal, window, prefix, chunks,
stride, keys and queries by position, and all that is made of them. What holds data of one length
can't, and is refused by name.
"""

from __future__ import annotations

from functools import reduce, singledispatch
from typing import TYPE_CHECKING, Final

import numpy as np

from maskwright.core.atoms.index import Keys, Queries
from maskwright.core.atoms.position import Chunks, Everything, Nothing, Prefix, Stride, Window
from maskwright.core.expr import And, Not, Or, PerAxis, Transpose, brief
from maskwright.errors import Unsupported
from maskwright.models.onnx_graph import Graph

if TYPE_CHECKING:
    from maskwright.core.expr import Mask

FARTHEST: Final = 2**24  # a table of positions has a byte for each before the last


def check_sayable(mask: Mask) -> None:
    """Refuse a mask that no graph can know at every length.

    >>> import maskwright as mw
    >>> from maskwright.models.onnx_masks import check_sayable
    >>> check_sayable(mw.causal() & mw.tree([-1, 0, 0]))
    Traceback (most recent call last):
    maskwright.errors.Unsupported: onnx can say what is chosen by position at every length, but not \
tree(...). Fix the length by tokens=....
    """
    seen(mask, Graph(), "q", "k")  # written on a sheet that is thrown away


@singledispatch
def seen(mask: Mask, graph: Graph, q: str, k: str) -> str:
    """Which cells the mask allows: (B or 1, H or 1, T or 1, S or 1) of bool, to be broadcast.

    `q` names the queries' positions, (1, 1, T, 1), and `k` the keys', (1, 1, 1, S); all are 0 or
    more.

    >>> import maskwright as mw
    >>> from maskwright.models.onnx_graph import Graph
    >>> from maskwright.models.onnx_masks import seen
    >>> graph = Graph()
    >>> seen(mw.causal(), graph, "q", "k")
    'LessOrEqual_0'
    """
    raise Unsupported(
        f"onnx can say what is chosen by position at every length, but not {brief(mask)}. "
        "Fix the length by tokens=....",
        target="onnx",
        term=repr(mask),
    )


@seen.register(And)
def _(mask: And, graph: Graph, q: str, k: str) -> str:
    terms = [seen(term, graph, q, k) for term in mask.terms]
    return reduce(lambda one, other: graph.op("And", one, other), terms)


@seen.register(Or)
def _(mask: Or, graph: Graph, q: str, k: str) -> str:
    terms = [seen(term, graph, q, k) for term in mask.terms]
    return reduce(lambda one, other: graph.op("Or", one, other), terms)


@seen.register(Not)
def _(mask: Not, graph: Graph, q: str, k: str) -> str:
    return graph.op("Not", seen(mask.term, graph, q, k))


@seen.register(Transpose)
def _(mask: Transpose, graph: Graph, q: str, k: str) -> str:
    return seen(mask.term, graph, k, q)  # the shapes keep their axes, only the roles change


@seen.register(PerAxis)
def _(mask: PerAxis, graph: Graph, q: str, k: str) -> str:
    members = [seen(member, graph, q, k) for member in mask.masks]
    if len(members) == 1:
        return members[0]
    shape = (1, -1, 1, 1) if mask.axis == "head" else (-1, 1, 1, 1)
    own = np.eye(len(members), dtype=np.bool_)  # of member n only its own head or row counts
    parts = [graph.op("And", x, own[n].reshape(shape)) for n, x in enumerate(members)]
    return reduce(lambda one, other: graph.op("Or", one, other), parts)


@seen.register(Everything)
def _(mask: Everything, graph: Graph, q: str, k: str) -> str:
    return graph.constant(np.ones((1, 1, 1, 1), np.bool_))


@seen.register(Nothing)
def _(mask: Nothing, graph: Graph, q: str, k: str) -> str:
    return graph.constant(np.zeros((1, 1, 1, 1), np.bool_))


@seen.register(Window)
def _(mask: Window, graph: Graph, q: str, k: str) -> str:
    ends = []
    if mask.back is not None:
        oldest = graph.op("Sub", q, mask.back) if mask.back else q
        ends.append(graph.op("GreaterOrEqual", k, oldest))
    if mask.ahead is not None:
        newest = graph.op("Add", q, mask.ahead) if mask.ahead else q
        ends.append(graph.op("LessOrEqual", k, newest))
    return reduce(lambda one, other: graph.op("And", one, other), ends)


@seen.register(Prefix)
def _(mask: Prefix, graph: Graph, q: str, k: str) -> str:
    return graph.op("Less", k, mask.lengths.data.reshape(-1, 1, 1, 1))


@seen.register(Chunks)
def _(mask: Chunks, graph: Graph, q: str, k: str) -> str:
    return graph.op("Equal", graph.op("Div", q, mask.size), graph.op("Div", k, mask.size))


@seen.register(Stride)
def _(mask: Stride, graph: Graph, q: str, k: str) -> str:
    left = graph.op("Mod", graph.op("Sub", q, k), mask.every)  # of the divisor's sign, as Python's
    return graph.op("Equal", left, mask.phase)


@seen.register(Keys)
def _(mask: Keys, graph: Graph, q: str, k: str) -> str:
    return _among(mask, graph, k)


@seen.register(Queries)
def _(mask: Queries, graph: Graph, q: str, k: str) -> str:
    return _among(mask, graph, q)


def _among(mask: Keys | Queries, graph: Graph, at: str) -> str:
    """Is a position one of those chosen? A table knows, and its last entry is for all beyond it."""
    runs = mask.where.runs
    if runs is None or runs.data.max(initial=0) > FARTHEST:
        raise Unsupported(
            f"onnx can say positions below {FARTHEST} at every length, but not {brief(mask)} as given. "
            "Give such positions, or fix the length by tokens=....",
            target="onnx",
            term=repr(mask),
        )
    beyond = int(runs.data.max(initial=0))
    table = np.zeros(beyond + 1, np.bool_)
    table[mask.where.positions()] = True
    return graph.op("Gather", table, graph.op("Min", at, beyond))
