"""Checks of the arguments of `attention`, and the binding of its mask."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from maskwright.core.atoms import everything
from maskwright.core.bound import BoundMask
from maskwright.core.expr import Mask
from maskwright.core.validate import describe_type, read_choice
from maskwright.engine.params import IMPLS, AttentionShape
from maskwright.errors import ArgumentError, AttentionError, FrameError, Unsupported

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maskwright.engine.params import AttentionOptions

EVERYTHING = everything()
MAX_SCALE: Final = 1e30  # of scale and softcap, so that float32 scores can be multiplied by them
MIN_SOFTCAP: Final = 1e-30


def check_tensors(q: Any, k: Any, v: Any, enable_gqa: bool) -> AttentionShape:
    """Check that q, k and v are torch tensors that attention can be computed of.

    Args:
        q: Queries (batch, heads, q_len, head_dim).
        k: Keys (batch, kv_heads, kv_len, head_dim).
        v: Values (batch, kv_heads, kv_len, v_head_dim).
        enable_gqa: Whether kv_heads may be a divisor of heads.

    Returns:
        Their sizes.

    Raises:
        AttentionError: A tensor has the wrong type, shape, dtype or device.
        Unsupported: A tensor subclass or storage that no backend reads.
    """
    import torch

    if not _is_valid(q, k, v, enable_gqa):
        for name, x in (("q", q), ("k", k), ("v", v)):
            _check_tensor(name, x)
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
        check_shapes(q.shape, k.shape, v.shape, enable_gqa)
    if not (type(q) is type(k) is type(v) is torch.Tensor):
        for name, x in (("q", q), ("k", k), ("v", v)):
            check_subclass(name, x)
    batch, heads, q_len, head_dim = q.shape
    return AttentionShape(batch, heads, k.shape[1], q_len, k.shape[2], head_dim, v.shape[3])


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
    others = [size for size in sizes if size != 1]
    if others and all(size == others[0] for size in others):
        return others[:1] * len(sizes)
    return sizes


def _is_valid(q: Any, k: Any, v: Any, enable_gqa: bool) -> bool:
    """One quick pass over everything that is usually right."""
    import torch

    try:
        if q.is_nested or k.is_nested or v.is_nested:
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
    except (AttributeError, TypeError, ValueError):
        return False


def _check_tensor(name: str, x: Any) -> None:
    import torch

    if not isinstance(x, torch.Tensor):
        raise AttentionError(
            f"attention: {name} is {describe_type(x)}. Pass a torch tensor of shape "
            "(batch, heads, length, head_dim)."
        )
    check_layout(name, x)
    if x.dim() != 4:
        raise AttentionError(
            f"attention: {name} has shape {tuple(x.shape)}. "
            "Expected (batch, heads, length, head_dim)."
        )


def check_layout(name: str, x: Any) -> None:
    """Raise for a sparse or nested tensor."""
    import torch

    if x.is_nested or x.layout != torch.strided:
        raise AttentionError(
            f"attention: {name} is a sparse or nested tensor. Pass a strided one, and pad or pack "
            "sequences of different lengths with mw.pad or mw.pack."
        )


def check_shapes(q: Any, k: Any, v: Any, enable_gqa: bool) -> None:
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


def check_subclass(name: str, x: Any) -> None:
    """Raise for tensors whose data is not in a storage of their own."""
    import torch
    from torch.utils._python_dispatch import is_traceable_wrapper_subclass

    if type(x) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer):
        return
    if is_traceable_wrapper_subclass(x) or _is_opaque(x):
        kind = type(x).__name__
        fix = (
            "its local tensor, x.to_local(), or use maskwright.parallel"
            if kind == "DTensor"
            else "the plain tensor that it wraps"
        )
        raise Unsupported(
            f"attention: {name} is a {kind}, whose data is in other tensors. Pass {fix}.",
            target="attention",
        )


def _is_opaque(x: Any) -> bool:
    """Whether a subclass without `__tensor_flatten__` has no memory that a kernel can read."""
    import torch
    from torch._subclasses.fake_tensor import is_fake

    if torch.compiler.is_compiling() or torch._C._len_torch_dispatch_stack() or x.is_meta:
        return False
    if not x.numel() or is_fake(x):
        return False
    try:
        return not x.data_ptr() and x.untyped_storage().nbytes() > 0
    except RuntimeError:
        return True


def check_storage(*tensors: Any) -> None:
    """Raise for a tensor whose storage was freed, as by FSDP or `resize_(0)`."""
    from torch._C._functorch import is_functorch_wrapped_tensor

    for x in tensors:
        if is_functorch_wrapped_tensor(x) or x._is_zerotensor():  # they have none of their own
            continue
        if x.numel() and not x.untyped_storage().nbytes():
            raise Unsupported(
                f"attention: a tensor of shape {tuple(x.shape)} has an empty storage: its memory was "
                "freed. Pass tensors with allocated storage, and keep it until the backward pass.",
                target="attention",
            )


def check_arrays(q: Any, k: Any, v: Any, enable_gqa: bool) -> AttentionShape:
    """Check numpy arrays, as `check_tensors` checks tensors; float32 or float16."""
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
    check_shapes(q.shape, k.shape, v.shape, enable_gqa)
    batch, heads, q_len, head_dim = q.shape
    return AttentionShape(batch, heads, k.shape[1], q_len, k.shape[2], head_dim, v.shape[3])


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
        AttentionError: `scale`, `softcap`, `dropout_p` or `impl` is invalid.
    """
    scale, softcap, dropout_p = options.scale, options.softcap, options.dropout_p
    if scale is not None and not (isinstance(scale, (int, float)) and abs(scale) <= MAX_SCALE):
        learnable = " Multiply q by a scale that needs a gradient." if _learns(scale) else ""
        raise AttentionError(
            f"attention: scale is {_describe_number(scale)}. Pass a finite number between -{MAX_SCALE} and "
            f"{MAX_SCALE}, or None for 1 / sqrt(head_dim).{learnable}"
        )
    if softcap is not None and not (
        isinstance(softcap, (int, float)) and MIN_SOFTCAP <= softcap <= MAX_SCALE
    ):
        raise AttentionError(
            f"attention: softcap is {_describe_number(softcap)}. Pass a positive number between "
            f"{MIN_SOFTCAP} and {MAX_SCALE}, or None for no soft cap."
        )
    if not isinstance(dropout_p, (int, float)) or not 0.0 <= dropout_p <= 1.0:
        raise AttentionError(
            f"attention: dropout_p is {_describe_number(dropout_p)}. Expected a number p with 0 <= p <= 1."
        )
    if options.impl not in IMPLS:
        read_choice(options.impl, "attention: impl", IMPLS, AttentionError)


def _describe_number(value: Any) -> str:
    """A number, or the type of what is no Python number; an integer of many digits as its size."""
    if isinstance(value, int) and abs(value) > 10**40:
        return f"an integer of {value.bit_length()} bits"
    return repr(value) if isinstance(value, (int, float, str)) else describe_type(value)


def _learns(value: Any) -> bool:
    """Whether reverse or forward mode differentiates a tensor."""
    if not hasattr(value, "requires_grad"):
        return False
    from torch.autograd import forward_ad

    if value.requires_grad or forward_ad._current_level < 0:
        return bool(value.requires_grad)
    from maskwright.engine.tangents import has_tangent

    return has_tangent(value)


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
