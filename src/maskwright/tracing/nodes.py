"""What is known of a storage: what it was made of, and which of its places came from which.

The places of one storage lead back to those of another, step by step, to the product of queries
and keys or to the softmax that they began with.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any, Final

import torch

from maskwright.tracing.kernels import drops

Place = tuple[tuple[int, ...], tuple[int, ...], int]  # size, stride and offset in a storage

LONGEST_PATH: Final = 64  # operations between a product and a softmax


@dataclass(frozen=True)
class Step:
    """A mask that was met on the way: how it was applied, and to numbers of which shape."""

    name: str
    text: str
    mask: Any
    shape: tuple[int, ...]
    keeps: bool = False  # whether true keeps, where it is of truth values

    def drops(self) -> torch.Tensor | None:
        """Where it is meant to hide, in `shape`; None where that can't be said."""
        if self.name == "mul":
            return None
        mask = self.mask.detach()
        if mask.dtype != torch.bool:
            mask = mask.to(torch.float64)
            mask = drops(-mask if self.name == "sub" else mask)
        return (~mask if self.keeps else mask).expand(self.shape)


@dataclass(frozen=True)
class Product:
    """A product of matrices: how many, rows, columns and what is summed over; and its operands."""

    count: int
    rows: int
    columns: int
    inner: int
    learned: tuple[bool, bool]  # whether an operand is a parameter
    origins: tuple[frozenset[object], frozenset[object]]


@dataclass(eq=False)
class Softmax:
    """What a softmax was given and gave, in its own shape."""

    shape: tuple[int, ...]
    dim: int
    weights: torch.Tensor
    hidden: torch.Tensor  # true where the mask left no weight
    steps: list[Step]
    product: Product | None
    flipped: bool  # whether keys are the product's first operand
    sums: bool  # whether it is a whole one, whose rows sum to one
    used: bool = False

    @property
    def routes(self) -> bool:
        """Whether what is chosen among are parameters, as in a router, and not tokens."""
        return self.product is not None and self.product.learned[0 if self.flipped else 1]


@dataclass(frozen=True)
class Link:
    """Places of one storage that were made, one by one, of places of another."""

    parent: Node
    view: Place
    place: Place


@dataclass(eq=False)
class Node:
    """What is known of a storage."""

    kind: str  # "product", "softmax", "derived", or "source", which leads nowhere
    length: int
    place: Place
    origins: frozenset[object]
    links: list[Link] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    product: Product | None = None
    softmax: Softmax | None = None
    dropped: torch.Tensor | None = None  # what dropout took away, in `place`
    learned: bool = False
    active: bool = False  # whether a product or a softmax came before it: a mask is none of these


@dataclass(frozen=True)
class Found:
    """Attention by hand: its cells in (…, queries, keys), and what is known about it."""

    cells: torch.Tensor
    values: torch.Tensor  # (count, keys, dim)
    out: torch.Tensor  # (count, rows, dim)
    product: Product | None
    flipped: bool
    after_softmax: bool
    steps: list[Step]
    convention: str


def is_plain(x: Any) -> bool:
    """Is it an ordinary tensor with numbers in it?"""
    return (
        type(x) in (torch.Tensor, torch.nn.Parameter)
        and x.layout == torch.strided
        and not x.is_nested
        and x.device.type != "meta"
        and not torch._C._functorch.is_functorch_wrapped_tensor(x)
    )


def place_of(x: torch.Tensor) -> Place:
    """Where a tensor's numbers lie in its storage."""
    return tuple(x.shape), tuple(x.stride()), int(x.storage_offset())


def link_to(parent: Node, x: torch.Tensor, out: torch.Tensor) -> Link:
    """The places of `out`, each made of the same place of `x`."""
    return Link(parent, place_of(x.expand(out.shape)), place_of(out))


Path = tuple[Node, list[tuple[Node, Link]]]  # where it begins, and the steps from there


def path_to(node: Node, kind: str) -> Path | None:
    """The shortest way from the nearest node of a kind to this one."""
    queue: deque[tuple[Node, list[tuple[Node, Link]]]] = deque([(node, [])])
    met = {node}
    while queue:
        here, way = queue.popleft()
        if here.kind == kind:
            return here, way[::-1]
        if here.kind != "derived" or len(way) >= LONGEST_PATH:
            continue
        for link in here.links:
            if link.parent not in met:
                met.add(link.parent)
                queue.append((link.parent, [*way, (here, link)]))
    return None


def steps_on(path: Path) -> list[Step]:
    """The masks that were met on a path, in order."""
    root, way = path
    return [*root.steps, *(step for node, _ in way for step in node.steps)]


def origin_cells(root: Node, way: list[tuple[Node, Link]]) -> tuple[torch.Tensor, torch.Tensor]:
    """For each place of the last storage the cell of the root's that it came from, or -1.

    And the cells that dropout took away.
    """
    count = math.prod(root.place[0])
    dropped = torch.zeros(count, dtype=torch.bool, device="cpu")
    index = torch.full((root.length,), -1, device="cpu")
    index.as_strided(*root.place).copy_(torch.arange(count, device="cpu").view(root.place[0]))
    for node, link in way:
        after = torch.full((node.length,), -1, device="cpu")
        after.as_strided(*link.place).copy_(index.as_strided(*link.view))
        index = after
        if node.dropped is not None:
            lost = index.as_strided(*node.place)[node.dropped.cpu()]
            dropped[lost[lost >= 0]] = True
    return index, dropped
