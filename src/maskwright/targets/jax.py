"""jax: keyword arguments of jax.nn.dot_product_attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from maskwright.errors import ArgumentError
from maskwright.targets.code import mask_code
from maskwright.targets.facts import EmptyRows, band, check_empty_rows, first_true, rows, seen_keys
from maskwright.targets.target import LeavesEmpty, Target

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask
    from maskwright.core.validate import BoolArray, IntArray

TARGET = Target(
    name="jax",
    gives="mask, or is_causal, local_window_size and sequence lengths",
    says="every mask whose empty rows come last",
    polarity="True keeps",
    shape="(B or 1, H or 1, T, S), or no array",
    alignment="the frame's; is_causal and local_window_size are upper left",
    empty_rows="uniform over all keys; rows at the end become zero by query_seq_lengths",
    reads="keep",
    needs="jax",
    instead=("torch.sdpa", "torch.flex"),
)


def lower(
    bound: BoundMask, *, device: Any = None, empty_rows: EmptyRows = "zero"
) -> dict[str, Any]:
    """Flags and lengths where they are exactly equal; else a mask, with lengths for empty rows."""
    import jax
    import jax.numpy as jnp

    _check_device(device)
    check_empty_rows(bound, empty_rows, gives_zero=True)
    queries = _query_lengths(bound, strict=empty_rows == "zero")
    flags = _flags(bound, queries) if queries is not None else None
    if flags is None:
        flags = {"mask": bound.dense()}
        if queries is not None and bool((queries < bound.frame.q_len).any()):
            flags["query_seq_lengths"] = _for_batch(queries, bound)
    with jax.default_device(device):
        return {
            name: jnp.asarray(value) if isinstance(value, np.ndarray) else value
            for name, value in flags.items()
        }


def usage(bound: BoundMask, given: dict[str, Any]) -> list[str]:
    """The lines that call it, with q, k, v of (batch, length, heads, head_dim)."""
    lines, names = ["import jax"], []
    if "mask" in given:
        lines += mask_code(bound, "jnp")
    elif any(hasattr(value, "tolist") for value in given.values()):
        lines.append("import jax.numpy as jnp")
    if not lines[-1].startswith("mask"):
        lines.append("")
    for name, value in given.items():
        if name == "mask":
            names.append("mask=mask")
        elif hasattr(value, "tolist"):
            lines.append(f"{name} = jnp.array({value.tolist()}, dtype=jnp.int32)")
            names.append(f"{name}={name}")
        else:
            names.append(f"{name}={value}")
    call = ", ".join(["q", "k", "v", *names])
    told = "True keeps" if "mask" in given else "counted from the upper left"
    return [*lines, f"output = jax.nn.dot_product_attention({call})  # {told}"]


def _check_device(device: Any) -> None:
    import jax

    try:
        with jax.default_device(device):
            jax.numpy.zeros(())
    except (ValueError, TypeError, RuntimeError, AttributeError) as error:
        raise ArgumentError(
            f"lower: device={device!r} is none of jax's here. Give one of jax.devices()."
        ) from error


def _query_lengths(bound: BoundMask, *, strict: bool) -> IntArray | None:
    """(B or 1,): how many rows there are before those at the end that see nothing.

    None where another row sees nothing too; if strict, that is refused.
    """
    seen: BoolArray = np.logical_not(bound.spans.empty_rows())
    some: BoolArray = np.any(seen, axis=1)  # over heads
    last = (
        some.shape[1] - np.argmax(some[:, ::-1], axis=1) if some.shape[1] else np.zeros(len(some))
    )
    lengths = np.where(some.any(axis=1), last, 0).astype(np.int64)
    inside = np.arange(seen.shape[2]) < lengths[:, None, None]
    row = first_true(~seen & inside)
    if row is not None and strict:
        raise LeavesEmpty(*row)
    return lengths if row is None else None


def _flags(bound: BoundMask, queries: IntArray) -> dict[str, Any] | None:
    """Arguments that say the mask without an array of its cells, or None."""
    spans, kv_len = bound.spans, bound.frame.kv_len
    if spans.shape[1] != 1 or bool((np.diff(spans.offsets) > 1).any()):
        return None
    shown = seen_keys(bound)
    last = kv_len - np.argmax(shown[:, ::-1], axis=1) if kv_len else np.zeros(len(shown))
    seen = np.where(shown.any(axis=1), last, 0).astype(np.int64)
    every = np.full_like(seen, kv_len)
    found = _window_flags(bound, queries, every)  # key lengths only where they are needed
    return _window_flags(bound, queries, seen) if found is None else found


def _window_flags(bound: BoundMask, queries: IntArray, keys: IntArray) -> dict[str, Any] | None:
    """The same, if so many queries and keys of each sequence take part."""
    spans, (q_len, kv_len) = bound.spans, bound.shape[2:]
    here, stop = rows(bound), keys[:, None, None]
    real = here < queries[:, None, None]
    low, high = np.zeros((2, *spans.shape), np.int64)
    held = ~spans.empty_rows()
    low[held], high[held] = spans.starts, spans.stops
    ahead, back = ((high - 1 - here)[real & (high < stop)], (here - low)[real & (low > 0)])
    right = int(ahead.max()) if ahead.size else None
    left = int(back.max()) if back.size else None
    if min(right or 0, left or 0) < 0:
        return None
    first = here - left if left is not None else here * 0
    after = here + right + 1 if right is not None else np.full_like(here, kv_len)
    said = band(bound, np.broadcast_to(first, spans.shape), np.minimum(after, stop))
    assert said.band is not None
    low, high = said.band
    if spans != band(bound, low, np.where(real, high, low)):
        return None
    flags: dict[str, Any] = {}
    if right == 0:
        flags["is_causal"] = True
    if left is not None or right not in (None, 0):
        window = (q_len if left is None else left, kv_len if right is None else right)
        flags["local_window_size"] = window
    if bool((queries < q_len).any()):
        flags["query_seq_lengths"] = _for_batch(queries, bound)
    if bool((keys < kv_len).any()):
        flags["key_value_seq_lengths"] = _for_batch(keys, bound)
    return flags


def _for_batch(lengths: IntArray, bound: BoundMask) -> Any:
    return np.broadcast_to(lengths, (bound.frame.batch,)).astype(np.int32)
