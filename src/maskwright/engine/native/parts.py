"""A long call as several: between two of them Python looks whether somebody wants to stop."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from maskwright.engine.native.layout import FLOAT32

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maskwright.engine.native.layout import Given, Strided

MOST: Final = 10**11  # multiplications of one call: some seconds on one core


def parts_of(given: Given, cells: int) -> Iterator[Given]:
    """The same call by batch rows and key heads, so that each part is short; `cells` are all seen."""
    batch, heads, key_heads, *_, dim, value_dim, _, _ = given.sizes
    calls = -(-cells * (dim + value_dim) // MOST)
    if calls <= 1:
        yield given
        return
    size = max(1, batch * key_heads // calls)
    group = heads // key_heads
    for b in range(batch):
        for first in range(0, key_heads, size):
            yield _part(given, b, first, min(size, key_heads - first), group)


def _part(given: Given, b: int, first: int, count: int, group: int) -> Given:
    """One batch row, and `count` key heads from `first` on with their query heads."""
    _, heads, _, rows, *rest = given.sizes
    head = first * group
    bytes_a_number = 4 if given.sizes[7] == FLOAT32 else 2
    planes, span_heads, offsets, *ends = given.spans
    plane = (b if planes > 1 else 0) * span_heads + (head if span_heads > 1 else 0)

    def moved(x: Strided, head: int) -> Strided:
        address, batch, apart, row = x
        return address + bytes_a_number * (b * batch + head * apart), batch, apart, row

    def row_numbers(address: int) -> int:
        return address and address + 4 * (b * heads + head) * rows

    return given._replace(
        sizes=(1, count * group, count, rows, *rest),
        spans=(1, span_heads, offsets + 8 * plane * rows, *ends),
        lse=row_numbers(given.lse),
        grad_lse=row_numbers(given.grad_lse),
        q=moved(given.q, head),
        k=moved(given.k, first),
        v=moved(given.v, first),
        out=moved(given.out, head),
        grad=moved(given.grad, head),
        dq=moved(given.dq, head),
        dk=moved(given.dk, first),
        dv=moved(given.dv, first),
    )
