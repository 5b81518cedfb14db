"""Attention that is written by hand, found by following numbers from a product to the next.

    queries × keys  →  scale, mask, …  →  softmax  →  dropout, casts, …  →  weights × values

Tensors are known by their storage, so that views need no care: of every fresh storage it is noted
what it was made of, and which of its places came from which. Where weights that a softmax gave are
multiplied with values, the places lead back to the softmax's cells, and from there to the product
of queries and keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from maskwright.tracing.nodes import (
    Node,
    Product,
    Softmax,
    Step,
    is_plain,
    link_to,
    origin_cells,
    path_to,
    place_of,
    steps_on,
)
from maskwright.tracing.weights import hidden_cells, weigh

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maskwright.tracing.nodes import Found, Link

PRODUCTS: Final = {"mm": 0, "bmm": 0, "mv": 0, "addmm": 1, "baddbmm": 1, "addmv": 1}
SOFTMAXES: Final = {"_softmax", "_safe_softmax"}
POWERS: Final = {"exp", "exp2"}  # a softmax whose sum is divided by elsewhere
SAME_SHAPE: Final = {
    "_fused_rms_norm",
    "_to_copy",
    "clone",
    "copy",
    "native_layer_norm",
    "tril",
    "triu",
}
WRITES: Final = {"copy", "index_copy", "index_put", "scatter", "slice_scatter"}


class Flow:
    """What is known of living storages. `see` is told of every operation."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[StorageWeakRef, Node]] = {}
        self._learned: set[int] = set()

    def learn(self, parameters: Any) -> None:
        """Take note of a model's parameters."""
        for x in parameters:
            if is_plain(x):
                self._learned.add(x.untyped_storage()._cdata)

    def origins(self, x: Any) -> frozenset[object] | None:
        """What a tensor was computed from: tokens to compare. None if that is not known."""
        node = self._node(x) if is_plain(x) else None
        return None if node is None else node.origins

    def see(self, func: Any, args: tuple[Any, ...], out: Any) -> Found | None:
        """Take note of an operation that has run; attention, if it was the last step of one."""
        name = func.overloadpacket.__name__
        base = name.rstrip("_") or name
        first = out[0] if isinstance(out, (tuple, list)) and out else out
        if not is_plain(first) or not (first.is_floating_point() or first.is_complex()):
            return None
        if base in PRODUCTS:
            return self._multiply(base, args, first)
        if base in SOFTMAXES:
            self._soften(args[0], int(args[1]), first, sums=True)
        elif base in POWERS and self._is_active(args[0]) and self._is_of_two(args[0]):
            self._soften(args[0], -1, first, sums=False)
        elif base == "cat":
            self._join(args, first)
        elif base == "constant_pad_nd":
            self._pad(args[0], args[1], first)
        elif (
            torch.Tag.pointwise in func.tags
            or func._schema.is_mutable
            or base in WRITES
            or base in SAME_SHAPE
        ):
            self._derive(base, args, first)
        elif not base.endswith("_like") and not base.startswith("new_"):
            self._pick(args, first)
        return None

    def drop_out(self, x: Any, out: Any) -> None:
        """Take note of dropout, which is no mask."""
        node = self._node(x) if is_plain(x) else None
        if node is None or not is_plain(out):
            return
        dropped = (out.detach() == 0) & (x.detach() != 0) if out is not x else None
        self._put(out, self._fresh("derived", out, node.origins, [link_to(node, x, out)], dropped))

    # ── storages ──────────────────────────────────────────────────────────────────────────────

    def _node(self, x: torch.Tensor) -> Node | None:
        # While a weak reference is held, no other storage can come to lie at the same address.
        known = self._known.get(x.untyped_storage()._cdata)
        return None if known is None or known[0].expired() else known[1]

    def _put(self, x: torch.Tensor, node: Node) -> None:
        storage = x.untyped_storage()
        self._known[storage._cdata] = (StorageWeakRef(storage), node)

    def _fresh(
        self,
        kind: str,
        x: torch.Tensor,
        origins: frozenset[object] | None,
        links: list[Link] | None = None,
        dropped: torch.Tensor | None = None,
    ) -> Node:
        length = x.untyped_storage().nbytes() // max(x.element_size(), 1)
        own = frozenset((object(),)) if origins is None else origins
        made = kind in ("product", "softmax") or any(link.parent.active for link in links or ())
        return Node(kind, length, place_of(x), own, links or [], dropped=dropped, active=made)

    def _source(self, x: torch.Tensor) -> frozenset[object]:
        """What it comes from: something of its own, if it is met for the first time."""
        node = self._node(x)
        if node is None and not self._is_learned(x):
            node = self._fresh("source", x, None)
            self._put(x, node)
        return frozenset() if node is None else node.origins

    def _is_active(self, x: Any) -> bool:
        node = self._node(x) if is_plain(x) else None
        return node is not None and node.active

    def _is_of_two(self, x: torch.Tensor) -> bool:
        """Does it come from a product of two activations, as scores do?"""
        node = self._node(x)
        path = None if node is None else path_to(node, "product")
        product = None if path is None else path[0].product
        return product is not None and not any(product.learned)

    def _is_learned(self, x: torch.Tensor) -> bool:
        node = self._node(x)
        return x.untyped_storage()._cdata in self._learned or (node is not None and node.learned)

    # ── operations ────────────────────────────────────────────────────────────────────────────

    def _multiply(self, base: str, args: tuple[Any, ...], out: torch.Tensor) -> Found | None:
        skip = PRODUCTS[base]
        a, b = args[skip : skip + 2]
        if not is_plain(a) or not is_plain(b):
            return None
        learned = self._is_learned(a), self._is_learned(b)
        origins = self._source(a), self._source(b)
        b = b.unsqueeze(-1) if b.dim() == 1 else b
        whole = out.unsqueeze(-1) if base in ("mv", "addmv") else out
        a, b, whole = (x if x.dim() == 3 else x.unsqueeze(0) for x in (a, b, whole))
        found = self._weigh(a, b, whole) or self._weigh(b.mT, a.mT, whole.mT)
        # A projection comes from what is projected; a product of two activations is something new.
        one = learned[0] != learned[1]
        node = self._fresh("product", out, origins[1 if learned[0] else 0] if one else None)
        node.learned = all(learned)
        count, rows, columns = whole.shape
        node.product = Product(count, rows, columns, a.shape[-1], learned, origins)
        if skip and is_plain(args[0]) and args[0].dim() > 1 and not self._is_active(args[0]):
            node.steps.append(Step("add", "added", args[0], tuple(out.shape)))
        self._put(out, node)
        return found

    def _soften(self, x: Any, dim: int, out: torch.Tensor, *, sums: bool) -> None:
        self._known = {key: known for key, known in self._known.items() if not known[0].expired()}
        if not is_plain(x) or not x.dim():
            return
        dim %= x.dim()
        node, product, steps, flipped = self._node(x), None, [], False
        path = None if node is None else path_to(node, "product")
        if path is not None:
            product, steps = path[0].product, steps_on(path)
            assert product is not None
            lines = origin_cells(*path)[0].as_strided(*place_of(x)).movedim(dim, -1)
            line = lines.reshape(-1, lines.shape[-1])[:1].flatten()
            columns = line[line >= 0] % max(product.columns, 1)
            flipped = columns.numel() > 1 and bool((columns == columns[0]).all())
        weights, scores = out.detach().clone(), x.detach()
        if x.untyped_storage()._cdata == out.untyped_storage()._cdata:  # in place: no longer there
            scores = torch.where(weights == 0, -torch.inf, 0.0)
        hidden = hidden_cells(scores, weights, steps)
        root = self._fresh("softmax", out, None)
        root.softmax = Softmax(
            tuple(out.shape), dim, weights, hidden, steps, product, flipped=flipped, sums=sums
        )
        self._put(out, root)

    def _derive(self, base: str, args: tuple[Any, ...], out: torch.Tensor) -> None:
        """Each place of the result is made of the same place of what came in."""
        tensors = [x for x in args if is_plain(x) and _is_number(x)]
        storage = out.untyped_storage()._cdata
        if is_plain(args[0]) and args[0].untyped_storage()._cdata == storage:
            self._write(base, args, out)
            return
        parents = [(x, node) for x in tensors if (node := self._node(x)) is not None]
        learned = bool(tensors) and all(self._is_learned(x) for x in tensors)
        if not parents and not learned:
            if base not in SAME_SHAPE or not tensors:
                return
            self._source(tensors[0])
            parents = [(x, node) for x in tensors[:1] if (node := self._node(x)) is not None]
        links = [
            link_to(node, x, out)
            for x, node in parents
            if not out.is_complex() and _spreads(x, out)
        ]
        node = self._fresh("derived", out, _origins(base, [n for _, n in parents]), links)
        node.learned = learned
        node.steps += self._masks(base, args, out)
        self._put(out, node)

    def _write(self, base: str, args: tuple[Any, ...], out: torch.Tensor) -> None:
        """In place: the storage stays what it was, and a mask may have been applied to it."""
        others = [x for x in args[1:] if is_plain(x) and _is_number(x)]
        parents = [node for x in others if (node := self._node(x)) is not None]
        node = self._node(out)
        if base == "copy" and node is not None and node.length == out.numel():
            node = None  # all that was there is written over
        if node is None:
            if parents:
                links = [
                    link_to(parent, x, out)
                    for x in others
                    if (parent := self._node(x)) is not None and _spreads(x, out)
                ]
                self._put(out, self._fresh("derived", out, _origins(base, parents), links))
            return
        node.steps += self._masks(base, args, out)
        if parents:
            node.origins = _origins(base, [node, *parents]) or frozenset((object(),))
            node.active = node.active or any(parent.active for parent in parents)

    def _masks(self, base: str, args: tuple[Any, ...], out: torch.Tensor) -> Iterator[Step]:
        """The masks among the arguments of an operation: tensors that no product is behind."""
        shape = tuple(out.shape)
        if base == "masked_fill":
            yield Step("masked_fill", "bool, True drops", args[1], shape)
        elif base == "where" and len(args) == 3:
            keeps = self._is_active(args[1])
            text = f"bool, True {'keeps' if keeps else 'drops'}"
            yield Step("where", text, args[0], shape, keeps)
        elif base == "index_put":
            chosen = [x for x in args[1] if x is not None]
            if len(chosen) == 1 and chosen[0].dtype == torch.bool and chosen[0].shape == out.shape:
                yield Step("masked_fill", "bool, True drops", chosen[0], shape)
        elif base in ("add", "sub", "mul"):
            for x in args[:2]:
                if is_plain(x) and x.numel() > 1 and not self._is_active(x) and _spreads(x, out):
                    yield Step(base, "multiplied" if base == "mul" else "added", x, shape)

    def _join(self, args: tuple[Any, ...], out: torch.Tensor) -> None:
        parts = [x for x in args[0] if is_plain(x) and x.numel()]
        known = [node for x in parts if (node := self._node(x)) is not None]
        if not known or sum(x.numel() for x in parts) != out.numel():
            return
        dim, start, links = int(args[1]) if len(args) > 1 else 0, 0, []
        for x in parts:
            node, size = self._node(x), x.shape[dim]
            if node is not None:
                links.append(link_to(node, x, out.narrow(dim, start, size)))
            start += size
        origins = frozenset().union(*(node.origins for node in known))
        self._put(out, self._fresh("derived", out, origins, links))

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
        self._put(out, self._fresh("derived", out, node.origins, [link_to(node, x, inner)]))

    def _pick(self, args: tuple[Any, ...], out: torch.Tensor) -> None:
        """Anything else: what it comes from is known, but not which place from which."""
        if self._node(out) is not None:  # a view
            return
        flat = [y for x in args for y in (x if isinstance(x, (list, tuple)) else (x,))]
        given = [x for x in flat if is_plain(x)]
        learned = bool(given) and all(self._is_learned(x) for x in given)
        known = [node for x in given if (node := self._node(x)) is not None and not node.learned]
        if known or learned:
            picked = self._fresh("source", out, frozenset().union(*(n.origins for n in known)))
            picked.active = any(node.active for node in known)
            picked.learned = learned
            self._put(out, picked)

    def _weigh(self, w: torch.Tensor, v: torch.Tensor, out: torch.Tensor) -> Found | None:
        """Attention, if the rows of w (count, rows, keys) are what a softmax gave."""
        node = self._node(w)
        path = None if node is None else path_to(node, "softmax")
        if path is None or self._is_learned(v) or not w.numel():
            return None
        return weigh(path, w, v, out)


def _is_number(x: torch.Tensor) -> bool:
    return bool(x.is_floating_point() or x.is_complex())


def _spreads(x: torch.Tensor, out: torch.Tensor) -> bool:
    """Does it broadcast to the result?"""
    wide = (1,) * (out.dim() - x.dim()) + tuple(x.shape)
    return len(wide) == out.dim() and all(n in (1, m) for n, m in zip(wide, out.shape, strict=True))


def _origins(base: str, parents: list[Node]) -> frozenset[object] | None:
    """What a result comes from. A sum of two strangers, such as a residual, is something new."""
    if not parents:
        return None
    sets = [node.origins for node in parents]
    if base in ("add", "sub"):
        return frozenset.intersection(*sets) or None
    return frozenset.union(*sets)
