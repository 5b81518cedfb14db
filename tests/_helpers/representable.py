"""Deciders: whether a target can represent a mask at all, from its dense cells alone.

Each is a plain search or count that shares nothing with the code that lowers, so that an
unnecessary refusal fails.
"""

from __future__ import annotations

from itertools import pairwise, product
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def empty(allowed: np.ndarray) -> np.ndarray:
    return ~allowed.any(axis=3)


def has_no_empty_row(allowed: np.ndarray) -> bool:
    return not bool(empty(allowed).any())


def heads_are_equal(allowed: np.ndarray) -> bool:
    return bool((allowed == allowed[:, :1]).all())


def jax(allowed: np.ndarray) -> bool:
    """Fully masked rows are zero only if they are the last rows of a sequence, in all heads."""
    for sequence in empty(allowed):  # (H, T)
        rows = sequence.T.tolist()
        while rows and all(rows[-1]):
            rows.pop()
        if any(any(row) for row in rows):
            return False
    return True


def hf(allowed: np.ndarray, q_start: int) -> bool:
    """A fully masked row is harmless if no query attends to its own token."""
    keys = allowed.shape[3]
    for b, _, q in np.argwhere(empty(allowed)):
        place = q + q_start
        if not 0 <= place < keys or bool(allowed[b, :, :, place].any()):
            return False
    return True


def flashmask(allowed: np.ndarray) -> bool:
    """Each key may be masked for two ranges of queries."""
    for b, h, k in np.ndindex(allowed.shape[0], allowed.shape[1], allowed.shape[3]):
        seen = "".join("1" if cell else "0" for cell in allowed[b, h, :, k])
        if len([stretch for stretch in seen.split("1") if stretch]) > 2:
            return False
    return True


def splash(allowed: np.ndarray) -> bool:
    """No row is fully masked, and the mask is one mask per head with segments per sequence."""
    if not has_no_empty_row(allowed):
        return False
    shared = allowed.any(axis=0)
    for cells in allowed:
        queries, keys = groups(cells.any(axis=0))
        same = np.equal(np.array(queries)[:, None], np.array(keys)[None, :])
        if bool((cells != (shared & same)).any()):
            return False
    return True


def splash_by_brute_force(allowed: np.ndarray) -> bool:
    """The same, by trying every partition."""
    if not has_no_empty_row(allowed):
        return False
    t, s = allowed.shape[2:]
    shared = allowed.any(axis=0)  # a larger mask would only be harder to part
    return all(
        any(
            np.array_equal(cells, shared & np.equal.outer(partition[:t], partition[t:]))
            for partition in partitions(t + s)
        )
        for cells in allowed
    )


def partitions(count: int) -> Iterator[np.ndarray]:
    """Every way to put things into groups."""

    def grow(done: list[int]) -> Iterator[np.ndarray]:
        if len(done) == count:
            yield np.array(done)
            return
        for group in range(max(done, default=-1) + 2):
            yield from grow([*done, group])

    return grow([])


def groups(cells: np.ndarray) -> tuple[list[int], list[int]]:
    """Rows and keys that are joined by cells, directly or not, have the same number."""
    t, s = cells.shape
    number = list(range(t + s))
    changed = True
    while changed:
        changed = False
        for q, k in np.argwhere(cells):
            low = min(number[q], number[t + k])
            changed = changed or number[q] != low or number[t + k] != low
            number[q] = number[t + k] = low
    return number[:t], number[t:]


def flash_varlen(allowed: np.ndarray) -> bool:
    """Segments are groups of joined tokens, each without a gap; then every window is tried."""
    if not heads_are_equal(allowed) or 0 in allowed.shape:
        return heads_are_equal(allowed)
    cells = end_to_end(allowed)
    parts = segments(cells)
    widest = range(sum(cells.shape) + 1)
    return parts is not None and any(
        all(
            np.array_equal(cells[q0:q1, k0:k1], windowed(q1 - q0, k1 - k0, back, ahead))
            for q0, q1, k0, k1 in parts
        )
        for back, ahead in product(
            candidates(cells, parts, widest, "back"), candidates(cells, parts, widest, "ahead")
        )
    )


def end_to_end(allowed: np.ndarray) -> np.ndarray:
    b, _, t, s = allowed.shape
    cells = np.zeros((b, t, b, s), np.bool_)
    for i in range(b):
        cells[i, :, i] = allowed[i, 0]
    return cells.reshape(b * t, b * s)


def windowed(queries: int, keys: int, back: int | None, ahead: int | None) -> np.ndarray:
    place = np.arange(queries)[:, None] + keys - queries
    key = np.arange(keys)[None, :]
    low = key >= place - back if back is not None else key >= 0
    return low & (key <= place + ahead if ahead is not None else key >= 0)


def segments(cells: np.ndarray) -> list[tuple[int, int, int, int]] | None:
    """Ranges of queries and keys that are connected; None if two of them interleave."""
    queries, keys = groups(cells)
    parts = []
    for name in sorted({queries[q] for q in np.flatnonzero(cells.any(axis=1))}):
        rows = [q for q, mine in enumerate(queries) if mine == name]
        cols = [k for k, mine in enumerate(keys) if mine == name]
        parts.append((rows[0], rows[-1] + 1, cols[0], cols[-1] + 1))
    for (_, q_stop, _, k_stop), (q_start, _, k_start, _) in pairwise(parts):
        if q_start < q_stop or k_start < k_stop:
            return None
    return parts


def candidates(
    cells: np.ndarray, parts: list[tuple[int, int, int, int]], widest: range, side: str
) -> list[int | None]:
    """The limits that some row of some segment could have; no limit is always one."""
    found: set[int] = set()
    for q0, q1, k0, k1 in parts:
        for q, row in enumerate(cells[q0:q1, k0:k1]):
            seen = np.flatnonzero(row)
            place = q + (k1 - k0) - (q1 - q0)
            found.add(
                int(place - seen[0] if side == "back" else seen[-1] - place) if len(seen) else 0
            )
    return [None, *(n for n in sorted(found) if n in widest)]


def flash_varlen_by_brute_force(allowed: np.ndarray) -> bool:
    """Every pair of cu_seqlens and every window: for tiny masks only."""
    if not heads_are_equal(allowed) or 0 in allowed.shape:
        return heads_are_equal(allowed)
    cells = end_to_end(allowed)
    limits = [None, *range(max(cells.shape))]
    return any(reaches_the_end(cells, *window) for window in product(limits, limits))


def reaches_the_end(cells: np.ndarray, back: int | None, ahead: int | None) -> bool:
    """Whether any valid segments lead from the first corner to the last one."""
    queries, keys = cells.shape
    reached = {(0, 0)}
    for q0, k0 in product(range(queries + 1), range(keys + 1)):
        if (q0, k0) not in reached:
            continue
        for q1, k1 in product(range(q0, queries + 1), range(k0, keys + 1)):
            alone = cells[q0:q1, k0:k1].sum()
            if cells[q0:q1].sum() != alone or cells[:, k0:k1].sum() != alone:
                continue
            if np.array_equal(cells[q0:q1, k0:k1], windowed(q1 - q0, k1 - k0, back, ahead)):
                reached.add((q1, k1))
    return (queries, keys) in reached


def onnx(allowed: np.ndarray, representation: str, opset: int, past_len: int) -> bool:
    """Every value of the attributes, and for each sequence every length."""
    _b, _h, t, s = allowed.shape
    if not heads_are_equal(allowed):
        return False
    sides = [-1, *range(max(t + past_len, s) + 1)]
    unlimited = [(-1, -1)]
    windows = list(product(sides, sides))
    if representation == "is_causal":
        return bool((allowed == onnx_cells(t, s, past_len, s, (-1, 0))).all())
    if representation == "window":
        return any(
            bool((allowed == onnx_cells(t, s, past_len, s, window)).all()) for window in windows
        )
    assert representation == "nonpad_kv_seqlen"
    if past_len:
        return False
    return any(
        all(
            any(
                bool((cells == onnx_cells(t, s, length - t, length, window)).all())
                for length in range(s + 1)
            )
            for cells in allowed
        )
        for window in (windows if opset >= 25 else [*unlimited, (-1, 0)])
    )


def onnx_cells(t: int, s: int, offset: int, length: int, window: tuple[int, int]) -> np.ndarray:
    """One sequence: is_causal is the same as a right window of 0."""
    position, key = np.arange(t)[:, None] + offset, np.arange(s)[None, :]
    cells = np.broadcast_to(key < length, (t, s))
    cells = cells & (key >= position - window[0]) if window[0] >= 0 else cells
    return cells & (key <= position + window[1]) if window[1] >= 0 else cells


def always(_: np.ndarray) -> bool:
    return True


# The other targets represent every mask, except:
# "hf" needs to know where the queries sit, and "torch.transformer" takes three masks.
CAN_REPRESENT: dict[str, Callable[[np.ndarray], bool]] = {
    "flash.varlen": flash_varlen,
    "jax": jax,
    "jax.splash": splash,
    "keras": has_no_empty_row,
    "flashmask": flashmask,
    "magi": heads_are_equal,
    "flashinfer": heads_are_equal,
}
