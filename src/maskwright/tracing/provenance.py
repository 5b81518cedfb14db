"""Provenance of tensors: which storage was computed from which, element by element.

    queries × keys  →  scale, mask, …  →  softmax  →  dropout, casts, …  →  weights × values

Tensors are identified by their storage, so that views need no special case. For each new storage
a `Node` records its inputs and which of its elements were computed from which of theirs. Where a
matmul multiplies weights that come from a softmax, their elements are mapped back to the cells of
that softmax, and from there to the matmul of queries and keys.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from maskwright._torch_state import is_functorch_wrapped
from maskwright.tracing.softmax import (
    AppliedMask,
    Matmul,
    Softmax,
    WeightOrigin,
    masked_cells,
    match_attention,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from maskwright.tracing.softmax import ManualAttention

Layout = tuple[tuple[int, ...], tuple[int, ...], int]  # size, stride and storage offset
Kind = Literal["matmul", "softmax", "derived", "source"]

MATMULS: Final = {"mm": 0, "bmm": 0, "mv": 0, "addmm": 1, "baddbmm": 1, "addmv": 1}
SOFTMAXES: Final = {"_softmax", "_safe_softmax"}
EXPONENTIALS: Final = {"exp", "exp2"}  # of a softmax that is normalized by another operation
SAME_SHAPE: Final = {
    *("_fused_rms_norm", "_to_copy", "clone", "copy", "native_layer_norm", "tril", "triu"),
}
ELEMENTWISE: Final = SAME_SHAPE | {"index_copy", "index_put", "scatter", "slice_scatter"}
MAX_PATH: Final = 64  # operations between a matmul and a softmax


# ── nodes ─────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Link:
    """Elements of a storage, each computed from one element of the parent's storage."""

    parent: Node
    parent_layout: Layout
    layout: Layout


@dataclass(eq=False)
class Node:
    """What is known about a storage."""

    kind: Kind  # "source" has no links
    length: int  # in elements
    layout: Layout  # of the tensor that the storage was created for
    origins: frozenset[object]  # model inputs that it was computed from
    links: list[Link] = field(default_factory=list)
    masks: list[AppliedMask] = field(default_factory=list)
    matmul: Matmul | None = None
    softmax: Softmax | None = None
    dropped: torch.Tensor | None = None  # elements that dropout zeroed, in `layout`
    learned: bool = False  # computed from parameters alone
    active: bool = False  # computed from a matmul or a softmax, which a mask is not


Path = tuple[Node, list[tuple[Node, Link]]]  # the first node, and the links from there


def find_path(node: Node, kind: Kind) -> Path | None:
    """The shortest path to `node` from an ancestor of this kind."""
    queue: deque[tuple[Node, list[tuple[Node, Link]]]] = deque([(node, [])])
    visited = {node}
    while queue:
        current, path = queue.popleft()
        if current.kind == kind:
            return current, path[::-1]
        if current.kind != "derived" or len(path) >= MAX_PATH:
            continue
        for link in current.links:
            if link.parent not in visited:
                visited.add(link.parent)
                queue.append((link.parent, [*path, (current, link)]))
    return None


def masks_on(path: Path) -> list[AppliedMask]:
    """The masks that were applied along a path, in order."""
    root, links = path
    return [*root.masks, *(mask for node, _ in links for mask in node.masks)]


def map_to_root(path: Path) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns, for each element of the last storage, the element of the root's tensor it is from.

    The first result holds flat indices into the root's tensor, -1 where there is none; the second
    is True for the elements of the root's tensor that dropout zeroed on the path.
    """
    root, links = path
    count = math.prod(root.layout[0])
    dropped = torch.zeros(count, dtype=torch.bool, device="cpu")
    index = torch.full((root.length,), -1, device="cpu")
    index.as_strided(*root.layout).copy_(torch.arange(count, device="cpu").view(root.layout[0]))
    for node, link in links:
        derived = torch.full((node.length,), -1, device="cpu")
        derived.as_strided(*link.layout).copy_(index.as_strided(*link.parent_layout))
        index = derived
        if node.dropped is not None:
            zeroed = index.as_strided(*node.layout)[node.dropped.cpu()]
            dropped[zeroed[zeroed >= 0]] = True
    return index, dropped


def is_plain(x: Any) -> bool:
    """Whether it is an ordinary strided tensor with data."""
    return (
        type(x) in (torch.Tensor, torch.nn.Parameter)
        and x.layout == torch.strided
        and not x.is_nested
        and x.device.type != "meta"
        and not is_functorch_wrapped(x)
    )


def _layout(x: torch.Tensor) -> Layout:
    return tuple(x.shape), tuple(x.stride()), int(x.storage_offset())


def _link(parent: Node, x: torch.Tensor, out: torch.Tensor) -> Link:
    """Links each element of `out` to the same element of `x`, broadcast."""
    return Link(parent, _layout(x.expand(out.shape)), _layout(out))


# ── the graph ─────────────────────────────────────────────────────────────────────────────────


class Provenance:
    """The nodes of all live storages. `record` adds the result of an operation."""

    def __init__(self) -> None:
        self._nodes: dict[int, tuple[StorageWeakRef, Node]] = {}
        self._parameters: set[int] = set()

    def add_parameters(self, parameters: Any) -> None:
        """Marks tensors as parameters of the model."""
        for x in parameters:
            if is_plain(x):
                self._parameters.add(x.untyped_storage()._cdata)

    def origins(self, x: Any) -> frozenset[object] | None:
        """The inputs that a tensor was computed from, as opaque objects; None if not known."""
        node = self._node(x) if is_plain(x) else None
        return None if node is None else node.origins

    def record(self, func: Any, args: tuple[Any, ...], out: Any) -> ManualAttention | None:
        """Records an operation that has run. Returns the attention that it completes, if any."""
        name = func.overloadpacket.__name__
        base = name.rstrip("_") or name
        first = out[0] if isinstance(out, (tuple, list)) and out else out
        if not is_plain(first) or not (first.is_floating_point() or first.is_complex()):
            return None
        if base in MATMULS:
            return self._matmul(base, args, first)
        if base in SOFTMAXES:
            self._softmax(args[0], int(args[1]), first, normalized=True)
        elif base in EXPONENTIALS and self._is_active(args[0]) and self._is_score(args[0]):
            self._softmax(args[0], -1, first, normalized=False)
        elif base == "cat":
            self._cat(args, first)
        elif base == "constant_pad_nd":
            self._pad(args[0], args[1], first)
        elif torch.Tag.pointwise in func.tags or func._schema.is_mutable or base in ELEMENTWISE:
            self._pointwise(base, args, first)
        elif not base.endswith("_like") and not base.startswith("new_"):
            self._other(args, first)
        return None

    def record_dropout(self, x: Any, out: Any) -> None:
        """Records a dropout, whose zeros are not a mask."""
        node = self._node(x) if is_plain(x) else None
        if node is None or not is_plain(out):
            return
        dropped = (out.detach() == 0) & (x.detach() != 0) if out is not x else None
        self._set(out, self._new("derived", out, node.origins, [_link(node, x, out)], dropped))

    # ── nodes of storages ─────────────────────────────────────────────────────────────────────

    def _node(self, x: torch.Tensor) -> Node | None:
        # While a weak reference is held, no other storage gets the same address.
        entry = self._nodes.get(x.untyped_storage()._cdata)
        return None if entry is None or entry[0].expired() else entry[1]

    def _known(self, tensors: Iterable[torch.Tensor]) -> list[tuple[torch.Tensor, Node]]:
        """The tensors that have a node, with it."""
        return [(x, node) for x in tensors if (node := self._node(x)) is not None]

    def _set(self, x: torch.Tensor, node: Node) -> None:
        storage = x.untyped_storage()
        self._nodes[storage._cdata] = (StorageWeakRef(storage), node)

    def _new(
        self,
        kind: Kind,
        x: torch.Tensor,
        origins: frozenset[object] | None,
        links: list[Link] | None = None,
        dropped: torch.Tensor | None = None,
    ) -> Node:
        """A node for the storage of `x`, an origin of its own if `origins` is None."""
        length = x.untyped_storage().nbytes() // max(x.element_size(), 1)
        own = frozenset((object(),)) if origins is None else origins
        active = kind in ("matmul", "softmax") or any(link.parent.active for link in links or ())
        return Node(kind, length, _layout(x), own, links or [], dropped=dropped, active=active)

    def _origins(self, x: torch.Tensor) -> frozenset[object]:
        """The origins of a tensor. One that is new and not a parameter becomes a source."""
        node = self._node(x)
        if node is None and not self._is_learned(x):
            node = self._new("source", x, None)
            self._set(x, node)
        return frozenset() if node is None else node.origins

    def _is_active(self, x: Any) -> bool:
        node = self._node(x) if is_plain(x) else None
        return node is not None and node.active

    def _is_score(self, x: torch.Tensor) -> bool:
        """Whether it comes from a matmul of two activations, as attention scores do."""
        node = self._node(x)
        path = None if node is None else find_path(node, "matmul")
        matmul = None if path is None else path[0].matmul
        return matmul is not None and not any(matmul.learned)

    def _is_learned(self, x: torch.Tensor) -> bool:
        node = self._node(x)
        return x.untyped_storage()._cdata in self._parameters or (node is not None and node.learned)

    # ── operations ────────────────────────────────────────────────────────────────────────────

    def _matmul(
        self, base: str, args: tuple[Any, ...], out: torch.Tensor
    ) -> ManualAttention | None:
        skip = MATMULS[base]
        a, b = args[skip : skip + 2]
        if not is_plain(a) or not is_plain(b):
            return None
        learned = self._is_learned(a), self._is_learned(b)
        origins = self._origins(a), self._origins(b)
        b = b.unsqueeze(-1) if b.dim() == 1 else b
        batched = out.unsqueeze(-1) if base in ("mv", "addmv") else out
        a, b, batched = (x if x.dim() == 3 else x.unsqueeze(0) for x in (a, b, batched))
        found = self._match(a, b, batched) or self._match(b.mT, a.mT, batched.mT)
        # A projection has the origins of its input; the product of two activations is a new one.
        is_projection = learned[0] != learned[1]
        node = self._new("matmul", out, origins[1 if learned[0] else 0] if is_projection else None)
        node.learned = all(learned)
        batch, rows, columns = batched.shape
        node.matmul = Matmul(batch, rows, columns, a.shape[-1], learned, origins)
        if skip and is_plain(args[0]) and args[0].dim() > 1 and not self._is_active(args[0]):
            node.masks.append(AppliedMask("add", "added", args[0], tuple(out.shape)))
        self._set(out, node)
        return found

    def _match(self, w: torch.Tensor, v: torch.Tensor, out: torch.Tensor) -> ManualAttention | None:
        """The attention that `w @ v` completes, if `w` (batch, rows, keys) is from a softmax."""
        node = self._node(w)
        path = None if node is None else find_path(node, "softmax")
        if path is None or self._is_learned(v) or not w.numel():
            return None
        soft = path[0].softmax
        assert soft is not None
        if soft.used or soft.is_router:
            return None
        index, dropped = map_to_root(path)
        origin = WeightOrigin(index.as_strided(*_layout(w)), dropped, masks_on(path))
        return match_attention(soft, origin, w, v, out)

    def _softmax(self, x: Any, dim: int, out: torch.Tensor, *, normalized: bool) -> None:
        self._nodes = {key: entry for key, entry in self._nodes.items() if not entry[0].expired()}
        if not is_plain(x) or not x.dim():
            return
        dim %= x.dim()
        node, matmul, keys_first = self._node(x), None, False
        masks: list[AppliedMask] = []
        path = None if node is None else find_path(node, "matmul")
        if path is not None:
            matmul, masks = path[0].matmul, masks_on(path)
            assert matmul is not None
            rows = map_to_root(path)[0].as_strided(*_layout(x)).movedim(dim, -1)
            row = rows.reshape(-1, rows.shape[-1])[:1].flatten()
            columns = row[row >= 0] % max(matmul.columns, 1)
            keys_first = columns.numel() > 1 and bool((columns == columns[0]).all())
        weights, scores = out.detach().clone(), x.detach()
        if x.untyped_storage()._cdata == out.untyped_storage()._cdata:  # in place: overwritten
            scores = torch.where(weights == 0, -torch.inf, 0.0)
        masked = masked_cells(scores, weights, masks)
        root = self._new("softmax", out, None)
        shape = tuple(out.shape)
        root.softmax = Softmax(shape, dim, weights, masked, masks, matmul, keys_first, normalized)
        self._set(out, root)

    def _pointwise(self, base: str, args: tuple[Any, ...], out: torch.Tensor) -> None:
        """Each element of the result is computed from the same element of the inputs."""
        tensors = [x for x in args if is_plain(x) and _is_numeric(x)]
        storage = out.untyped_storage()._cdata
        if is_plain(args[0]) and args[0].untyped_storage()._cdata == storage:
            self._in_place(base, args, out)
            return
        parents = self._known(tensors)
        learned = bool(tensors) and all(self._is_learned(x) for x in tensors)
        if not parents and not learned:
            if base not in SAME_SHAPE or not tensors:
                return
            self._origins(tensors[0])
            parents = self._known(tensors[:1])
        linked = [] if out.is_complex() else parents
        links = [_link(node, x, out) for x, node in linked if _broadcasts(x, out)]
        node = self._new("derived", out, _merge_origins(base, [n for _, n in parents]), links)
        node.learned = learned
        node.masks += self._find_masks(base, args, out)
        self._set(out, node)

    def _in_place(self, base: str, args: tuple[Any, ...], out: torch.Tensor) -> None:
        """The storage keeps its node, to which a mask may be added."""
        others = self._known(x for x in args[1:] if is_plain(x) and _is_numeric(x))
        parents = [node for _, node in others]
        node = self._node(out)
        if base == "copy" and node is not None and node.length == out.numel():
            node = None  # all elements are overwritten
        if node is None:
            if parents:
                links = [_link(parent, x, out) for x, parent in others if _broadcasts(x, out)]
                self._set(out, self._new("derived", out, _merge_origins(base, parents), links))
            return
        node.masks += self._find_masks(base, args, out)
        if parents:
            node.origins = _merge_origins(base, [node, *parents]) or frozenset((object(),))
            node.active = node.active or any(parent.active for parent in parents)

    def _find_masks(
        self, base: str, args: tuple[Any, ...], out: torch.Tensor
    ) -> Iterator[AppliedMask]:
        """The masks among the arguments of an operation: tensors that no matmul precedes."""
        shape = tuple(out.shape)
        if base == "masked_fill":
            yield AppliedMask("masked_fill", "bool, True masks", args[1], shape)
        elif base == "where" and len(args) == 3:
            keeps = self._is_active(args[1])
            convention = f"bool, True {'keeps' if keeps else 'masks'}"
            yield AppliedMask("where", convention, args[0], shape, keeps)
        elif base == "index_put":
            indices = [x for x in args[1] if x is not None]
            is_mask = len(indices) == 1 and indices[0].dtype == torch.bool
            if is_mask and indices[0].shape == out.shape:
                yield AppliedMask("masked_fill", "bool, True masks", indices[0], shape)
        elif base in ("add", "sub", "mul"):
            convention = "multiplied" if base == "mul" else "added"
            for x in args[:2]:
                if is_plain(x) and x.numel() > 1 and not self._is_active(x) and _broadcasts(x, out):
                    yield AppliedMask(base, convention, x, shape)

    def _cat(self, args: tuple[Any, ...], out: torch.Tensor) -> None:
        parts = [x for x in args[0] if is_plain(x) and x.numel()]
        nodes = [node for _, node in self._known(parts)]
        if not nodes or sum(x.numel() for x in parts) != out.numel():
            return
        dim, start, links = int(args[1]) if len(args) > 1 else 0, 0, []
        for x in parts:
            node, size = self._node(x), x.shape[dim]
            if node is not None:
                links.append(_link(node, x, out.narrow(dim, start, size)))
            start += size
        origins = frozenset().union(*(node.origins for node in nodes))
        self._set(out, self._new("derived", out, origins, links))

    def _pad(self, x: Any, amounts: Any, out: torch.Tensor) -> None:
        node = self._node(x) if is_plain(x) else None
        if node is None:
            return
        inner = out
        for i in range(len(amounts) // 2):
            before, after = amounts[2 * i : 2 * i + 2]
            if before < 0 or after < 0:
                return
            inner = inner.narrow(-1 - i, before, inner.shape[-1 - i] - before - after)
        self._set(out, self._new("derived", out, node.origins, [_link(node, x, inner)]))

    def _other(self, args: tuple[Any, ...], out: torch.Tensor) -> None:
        """Any other operation: the origins are known, but not which element is from which."""
        if self._node(out) is not None:  # a view
            return
        flat = [y for x in args for y in (x if isinstance(x, (list, tuple)) else (x,))]
        tensors = [x for x in flat if is_plain(x)]
        learned = bool(tensors) and all(self._is_learned(x) for x in tensors)
        nodes = [node for _, node in self._known(tensors) if not node.learned]
        if nodes or learned:
            new = self._new("source", out, frozenset().union(*(n.origins for n in nodes)))
            new.active = any(node.active for node in nodes)
            new.learned = learned
            self._set(out, new)


def _is_numeric(x: torch.Tensor) -> bool:
    return bool(x.is_floating_point() or x.is_complex())


def _broadcasts(x: torch.Tensor, out: torch.Tensor) -> bool:
    """Whether the shape of `x` broadcasts to that of `out`."""
    shape = (1,) * (out.dim() - x.dim()) + tuple(x.shape)
    return len(shape) == out.dim() and all(
        n in (1, m) for n, m in zip(shape, out.shape, strict=True)
    )


def _merge_origins(base: str, parents: list[Node]) -> frozenset[object] | None:
    """The origins of a result. A sum of unrelated tensors, as a residual is, is a new origin."""
    if not parents:
        return None
    sets = [node.origins for node in parents]
    if base in ("add", "sub"):
        return frozenset.intersection(*sets) or None
    return frozenset.union(*sets)
