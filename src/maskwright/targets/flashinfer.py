"""flashinfer: the mask arguments of FlashInfer's prefill kernels, for one or several requests.

The masks of all requests are flattened with the query as the first dimension and concatenated. In
the packed format every request starts at a new byte, and the first cell is the lowest bit.

`single_prefill_with_kv_cache` takes `packed_custom_mask` of one request. `plan()` of the batch
wrappers computes the offsets of the requests itself, in cells, and converts them to bytes only if
it packs the mask too (https://github.com/flashinfer-ai/flashinfer/pull/2201). So several requests
need `custom_mask`, which `lower` returns for them; `packed=True` returns the bytes and the
`mask_indptr` that the kernel reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maskwright.core.validate import parse_bool
from maskwright.errors import SizeError
from maskwright.targets._torch import int32_tensor, parse_device, to_tensor
from maskwright.targets.base import FORMAT_ONLY, Target
from maskwright.targets.codegen import mask_code
from maskwright.targets.predicates import (
    EmptyRows,
    band,
    check_bytes,
    check_empty_rows,
    is_full,
    row_index,
    spans_shared_by_heads,
)

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask

TARGET = Target(
    name="flashinfer",
    returns="qo_indptr, kv_indptr, causal, window_left; packed_custom_mask or custom_mask",
    supports="every mask that is the same for all heads",
    polarity="True keeps",
    shape="(B·⌈T·S/8⌉,) bytes or (B·T·S,) bools, and mask_indptr (B + 1,); or no mask",
    alignment="the frame's; causal and window_left, aligned at the lower right, only where equal",
    empty_rows="as the kernel does",
    requires="torch",
    tested=FORMAT_ONLY,
    alternatives=("torch.flex", "cudnn"),
)

MAX_INDPTR: Final = 2**31 - 1  # offsets are int32


def lower(
    bound: BoundMask,
    *,
    packed: bool | None = None,
    device: object = None,
    empty_rows: EmptyRows = "native",
) -> dict[str, Any]:
    """`causal` and `window_left` where they are equal; else the cells, as bits or bools.

    `packed` is True for one request and False for several by default: see the module.
    """
    parse_device(device)
    packs = bound.frame.batch == 1 if packed is None else parse_bool(packed, "lower: packed")
    check_empty_rows(bound, empty_rows, returns_zero=False)
    spans, frame = spans_shared_by_heads(bound), bound.frame
    requests = np.arange(frame.batch + 1)
    lowered: dict[str, Any] = {
        "qo_indptr": int32_tensor(requests * frame.q_len, device),
        "kv_indptr": int32_tensor(requests * frame.kv_len, device),
        "causal": False,
        "window_left": -1,
    }
    if is_full(bound):
        return lowered
    window = _causal_window(bound)
    if window is not None:
        return {**lowered, "causal": True, "window_left": window}
    cells = frame.q_len * frame.kv_len
    size = -(-cells // 8) if packs else cells
    if size * frame.batch > MAX_INDPTR:
        raise SizeError(
            f"lower: flashinfer's mask_indptr is int32, and the mask has {size * frame.batch:,} "
            "elements. Lower a range of rows at a time: bound.rows(start, stop)."
        )
    check_bytes((spans.shape[0], frame.q_len, frame.kv_len), 1)
    visible = np.zeros((spans.shape[0], 1, frame.q_len, frame.kv_len), np.bool_)
    spans.write_dense(visible)
    flat: Any = visible.reshape(spans.shape[0], cells)
    if packs:
        flat = np.packbits(flat, axis=1, bitorder="little")
    data = np.broadcast_to(flat, (frame.batch, size)).reshape(frame.batch * size)
    lowered["packed_custom_mask" if packs else "custom_mask"] = to_tensor(data, device)
    return {**lowered, "mask_indptr": int32_tensor(requests * size, device)}


def usage(bound: BoundMask, lowered: dict[str, Any]) -> list[str]:
    """Lines that call it, with q, k, v of (tokens, heads, head_dim)."""
    frame = bound.frame
    flags = f"causal={lowered['causal']}, window_left={lowered['window_left']}"
    name = next((key for key in ("packed_custom_mask", "custom_mask") if key in lowered), None)
    lines = ["import torch", ""] if name is None else mask_code(bound, "torch")
    if name is not None:
        shape = f"({frame.batch}, {frame.q_len * frame.kv_len})"
        part = f"mask[:, 0].expand({frame.batch}, -1, -1).reshape{shape}"
        lines.append(f"custom_mask = {part}  # row-major cells per request")
    if name == "packed_custom_mask":
        lines += ["import numpy as np", "", "bits = np.packbits(custom_mask, 1, 'little')"]
        lines.append("packed_custom_mask = torch.from_numpy(bits).flatten()")
    elif name is not None:
        lines.append("custom_mask = custom_mask.flatten()")
    extra = "" if name is None else f"{name}={name}, "
    if frame.batch == 1:
        return [*lines, f"# out = flashinfer.single_prefill_with_kv_cache(q, k, v, {extra}{flags})"]
    for indptr in ("qo_indptr", "kv_indptr", "mask_indptr"):
        if indptr in lowered:
            lines.append(f"{indptr} = torch.tensor({lowered[indptr].tolist()}, dtype=torch.int32)")
    if name == "packed_custom_mask":
        return [*lines, "# plan() takes custom_mask of several requests; the kernel reads this one"]
    plan = f"qo_indptr, kv_indptr, num_heads, num_heads, head_dim, {extra}{flags}"
    return [*lines, f"# wrapper.plan({plan})  # BatchPrefillWithRaggedKVCacheWrapper"]


def _causal_window(bound: BoundMask) -> int | None:
    """`window_left` with causal=True, -1 for no limit; None if the mask is no causal window.

    FlashInfer rejects causal=True with more queries than keys.
    """
    q_len, kv_len = bound.shape[2:]
    spans = bound.spans
    if q_len > kv_len or spans.flat[1].size != spans.flat[0].size - 1:
        return None
    position = row_index(bound) + kv_len - q_len
    if spans == band(bound, position * 0, position + 1):
        return -1
    left = int((np.broadcast_to(position, spans.shape).ravel() - spans.starts).max(initial=0))
    return left if spans == band(bound, position - left, position + 1) else None
