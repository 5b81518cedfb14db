"""What is handed to C: the fields of `Attention` in attend.h, one after the other, 8 bytes each."""

from __future__ import annotations

from struct import Struct
from typing import Final, NamedTuple

FLOAT32, BFLOAT16, FLOAT16 = 0, 1, 2
DONE, NO_MEMORY, NO_SUCH_ISA = 0, 1, 2
MOST_DIM: Final = 256  # numbers of a head that the kernel has room for

Strided = tuple[int, int, int, int]  # address, and what batch rows, heads and rows are apart
NOTHING: Final[Strided] = (0, 0, 0, 0)

SIZES: Final = "9q"  # batch, heads, key_heads, rows, keys, dim, value_dim, dtype, threads
SPANS: Final = "5q"  # batch, heads, and the addresses of offsets, starts and stops
ATTENTION: Final = Struct(f"={SIZES}d{SPANS}16qq16q2q")


class Given(NamedTuple):
    """One call, in the order of the fields."""

    sizes: tuple[int, ...]
    scale: float
    spans: tuple[int, ...]
    q: Strided
    k: Strided
    v: Strided
    out: Strided
    lse: int
    grad: Strided = NOTHING
    dq: Strided = NOTHING
    dk: Strided = NOTHING
    dv: Strided = NOTHING
    grad_lse: int = 0
    binary: bool = False

    def packed(self) -> bytes:
        """As C reads it."""
        return ATTENTION.pack(
            *self.sizes,
            self.scale,
            *self.spans,
            *(*self.q, *self.k, *self.v, *self.out, self.lse),
            *(*self.grad, *self.dq, *self.dk, *self.dv, self.grad_lse, self.binary),
        )
