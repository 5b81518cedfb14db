"""Packed sequences: document boundaries in the wrong place, and ids that are compared wrongly."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from tests.auditing.faults import tiny
from tests.auditing.faults.registry import Case, Family

CAUSES = "documents-leak future-visible attends-across-batch too-narrow"

EDGE = Family(
    "document boundary off by one", after="cu_seqlens built by hand", checks="PC", causes=CAUSES
)


def shifted_documents(by: int) -> Any:
    """Document ids moved by one column."""

    def args(ids: Tensor, documents: Tensor) -> dict[str, Any]:
        moved = documents
        if by > 0:
            moved = torch.cat([documents[:, :1], documents[:, :-1]], 1)
        elif by < 0:
            moved = torch.cat([documents[:, 1:], documents[:, -1:]], 1)
        return tiny.document_args(ids, moved)

    return args


@EDGE.fault("the first token of a document belongs to the previous one")
def _(faulty: bool) -> Case:
    return tiny.packed_case(tiny.eager, [6, 4, 5], [8, 7], mask_args=shifted_documents(int(faulty)))


@EDGE.fault("the last token of a document belongs to the next one")
def _(faulty: bool) -> Case:
    return tiny.packed_case(tiny.sdpa, [6, 4, 5], [8, 7], mask_args=shifted_documents(-int(faulty)))


@EDGE.fault("offsets without the last: two documents are one")
def _(faulty: bool) -> Case:
    def args(ids: Tensor, documents: Tensor) -> dict[str, Any]:
        last = documents.amax(1, keepdim=True)
        merged = torch.where((documents == last) & (last > 0), documents - 1, documents)
        return tiny.document_args(ids, merged if faulty else documents)

    return tiny.packed_case(tiny.eager, [5, 4, 6], [7, 8], mask_args=args)


COMPARED = Family(
    "document ids compared wrongly", after="flex document masks", checks="PC P", causes=CAUSES
)


@COMPARED.fault("<= instead of ==")
def _(faulty: bool) -> Case:
    def args(ids: Tensor, documents: Tensor) -> dict[str, Any]:
        if not faulty:
            return tiny.document_args(ids, documents)
        same = documents[:, None, None, :] <= documents[:, None, :, None]
        return {"keep": tiny.causal(ids.shape[1]) & same & tiny.real_keys(documents + 1)}

    return tiny.packed_case(tiny.eager, [6, 4, 5], [8, 7], mask_args=args)


@COMPARED.fault("the parity of ids: every second document is one")
def _(faulty: bool) -> Case:
    def args(ids: Tensor, documents: Tensor) -> dict[str, Any]:
        return tiny.document_args(ids, documents % 2 if faulty else documents)

    return tiny.packed_case(tiny.eager, [4, 3, 5, 4], [5, 6, 5], mask_args=args)


@COMPARED.fault("ids in int8, and one layer: neighbours within distance 1", layer=1)
def _(faulty: bool) -> Case:
    def near(q: Tensor, k: Tensor, v: Tensor, documents: Tensor) -> Tensor:
        gap = (documents[:, None, :, None] - documents[:, None, None, :]).abs()
        return tiny.eager(q, k, v, tiny.causal(q.shape[2]) & (gap <= int(faulty)))

    def right(q: Tensor, k: Tensor, v: Tensor, documents: Tensor) -> Tensor:
        keep = tiny.causal(q.shape[2]) & tiny.same_document(documents)
        return tiny.eager(q, k, v, keep)

    return tiny.packed_case([right, near], [6, 5, 4], [7, 8], mask_args=tiny.document_ids)


FLAT = Family("packed rows flattened", after="varlen batches", checks="BI PC", causes=CAUSES)


def flat(faulty: bool) -> Any:
    """All rows as one sequence; document ids need an offset per row."""

    def attend(q: Tensor, k: Tensor, v: Tensor, documents: Tensor) -> Tensor:
        batch, _heads, length, _ = q.shape
        one = [x.transpose(0, 1).flatten(1, 2)[None] for x in (q, k, v)]
        offset = torch.arange(batch)[:, None] * (0 if faulty else 100)
        ids = (documents + offset).flatten()[None]
        columns = torch.arange(length).repeat(batch)
        causal = columns <= columns[:, None]
        keep = causal & (ids[:, None, :, None] == ids[:, None, None, :])
        out = tiny.eager(*one, keep)[0].unflatten(1, (batch, length))
        return out.transpose(0, 1)

    return attend


@FLAT.fault("documents of different rows have the same id")
def _(faulty: bool) -> Case:
    return tiny.packed_case(flat(faulty), [6, 4, 5], [8, 7], mask_args=tiny.document_ids)


@FLAT.fault("layer 1 only", layer=1)
def _(faulty: bool) -> Case:
    return tiny.packed_case(
        [flat(False), flat(faulty)], [6, 6], [7, 5], mask_args=tiny.document_ids
    )


RESET = Family(
    "documents found by position 0",
    after="transformers packed position_ids",
    checks="PC",
    causes=CAUSES,
)


@RESET.fault("boundaries by decreasing positions: documents of one token are missed")
def _(faulty: bool) -> Case:
    def args(ids: Tensor, documents: Tensor) -> dict[str, Any]:
        positions = tiny.document_positions(ids, documents)
        starts = F.pad(positions[:, 1:] < positions[:, :-1], (1, 0)) if faulty else positions == 0
        return tiny.document_args(ids, starts.long().cumsum(1))

    return tiny.packed_case(tiny.eager, [6, 1, 1, 5], [1, 1, 4, 7], mask_args=args)


@RESET.fault("positions continue over documents")
def _(faulty: bool) -> Case:
    positions = tiny.column_positions if faulty else tiny.document_positions
    return tiny.packed_case(tiny.eager, [6, 4, 5], [8, 7], positions=positions)
