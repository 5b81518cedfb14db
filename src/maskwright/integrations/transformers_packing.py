"""Packed sequences in transformers models: documents, as the arguments of an attention layer give them.

FlashAttention in transformers reads them from `cu_seq_lens_q` and `cu_seq_lens_k`, or from `position_ids`
that restart. The mask functions of transformers read them from `position_ids` too, but only without a KV
cache, and some models do not pass positions to their mask functions. Therefore each layer intersects its
mask with the documents here.

A document begins at each token whose position is not above that of the token before it. Padding tokens are
skipped, so positions of left padding begin no document.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import torch
from torch.nn import functional

from maskwright.core.atoms import documents
from maskwright.core.simplify import simplify
from maskwright.errors import Unsupported
from maskwright.integrations.tensor_cache import TensorCache
from maskwright.integrations.transformers_dense import has_values

if TYPE_CHECKING:
    from collections.abc import Mapping

    from maskwright.core.bound import BoundMask
    from maskwright.core.validate import IntArray

CU_SEQ_LENS: Final = ("cu_seq_lens_q", "cu_seq_lens_k")
MAX_LENGTHS: Final = ("max_length_q", "max_length_k")
ORIGIN: Final = "_maskwright_origin"  # attribute of the masks that `mask_for_layers` returns

MAX_CACHED_MASKS: Final = 32  # as of `transformers_functions`
_IDS_BY_TENSOR: Final = TensorCache()  # documents that position ids describe


class Origin(NamedTuple):
    """What the mask of a model says about its queries."""

    padding: torch.Tensor | None  # (batch, queries), True for real tokens
    q_start: Any  # an integer, or a tensor with a static cache


class Packing(NamedTuple):
    """The arguments of a layer that describe packed sequences."""

    positions: torch.Tensor | None = None  # (batch or 1, queries)
    cu_seq_lens: tuple[torch.Tensor, torch.Tensor] | None = None  # of queries and of keys
    max_lengths: tuple[int, ...] = ()


def mask_origin(
    attention_mask: torch.Tensor | None, q_length: int, q_offset: Any, kv_offset: Any
) -> Origin:
    """The origin of a mask, from the arguments of the mask interface of transformers."""
    start = q_offset - kv_offset
    if attention_mask is None or attention_mask.ndim != 2:
        return Origin(None, start)
    index = torch.arange(q_length, device=attention_mask.device) + q_offset
    index = index.clamp(max=attention_mask.shape[1] - 1)
    return Origin(attention_mask[:, index].bool(), start)


def read_packing(arguments: Mapping[str, Any], batch: int, q_len: int) -> Packing | None:
    """The packing in the keyword arguments of a layer; None if there is none.

    Args:
        arguments: Keyword arguments of the attention interface of transformers.
        batch: Batch size.
        q_len: Number of queries.

    Raises:
        Unsupported: If only some of the arguments are there.
    """
    present = [name for name in (*CU_SEQ_LENS, *MAX_LENGTHS) if arguments.get(name) is not None]
    if present:
        missing = [name for name in CU_SEQ_LENS if name not in present]
        if missing:
            raise Unsupported(
                f'attn_implementation="maskwright": {present[0]} without {missing[0]}. '
                f"Pass both {CU_SEQ_LENS[0]} and {CU_SEQ_LENS[1]}, or neither."
            )
        q_lens, k_lens = (torch.as_tensor(arguments[name]) for name in CU_SEQ_LENS)
        lengths = tuple(int(arguments[name]) for name in MAX_LENGTHS if name in present)
        return Packing(None, (q_lens, k_lens), lengths)
    positions = arguments.get("position_ids")
    if not isinstance(positions, torch.Tensor) or q_len <= 1 or positions.shape[-1] != q_len:
        return None
    if positions.ndim == 3:
        _refuse_restarts_of_axes(positions)
        return None
    return Packing(positions) if positions.ndim == 2 and positions.shape[0] in (1, batch) else None


def document_ids(
    packing: Packing, batch: int, q_len: int, padding: torch.Tensor | None
) -> torch.Tensor:
    """The number of the document of each query, (batch or 1, queries). It can be traced.

    >>> document_ids(Packing(torch.tensor([[0, 1, 2, 0, 1]])), 1, 5, None)
    tensor([[0, 0, 0, 1, 1]])
    >>> padding = torch.tensor([[False, False, True, True, True]])
    >>> document_ids(Packing(torch.tensor([[1, 1, 0, 1, 2]])), 1, 5, padding)
    tensor([[0, 0, 0, 0, 0]])
    """
    if packing.cu_seq_lens is not None:
        starts = packing.cu_seq_lens[0]
        tokens = torch.arange(batch * q_len, device=starts.device, dtype=starts.dtype)
        return torch.bucketize(tokens, starts[1:], right=True).view(batch, q_len)
    assert packing.positions is not None
    positions = packing.positions
    if padding is None:
        restarts = positions[:, 1:] <= positions[:, :-1]
    else:
        padding = padding.to(positions.device)
        positions = positions.expand(padding.shape)
        index = torch.arange(q_len, device=positions.device)
        last_token = torch.where(padding, index, -1).cummax(1).values[:, :-1]
        before = positions.gather(1, last_token.clamp(min=0))
        restarts = (positions[:, 1:] <= before) & (last_token >= 0) & padding[:, 1:]
    return functional.pad(restarts.cumsum(1), (1, 0))


def pack_bound(
    bound: BoundMask, packing: Packing, batch: int, padding: torch.Tensor | None
) -> BoundMask:
    """The bound mask within the documents; the same mask if there is one document per row.

    Raises:
        Unsupported: If the documents do not fit the batch, or begin after cached keys.
    """
    frame = bound.frame
    if packing.cu_seq_lens is not None:
        _check_cu_seq_lens(packing, batch, frame.q_len)
    ids = _known_ids(packing, batch, frame.q_len, padding)
    if ids is None:
        return bound
    if frame.q_start != 0:
        argument, what = (
            ("position_ids", "restart")
            if packing.cu_seq_lens is None
            else (CU_SEQ_LENS[0], "is set")
        )
        raise Unsupported(
            f'attn_implementation="maskwright": {argument} {what}, but there are {frame.q_start} '
            "cached keys, and it is unknown which of these belong to the same sequence. Pass a "
            "4-D attention_mask, or run the packed sequences without a filled cache."
        )
    return _pack(bound, ids)


def pack_dense(
    mask: torch.Tensor | None, packing: Packing, query: torch.Tensor, kv_len: int, origin: Origin
) -> torch.Tensor:
    """The mask tensor within the documents, bool or additive. It can be traced.

    A tensor that is traced has no values to refuse: the first document then includes the cached keys.
    """
    batch, _, q_len, _ = query.shape
    ids = document_ids(packing, batch, q_len, origin.padding).to(query.device)
    keys = ids
    if isinstance(origin.q_start, torch.Tensor) or kv_len != q_len:
        index = torch.arange(kv_len, device=query.device) - origin.q_start
        keys = torch.where(index < q_len, ids[:, index.clamp(0, q_len - 1)], -1)
    same = (ids[:, :, None] == keys[:, None, :])[:, None]
    if mask is None:
        return same
    if mask.dtype == torch.bool:
        return mask & same
    return mask.masked_fill(~same, torch.finfo(mask.dtype).min)


class _Ids(NamedTuple):
    """Document ids (batch or 1, queries), as bytes, which compare fast."""

    data: bytes
    rows: int

    def array(self) -> IntArray:
        """The ids as an array."""
        return np.frombuffer(self.data, np.int64).reshape(self.rows, -1)


def _known_ids(
    packing: Packing, batch: int, q_len: int, padding: torch.Tensor | None
) -> _Ids | None:
    """The document ids, or None if each row is one document; position ids are read once."""
    positions = packing.positions
    if positions is None or positions.is_inference():
        return _read_ids(packing, batch, q_len, padding)
    # All layers get the same positions, and the padding of the same mask.
    state = (batch, None if padding is None else padding.cpu().numpy().tobytes())
    return _IDS_BY_TENSOR.get(positions, state, lambda: _read_ids(packing, batch, q_len, padding))


def _read_ids(
    packing: Packing, batch: int, q_len: int, padding: torch.Tensor | None
) -> _Ids | None:
    ids = document_ids(packing, batch, q_len, padding).detach().cpu().numpy()
    if (ids == ids[:, :1]).all():
        return None
    ids = ids[:1] if (ids == ids[:1]).all() else ids
    return _Ids(np.ascontiguousarray(ids, np.int64).tobytes(), len(ids))


@lru_cache(maxsize=MAX_CACHED_MASKS)
def _pack(bound: BoundMask, ids: _Ids) -> BoundMask:
    """The bound mask within documents; keys after the last query are in none."""
    array, home = ids.array(), bound._home  # the mask's data fits its home frame
    array = np.pad(array, ((0, 0), (0, home.tokens - array.shape[1])), constant_values=-1)
    mask = simplify(bound.mask & documents(ids=array))
    batch = home.batch if home.batch > 1 else None
    whole = mask.on(home.q_len, home.kv_len, batch, home.heads, home.q_start)
    return whole.rows(0, bound.frame.q_len, kv_len=bound.frame.kv_len)


def _check_cu_seq_lens(packing: Packing, batch: int, q_len: int) -> None:
    """Raises Unsupported unless the cumulative lengths describe the rows of the batch."""
    assert packing.cu_seq_lens is not None
    name = CU_SEQ_LENS[0]
    queries, keys = (lens.detach().cpu() for lens in packing.cu_seq_lens)
    if not torch.equal(queries, keys):
        raise Unsupported(
            f'attn_implementation="maskwright": {name} and {CU_SEQ_LENS[1]} differ. Only packed '
            "self-attention without cached keys is supported. Pass equal lengths."
        )
    total = batch * q_len
    lengths = queries.tolist()
    shown = f"{lengths[:4]}{'…' if len(lengths) > 4 else ''}"
    is_valid = queries.ndim == 1 and len(lengths) > 1 and lengths == sorted(lengths)
    if not is_valid or lengths[0] != 0 or lengths[-1] != total:
        raise Unsupported(
            f'attn_implementation="maskwright": {name}={shown} does not rise from 0 to the {total} '
            f"tokens of this layer's queries. Pass the cumulative lengths of all sequences."
        )
    inside = sorted(set(range(q_len, total, q_len)) - set(lengths)) if q_len else []
    if inside:
        raise Unsupported(
            f'attn_implementation="maskwright": {name} has a sequence across the rows of the batch, '
            f"at token {inside[0]}. Pass a batch of 1, or end a sequence with each row."
        )
    longest = int(queries.diff().max())
    for limit in packing.max_lengths:
        if limit < longest:
            raise Unsupported(
                f'attn_implementation="maskwright": {MAX_LENGTHS[0]} or {MAX_LENGTHS[1]} is {limit} '
                f"but {name} has a sequence of {longest} tokens. Pass {longest}, or omit it."
            )


def _refuse_restarts_of_axes(positions: torch.Tensor) -> None:
    """Raises Unsupported if 3-D position ids restart: within an image they repeat, but never fall."""
    first = positions[0].detach()
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or not has_values(first):
        return
    if bool((first[:, 1:] < first[:, :-1]).any()):
        raise Unsupported(
            'attn_implementation="maskwright": 3-D position_ids restart, but packed sequences are '
            "read from 2-D position_ids only. Pass cu_seq_lens_q and cu_seq_lens_k."
        )
