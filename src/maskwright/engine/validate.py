"""Checks of the arguments of `attention`, and the binding of its mask."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from maskwright.bias.scores import MAX_SCALE, describe_number
from maskwright.bias.values import check_memory
from maskwright.core.atoms import everything
from maskwright.core.bound import BoundMask
from maskwright.core.expr import Mask
from maskwright.core.validate import describe_type, read_choice
from maskwright.errors import ArgumentError, AttentionError, FrameError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maskwright.engine.call import AttentionOptions

EVERYTHING = everything()
DTYPES: Final = ("float32", "bfloat16", "float16", "float64")
IMPLS: Final = ("auto", "native", "blocks", "sdpa", "flex", "triton", "reference")


class TensorSpec(NamedTuple):
    """What a call depends on of q, k or v besides its values: `explain_backend` reads shapes."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    device: str = "cpu"
    requires_grad: bool = False


def check_inputs(q: Any, k: Any, v: Any, enable_gqa: bool) -> tuple[int, ...]:
    """Check that q, k and v are valid inputs of attention: tensors, arrays or specs.

    Args:
        q: Queries (batch, heads, q_len, head_dim).
        k: Keys (batch, kv_heads, kv_len, head_dim).
        v: Values (batch, kv_heads, kv_len, v_head_dim).
        enable_gqa: Whether kv_heads may be a divisor of heads.

    Returns:
        batch, heads, kv_heads, q_len, kv_len, head_dim and v_head_dim.

    Raises:
        AttentionError: One has the wrong type, shape, dtype or device.
        Unsupported: A tensor subclass or storage that no backend reads.
    """
    if not _are_usual(q, k, v, enable_gqa):
        if isinstance(q, np.ndarray):
            _check_arrays(q, k, v)
        elif not isinstance(q, TensorSpec):
            _check_tensors(q, k, v)
        _check_shapes(q.shape, k.shape, v.shape, enable_gqa)
    batch, heads, q_len, head_dim = q.shape
    return batch, heads, k.shape[1], q_len, k.shape[2], head_dim, v.shape[3]


def _check_arrays(q: Any, k: Any, v: Any) -> None:
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, np.ndarray):
            raise AttentionError(
                f"attention: {name} is {describe_type(x)} but q is a numpy array. "
                "Pass three numpy arrays, or three torch tensors."
            )
        if x.ndim != 4 or x.dtype != q.dtype or x.dtype not in (np.float32, np.float16):
            raise AttentionError(
                f"attention: {name} has dtype {x.dtype} and shape {x.shape}. Expected arrays "
                "(batch, heads, length, head_dim), all float32 or all float16."
            )


def _check_tensors(q: Any, k: Any, v: Any) -> None:
    import torch

    for name, x in (("q", q), ("k", k), ("v", v)):
        if not isinstance(x, torch.Tensor):
            raise AttentionError(
                f"attention: {name} is {describe_type(x)}. Pass a torch tensor of shape "
                "(batch, heads, length, head_dim)."
            )
        if type(x) is not torch.Tensor or x.is_nested or x.layout != torch.strided:
            check_memory(x, name)
        if x.dim() != 4:
            raise AttentionError(
                f"attention: {name} has shape {tuple(x.shape)}. "
                "Expected (batch, heads, length, head_dim)."
            )
    if not (q.dtype == k.dtype == v.dtype and q.dtype.is_floating_point and q.itemsize > 1):
        dtypes = ", ".join(str(x.dtype).removeprefix("torch.") for x in (q, k, v))
        raise AttentionError(
            f"attention: q, k and v have dtype {dtypes}. "
            "Pass all three in one floating-point dtype of at least 16 bits."
        )
    if not q.device == k.device == v.device:
        raise AttentionError(
            f"attention: q, k and v are on {q.device}, {k.device} and {v.device}. "
            "Move all three to one device."
        )


def _are_usual(q: Any, k: Any, v: Any, enable_gqa: bool) -> bool:
    """One quick pass over everything that is usually right of tensors."""
    torch = sys.modules.get("torch")
    if torch is None or not (type(q) is type(k) is type(v) is torch.Tensor):
        return False
    if q.is_nested or k.is_nested or v.is_nested or not q.dim() == k.dim() == v.dim() == 4:
        return False  # their sizes raise other errors
    (b, h, _, d), (kb, kh, s, kd), (vb, vh, vs, _) = q.shape, k.shape, v.shape
    return bool(
        b == kb == vb
        and kh == vh
        and s == vs
        and d == kd
        and (h == kh or (enable_gqa and kh and h % kh == 0))
        and q.dtype == k.dtype == v.dtype
        and q.dtype.is_floating_point
        and q.dtype.itemsize > 1
        and q.layout == k.layout == v.layout == torch.strided
        and q.device == k.device == v.device
    )


def dtype_name(dtype: Any) -> str:
    """The name of a dtype of torch or numpy, such as "bfloat16"."""
    if isinstance(dtype, (str, np.dtype)):
        return dtype if isinstance(dtype, str) else dtype.name
    return str(dtype).removeprefix("torch.")


def broadcast(q: Any, k: Any, v: Any, enable_gqa: bool) -> tuple[Any, Any, Any]:
    """q, k and v with missing dimensions added and sizes of 1 repeated, as SDPA does.

    Repeated sizes share memory. Arguments that do not broadcast, or are not all tensors or all
    arrays, are returned as they are.
    """
    try:
        shapes = tuple(q.shape), tuple(k.shape), tuple(v.shape)
    except (AttributeError, RuntimeError):  # no tensors, or nested ones, which have no sizes
        return q, k, v
    planes = [shape[:-2] for shape in shapes]
    if planes[0] == planes[1] == planes[2]:
        return q, k, v
    if all(isinstance(x, np.ndarray) for x in (q, k, v)):
        expand: Any = np.broadcast_to
    elif all(hasattr(x, "expand") for x in (q, k, v)):
        expand = _expand
    else:
        return q, k, v
    q, k, v = (
        x if shape == new else expand(x, new)
        for x, shape, new in zip(
            (q, k, v), shapes, broadcast_shapes(shapes, enable_gqa), strict=True
        )
    )
    return q, k, v


def _expand(x: Any, shape: tuple[int, ...]) -> Any:
    return x.expand(shape)


def broadcast_shapes(
    shapes: Sequence[tuple[int, ...]], enable_gqa: bool
) -> Sequence[tuple[int, ...]]:
    """The shapes that q, k and v have after broadcasting; unchanged if they do not broadcast."""
    if max(map(len, shapes)) != 4 or min(map(len, shapes)) < 2:
        return shapes
    whole = [(1,) * (4 - len(shape)) + shape for shape in shapes]
    batch = [shape[0] for shape in whole]
    heads = [shape[1] for shape in whole]
    batch = _broadcast_sizes(batch)
    heads = [heads[0], *_broadcast_sizes(heads[1:])] if enable_gqa else _broadcast_sizes(heads)
    return [
        (*planes, *shape[2:])
        for planes, shape in zip(zip(batch, heads, strict=True), whole, strict=True)
    ]


def _broadcast_sizes(sizes: list[int]) -> list[int]:
    """The sizes with 1 replaced by the other size, if there is only one other."""
    other_sizes = [size for size in sizes if size != 1]
    if other_sizes and all(size == other_sizes[0] for size in other_sizes):
        return other_sizes[:1] * len(sizes)
    return sizes


def _check_shapes(q: Any, k: Any, v: Any, enable_gqa: bool) -> None:
    """Raise where the shapes of q, k and v, each of four sizes, do not match."""
    shapes = f"q {tuple(q)}, k {tuple(k)}, v {tuple(v)}"
    if not q[0] == k[0] == v[0]:
        raise AttentionError(
            f"attention: batch sizes differ: {shapes}. Pass the same batch size in all three."
        )
    if tuple(k[1:3]) != tuple(v[1:3]):
        raise AttentionError(
            f"attention: k and v have different heads or lengths: {shapes}. "
            "Pass one value for each key."
        )
    if q[3] != k[3]:
        raise AttentionError(
            f"attention: q and k have different head_dim: {shapes}. Only v may have another one."
        )
    if q[1] != k[1] and not enable_gqa:
        raise AttentionError(
            f"attention: q and k have different numbers of heads: {shapes}. "
            "Pass enable_gqa=True if groups of query heads share a KV head."
        )
    if q[1] != k[1] and not (k[1] and q[1] % k[1] == 0):
        raise AttentionError(
            f"attention: the heads of q are not a multiple of those of k: {shapes}. "
            "With enable_gqa every KV head serves the same number of query heads."
        )


def read_numbers(options: AttentionOptions) -> AttentionOptions:
    """The options with Python numbers in place of numpy's and of tensors without dimensions."""
    names = ("scale", "softcap", "dropout_p")
    numbers = {name: _read_number(getattr(options, name)) for name in names}
    return options._replace(**numbers)


def _read_number(value: Any) -> Any:
    """A Python number; anything else, and a tensor that needs a gradient or tangent, as it is."""
    if value is None or type(value) in (float, int):
        return value
    if isinstance(value, np.generic) or (getattr(value, "ndim", None) == 0 and not _learns(value)):
        return value.item()
    return value


def check_options(options: AttentionOptions) -> None:
    """Check the keyword arguments of `attention`.

    Raises:
        AttentionError: `scale`, `dropout_p` or `impl` is invalid.
    """
    scale, dropout_p = options.scale, options.dropout_p
    if scale is not None and not (isinstance(scale, (int, float)) and abs(scale) <= MAX_SCALE):
        learnable = " Multiply q by a scale that needs a gradient." if _learns(scale) else ""
        raise AttentionError(
            f"attention: scale is {describe_number(scale)}. Pass a finite number between -{MAX_SCALE} and "
            f"{MAX_SCALE}, or None for 1 / sqrt(head_dim).{learnable}"
        )
    if not isinstance(dropout_p, (int, float)) or not 0.0 <= dropout_p <= 1.0:
        raise AttentionError(
            f"attention: dropout_p is {describe_number(dropout_p)}. Expected a number p with 0 <= p <= 1."
        )
    if options.impl not in IMPLS:
        read_choice(options.impl, "attention: impl", IMPLS, AttentionError)


def _learns(value: Any) -> bool:
    """Whether reverse or forward mode differentiates a tensor."""
    if not hasattr(value, "requires_grad"):
        return False
    from maskwright._torch_state import has_tangent, is_forward_mode

    return bool(value.requires_grad or (is_forward_mode() and has_tangent(value)))


def default_scale(head_dim: int) -> float:
    """1 / sqrt(head_dim), the usual factor of the scores."""
    return 1 / math.sqrt(head_dim) if head_dim else 1.0


def bind(mask: Any, shape: tuple[int, int, int, int], q_start: int | None) -> BoundMask:
    """Bind a mask to (batch, heads, q_len, kv_len), or check that a bound one matches.

    Args:
        mask: An expression, a bound mask, or None for no mask.
        shape: The sizes of the attention scores.
        q_start: Position of the first query; None aligns the last query with the last key.

    Returns:
        The bound mask; an expression remembers it for the next call.

    Raises:
        AttentionError: `mask` is not a mask, or `q_start` is not an integer.
        FrameError: The mask's data or frame does not match the sizes.
    """
    if mask is None:
        mask = EVERYTHING
    if isinstance(mask, BoundMask):
        _check_bound(mask, shape, q_start)
        return mask
    if not isinstance(mask, Mask):
        raise AttentionError(
            f"attention: the mask is {describe_type(mask)}. Pass a maskwright mask; "
            "wrap an array in mw.dense(...)."
        )
    batch, heads, q_len, kv_len = shape
    try:
        return mask.bound_to(q_len, kv_len, batch, heads, q_start)
    except FrameError as error:
        problem = str(error).partition(". ")[0].removeprefix("on: ").rstrip(".")
        raise FrameError(
            f"attention: {problem}. q and k have batch {batch}, {heads} heads, "
            f"{q_len} queries and {kv_len} keys; pass a mask whose data has these sizes."
        ) from None
    except ArgumentError as error:  # of q_start
        raise AttentionError(f"attention: {str(error).removeprefix('on: ')}") from None


def _check_bound(bound: BoundMask, shape: tuple[int, int, int, int], q_start: int | None) -> None:
    batch, heads, q_len, kv_len = shape
    planes, frame = bound.shape, bound.frame
    if (frame.q_len, frame.kv_len) != (q_len, kv_len):
        raise FrameError(
            f"attention: the mask is bound to {frame.q_len} queries and {frame.kv_len} keys, but "
            f"q and k have {q_len} and {kv_len}. Bind it to those, or pass the mask unbound."
        )
    if planes[0] not in (1, batch) or planes[1] not in (1, heads):
        raise FrameError(
            f"attention: the mask has batch {planes[0]} and {planes[1]} heads, but q has {batch} "
            f"and {heads}. Bind it to those, or to 1 where it is shared."
        )
    if q_start is not None and q_start != frame.q_start:
        raise FrameError(
            f"attention: q_start={q_start}, but the mask is bound with q_start={frame.q_start}. "
            "Leave q_start out, or pass the mask unbound."
        )
