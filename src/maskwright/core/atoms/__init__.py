"""The atoms: masks that are not composed of others, and `ATOMS`, which text and JSON refer to.

`where` is not in `ATOMS`: it holds a Python function, which has no text form.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maskwright.core.atoms.array import blocks, dense, where
from maskwright.core.atoms.index import keys, queries
from maskwright.core.atoms.position import (
    causal,
    chunks,
    everything,
    nothing,
    prefix,
    stride,
    window,
)
from maskwright.core.atoms.structure import graph, image, tree
from maskwright.core.atoms.tokens import documents, padding
from maskwright.core.mask_registry import outside_graphs

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from maskwright.core.expr import Mask

ATOMS: Final[Mapping[str, Callable[..., Mask]]] = {
    atom.__name__: atom
    for atom in (
        everything,
        nothing,
        causal,
        window,
        padding,
        documents,
        prefix,
        chunks,
        stride,
        keys,
        queries,
        tree,
        graph,
        image,
        blocks,
        dense,
    )
}

for _atom in (*ATOMS.values(), where):
    outside_graphs(_atom)  # it reads its arguments, often arrays, before it constructs a mask

__all__ = [
    "ATOMS",
    "blocks",
    "causal",
    "chunks",
    "dense",
    "documents",
    "everything",
    "graph",
    "image",
    "keys",
    "nothing",
    "padding",
    "prefix",
    "queries",
    "stride",
    "tree",
    "where",
    "window",
]
