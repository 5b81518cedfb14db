"""Readers: the dense mask (B, H, T, S) that the lowered arguments of a target define.

They are written from the formats' public definitions and share nothing with the code that writes
them. A reader also fails where the form is not a lawful one: other values, shapes or overlaps.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

Shape = tuple[int, int, int, int]


def spread(cells: Any, shape: Shape) -> np.ndarray:
    """The cells for every sequence and head; each axis was there, as 1 or in full."""
    cells = np.asarray(cells)
    assert cells.dtype == np.bool_
    assert cells.ndim == 4
    assert all(size in (1, full) for size, full in zip(cells.shape[:2], shape[:2], strict=True))
    assert cells.shape[2:] == shape[2:]
    return np.broadcast_to(cells, shape)


def kept(values: Any, hides: float = -np.inf) -> np.ndarray:
    """An additive mask: 0 is visible, the fill is masked, and there are no other values."""
    values = np.asarray(values, np.float64)
    assert bool(((values == 0) | (values == hides)).all())
    return np.equal(values, 0)


def upper_left(shape: Shape) -> np.ndarray:
    return np.broadcast_to(np.tril(np.ones(shape[2:], np.bool_)), shape)


def everything(shape: Shape) -> np.ndarray:
    return np.ones(shape, np.bool_)


def numpy_array(given: Any, shape: Shape) -> np.ndarray:
    assert isinstance(given, np.ndarray)
    return spread(given, shape)


def additive(given: Any, shape: Shape) -> np.ndarray:
    return spread(kept(given), shape)


def torch_bool(given: Any, shape: Shape) -> np.ndarray:
    return spread(given.numpy(), shape)


def torch_additive(given: Any, shape: Shape) -> np.ndarray:
    return spread(kept(given.double().numpy()), shape)


def sdpa(given: dict[str, Any], shape: Shape) -> np.ndarray:
    """attn_mask broadcasts to (B, H, T, S), True keeps; is_causal is the upper-left triangle."""
    assert sorted(given) == ["attn_mask", "is_causal"]
    mask = given["attn_mask"]
    if given["is_causal"]:
        assert mask is None
        return upper_left(shape)
    if mask is None:
        return everything(shape)
    return (
        torch_bool(mask, shape)
        if mask.dtype.is_floating_point is False
        else torch_additive(mask, shape)
    )


def drops(mask: Any) -> np.ndarray:
    """True, or -inf, drops."""
    return ~kept(mask.double().numpy()) if mask.dtype.is_floating_point else mask.numpy()


def factors(attention: Any, keys: Any, shape: Shape) -> np.ndarray:
    """attn_mask (T, S) or (B * H, T, S), and key_padding_mask (B, S)."""
    b, h, t, s = shape
    allowed = everything(shape)
    if attention is not None:
        assert tuple(attention.shape) in ((t, s), (b * h, t, s))
        allowed = allowed & ~drops(attention).reshape(
            (1, 1, t, s) if attention.ndim == 2 else shape
        )
    if keys is not None:
        assert tuple(keys.shape) == (b, s)
        allowed = allowed & ~drops(keys)[:, None, None, :]
    return allowed


def mha(given: dict[str, Any], shape: Shape) -> np.ndarray:
    return factors(given["attn_mask"], given["key_padding_mask"], shape)


def transformer(given: dict[str, Any], shapes: tuple[Shape, Shape, Shape]) -> list[np.ndarray]:
    """The masks of the encoder, of the decoder, and of cross-attention."""
    names = ("src", "tgt", "memory")
    assert sorted(given) == sorted(
        f"{name}_{kind}" for name in names for kind in ("mask", "key_padding_mask")
    )
    return [
        factors(given[f"{name}_mask"], given[f"{name}_key_padding_mask"], shape)
        for name, shape in zip(names, shapes, strict=True)
    ]


def flex(given: Any, shape: Shape) -> np.ndarray:
    """torch's own reading of the mask_mod; and the lists of blocks, which must agree with it."""
    from torch.nn.attention.flex_attention import create_mask

    assert tuple(given.seq_lengths) == shape[2:]
    if 0 in shape:
        return np.zeros(shape, np.bool_)
    cells = create_mask(given.mask_mod, *shape, device="cpu").numpy()
    tall, broad = given.BLOCK_SIZE
    some, full = (
        listed_blocks(count, index, given.shape[:2])
        for count, index in (
            (given.kv_num_blocks, given.kv_indices),
            (given.full_kv_num_blocks, given.full_kv_indices),
        )
    )
    assert not bool((some & full).any()), "a block is listed twice"
    size = (shape[2] // tall * tall, shape[3] // broad * broad)
    for blocks, truth in ((some | full, False), (full, True)):
        large = np.repeat(np.repeat(blocks, tall, axis=2), broad, axis=3)
        inside = np.broadcast_to(large[:, :, : shape[2], : shape[3]], shape)
        if truth:
            assert bool(cells[inside].all()), "a full block hides a cell"
            ragged = large.copy()
            ragged[:, :, : size[0], : size[1]] = False
            assert not bool(ragged.any()), "a block over the edge goes without the mask_mod"
        else:
            assert not bool(cells[~inside].any()), "a cell is seen in a block that is left out"
    return cells


def listed_blocks(count: Any, index: Any, planes: Any) -> np.ndarray:
    """(B, H, rows, columns) of blocks: the first `count` of every row's `index`."""
    count, index = count.numpy(), index.numpy()
    assert count.shape == index.shape[:3]
    assert count.shape[:2] == tuple(planes)
    out = np.zeros(index.shape, np.bool_)
    for place in np.ndindex(*count.shape):
        listed = index[place][: count[place]]
        assert len(set(listed.tolist())) == len(listed)
        out[(*place, listed)] = True
    return out


def flash_varlen(given: dict[str, Any], shape: Shape) -> np.ndarray:
    """flash-attn 2.1 or newer: segment i of queries attends to segment i of keys."""
    b, _, t, s = shape
    q_ends, k_ends = (given[f"cu_seqlens_{side}"].numpy() for side in "qk")
    assert q_ends.dtype == k_ends.dtype == np.int32
    assert len(q_ends) == len(k_ends)
    assert (q_ends[0], k_ends[0], q_ends[-1], k_ends[-1]) == (0, 0, b * t, b * s)
    left, right = given["window_size"]
    assert min(left, right) >= -1
    if given["causal"]:
        assert right in (-1, 0)
        right = 0
    cells = np.zeros((b * t, b * s), np.bool_)
    sizes = np.diff(q_ends), np.diff(k_ends)
    assert bool((sizes[0] >= 0).all() and (sizes[1] >= 0).all())
    assert given["max_seqlen_q"] == max(sizes[0], default=0)
    assert given["max_seqlen_k"] == max(sizes[1], default=0)
    for q0, q1, k0, k1 in zip(q_ends[:-1], q_ends[1:], k_ends[:-1], k_ends[1:], strict=True):
        i, j = np.arange(q1 - q0)[:, None], np.arange(k1 - k0)[None, :]
        place = i + (k1 - k0) - (q1 - q0)
        seen = (j >= place - left) | (left == -1)
        cells[q0:q1, k0:k1] = seen & ((j <= place + right) | (right == -1))
    return end_to_end(cells, shape)


def end_to_end(cells: np.ndarray, shape: Shape) -> np.ndarray:
    """Cells of (B * T, B * S), in which no sequence attends to another one."""
    b, _, t, s = shape
    table = cells.reshape(b, t, b, s)
    own = np.stack([table[i, :, i] for i in range(b)])[:, None]
    assert own.sum() == cells.sum(), "one sequence attends to another"
    return np.broadcast_to(own, shape)


def xformers(given: Any, shape: Shape) -> np.ndarray:
    """None, a float tensor of the full shape, or an AttentionBias, by its `materialize`."""
    import torch

    if given is None:
        return everything(shape)
    if isinstance(given, torch.Tensor):
        assert tuple(given.shape) == shape
        return torch_additive(given, shape)
    if "BlockDiagonal" in type(given).__name__:
        b, _, t, s = shape
        size = (b * t, b * s)  # of the tokens of all sequences
        if hasattr(given, "block_tables"):
            pages = given.block_tables.numel()
            assert (int(given.block_tables.max()) + 1) * given.page_size == b * s
            size = (b * t, pages * given.page_size)
        return end_to_end(kept(given.materialize(size, dtype=torch.float64).numpy()), shape)
    bias = given.materialize(shape, dtype=torch.float64)
    return np.broadcast_to(kept(bias.numpy()), shape)


def jax(given: dict[str, Any], shape: Shape) -> np.ndarray:
    """The arguments of jax.nn.dot_product_attention, each of which masks more."""
    known = {"mask", "is_causal", "local_window_size", "query_seq_lengths", "key_value_seq_lengths"}
    assert set(given) <= known
    b, _, t, s = shape
    row, col = np.arange(t)[:, None], np.arange(s)[None, :]
    allowed = everything(shape)
    if "mask" in given:
        allowed = allowed & spread(given["mask"], shape)
    if given.get("is_causal"):
        allowed = allowed & (col <= row)
    if "local_window_size" in given:
        left, right = given["local_window_size"]
        assert min(left, right) >= 0
        allowed = allowed & (col >= row - left) & (col <= row + right)
    if "query_seq_lengths" in given:
        queries = np.asarray(given["query_seq_lengths"])
        assert queries.shape == (b,)
        allowed = allowed & (row < queries[:, None, None, None])
    if "key_value_seq_lengths" in given:
        keys = np.asarray(given["key_value_seq_lengths"])
        assert keys.shape == (b,)
        allowed = allowed & (col < keys[:, None, None, None])
    return allowed


def splash(given: dict[str, Any], shape: Shape) -> np.ndarray:
    """One mask per head, restricted to pairs with the same segment."""
    b, h, t, s = shape
    heads, ids = given["mask"], given["segment_ids"]
    assert tuple(heads.shape) == (h, t, s)
    cells = np.asarray(heads[:, :, :], np.bool_)
    assert cells.shape == (h, t, s)
    if t and s:
        assert np.array_equal(splash_blocks(heads), cells)
    if ids is None:
        return np.broadcast_to(cells, shape)
    assert (ids.q.shape, ids.kv.shape) == ((b, t), (b, s))
    return cells & np.equal(ids.q[:, None, :, None], ids.kv[:, None, None, :])


def splash_blocks(heads: Any) -> np.ndarray:
    """The cells that the kernel computes, from its table of blocks, (H, T, S)."""
    from jax.experimental.pallas.ops.tpu.splash_attention import splash_attention_mask_info as info

    _, t, s = heads.shape
    block = tuple(next(size for size in (4, 3, 2, 1) if length % size == 0) for length in (t, s))
    table, function = info.process_mask(heads, block, shrink_grid=False)
    state = np.asarray(table.block_mask)
    out = np.zeros((state.shape[0], t, s), np.bool_)
    for h, i, j in np.ndindex(*state.shape):
        rows, cols = (
            slice(at * size, (at + 1) * size) for at, size in zip((i, j), block, strict=True)
        )
        if state[h, i, j] == 2:
            out[h, rows, cols] = True
        elif state[h, i, j] == 1 and function is not None:
            index = np.asarray(table.q_sequence)[rows, None]
            out[h, rows, cols] = function(index, np.arange(s)[None, cols])
        elif state[h, i, j] == 1:
            out[h, rows, cols] = table.partial_mask_blocks[table.mask_next[h, i, j]]
    return np.broadcast_to(out, heads.shape)


def keras(given: dict[str, Any], shape: Shape) -> np.ndarray:
    """attention_mask (B, T, S) or (B, H, T, S), each of B and H possibly 1; True keeps."""
    mask = given["attention_mask"]
    if mask is None:
        return everything(shape)
    cells = np.asarray(mask)
    return spread(cells[:, None] if cells.ndim == 3 else cells, shape)


def flashmask(given: dict[str, Any], shape: Shape) -> np.ndarray:
    """Paddle's startend_row_indices (B, H or 1, S, 1, 2 or 4): for each key the rows that don't."""
    b, h, t, s = shape
    ends, causal = given["startend_row_indices"], given["causal"]
    if causal:
        assert t == s
    row = np.arange(t)[:, None]
    hidden = (row < np.arange(s)[None, :]) if causal else np.zeros((t, s), np.bool_)
    hidden = np.broadcast_to(hidden, shape)
    if ends is None:
        return ~hidden
    assert ends.dtype == np.int32
    assert ends.shape[0] == b
    assert ends.shape[1] in (1, h)
    assert ends.shape[2] == s
    assert bool(((ends >= 0) & (ends <= t)).all())
    count = ends.shape[3]
    assert count in ((1, 2) if causal else (2, 4))
    parts = [ends[..., i][:, :, None, :] for i in range(count)]
    if causal:
        stop = t if count == 1 else parts[1]
        return ~(hidden | ((row >= parts[0]) & (row < stop)))
    if count == 2:
        return ~(hidden | (row >= parts[0]) | (row < parts[1]))
    lower = (row >= parts[0]) & (row < parts[1])
    return ~(hidden | lower | ((row >= parts[2]) & (row < parts[3])))


def cudnn(given: Any, shape: Shape) -> np.ndarray:
    """cuDNN's mask function (H or 1, odd, B * T): [0, F0), [F1, F2), … are visible."""
    b, h, t, s = shape
    table = given.numpy()
    assert table.dtype == np.int32
    heads, count, queries = table.shape
    assert heads in (1, h)
    assert count % 2 == 1
    assert queries == b * t
    assert bool((np.diff(table, axis=1) >= 0).all()), "endpoints go down"
    assert bool(((table >= 0) & (table <= s)).all())
    key = np.arange(s)
    seen = key < table[:, 0, :, None]
    for n in range(1, count, 2):
        seen = seen | ((key >= table[:, n, :, None]) & (key < table[:, n + 1, :, None]))
    return np.broadcast_to(np.moveaxis(seen.reshape(heads, b, t, s), 0, 1), shape)


def magi(given: dict[str, Any], shape: Shape) -> np.ndarray:
    """MagiAttention's ranges: 0 full, 1 causal, 2 inverse causal, 3 both.

    Its kernel adds slices up, its dense reference overwrites rectangle by rectangle: the two agree
    where no two rectangles overlap.
    """
    b, _, t, s = shape
    q_ranges, k_ranges, kinds = (
        given[name].numpy() for name in ("q_ranges", "k_ranges", "attn_type_map")
    )
    assert q_ranges.shape == k_ranges.shape == (len(kinds), 2)
    cells = np.zeros((b * t, b * s), np.bool_)
    covered = np.zeros_like(cells)
    for (q0, q1), (k0, k1), kind in zip(q_ranges, k_ranges, kinds, strict=True):
        assert 0 <= q0 < q1 <= b * t
        assert 0 <= k0 < k1 <= b * s
        r, u = np.arange(q1 - q0)[:, None], np.arange(k1 - k0)[None, :]
        seen = np.ones((q1 - q0, k1 - k0), np.bool_)
        if kind in (1, 3):
            seen = seen & (u <= r + (k1 - k0) - (q1 - q0))
        if kind in (2, 3):
            seen = seen & (u >= r)
        assert kind in (0, 1, 2, 3)
        assert not covered[q0:q1, k0:k1].any(), "two rectangles overlap"
        covered[q0:q1, k0:k1] = True
        cells[q0:q1, k0:k1] = seen
    return end_to_end(cells, shape)


def onnx(given: Any, shape: Shape, past_len: int = 0) -> np.ndarray:
    """The operator Attention: every attribute and input masks more, by absolute positions."""
    b, _h, t, s = shape
    attributes, inputs = given.attributes, given.inputs
    assert set(attributes) <= {"is_causal", "left_window_size", "right_window_size"}
    assert set(inputs) <= {"attn_mask", "nonpad_kv_seqlen"}
    lengths, offset = np.full(b, s), np.full(b, past_len)
    if "nonpad_kv_seqlen" in inputs:
        assert past_len == 0, "nonpad_kv_seqlen cannot be combined with past_key"
        lengths = inputs["nonpad_kv_seqlen"]
        assert lengths.dtype == np.int64
        assert lengths.shape == (b,)
        assert bool(((lengths >= 0) & (lengths <= s)).all())
        offset = lengths - t
    left, right = (attributes.get(f"{side}_window_size", -1) for side in ("left", "right"))
    allowed = np.zeros(shape, np.bool_)
    for n, q, k in np.ndindex(b, t, s):
        position = q + offset[n]
        allowed[n, :, q, k] = (
            k < lengths[n]
            and (not attributes.get("is_causal") or k <= position)
            and (left < 0 or k >= position - left)
            and (right < 0 or k <= position + right)
        )
    mask = inputs.get("attn_mask")
    if mask is None:
        return allowed
    cells = mask if mask.dtype == np.bool_ else kept(mask)
    return allowed & spread(cells, shape)


def flashinfer(given: dict[str, Any], shape: Shape) -> np.ndarray:
    """As FlashInfer's default attention variant reads it, one cell at a time."""
    b, _, t, s = shape
    given = {name: getattr(value, "numpy", lambda v=value: v)() for name, value in given.items()}
    assert given["qo_indptr"].tolist() == [n * t for n in range(b + 1)]
    assert given["kv_indptr"].tolist() == [n * s for n in range(b + 1)]
    bits, bools = given.get("packed_custom_mask"), given.get("custom_mask")
    assert bits is None or bools is None
    if bits is None and bools is None:
        assert "mask_indptr" not in given
    else:
        assert not given["causal"]
        assert given["mask_indptr"].dtype == np.int32
        assert len(given["mask_indptr"]) == b + 1
        assert given["mask_indptr"][-1] == len(bools if bits is None else bits)
    if given["causal"]:
        assert t <= s, "FlashInfer rejects causal=True with more queries than keys"
    allowed = np.zeros(shape, np.bool_)
    for n, q, k in np.ndindex(b, t, s):
        cell = q * s + k
        visible = not given["causal"] or k + t <= s + q
        if given["window_left"] >= 0:
            visible = visible and k + t + given["window_left"] >= s + q
        if bits is not None:
            assert bits.dtype == np.uint8
            byte = int(bits[given["mask_indptr"][n] + cell // 8])
            visible = visible and bool(byte >> (cell % 8) & 1)
        elif bools is not None:
            assert bools.dtype == np.bool_
            visible = visible and bool(bools[given["mask_indptr"][n] + cell])
        allowed[n, :, q, k] = visible
    return allowed


READERS: dict[str, Callable[[Any, Any], Any]] = {
    "numpy": numpy_array,
    "additive": additive,
    "torch.bool": torch_bool,
    "torch.additive": torch_additive,
    "torch.sdpa": sdpa,
    "torch.mha": mha,
    "torch.transformer": transformer,
    "torch.flex": flex,
    "flash.varlen": flash_varlen,
    "xformers": xformers,
    "jax": jax,
    "jax.splash": splash,
    "keras": keras,
    "flashmask": flashmask,
    "cudnn": cudnn,
    "magi": magi,
    "onnx": onnx,
    "flashinfer": flashinfer,
}  # "hf" is read by transformers itself, in transformers_reader.py
