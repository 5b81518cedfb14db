"""What is handed to C, field by field as in attend.h."""

from __future__ import annotations

from ctypes import Structure, c_double, c_int64, c_void_p

FLOAT32, BFLOAT16, FLOAT16 = 0, 1, 2
DONE, NO_MEMORY, NO_SUCH_ISA = 0, 1, 2
MOST_DIM = 256  # numbers of a head that the kernel has room for


class Tensor(Structure):
    """Where the first number lies, and how far apart batch rows, heads and rows are."""

    _fields_ = (("data", c_void_p), ("batch", c_int64), ("head", c_int64), ("row", c_int64))


class Spans(Structure):
    """The flat spans of some planes."""

    _fields_ = (
        ("batch", c_int64),
        ("heads", c_int64),
        ("offsets", c_void_p),
        ("starts", c_void_p),
        ("stops", c_void_p),
    )


class Attention(Structure):
    """One call."""

    _fields_ = (
        ("batch", c_int64),
        ("heads", c_int64),
        ("key_heads", c_int64),
        ("rows", c_int64),
        ("keys", c_int64),
        ("dim", c_int64),
        ("value_dim", c_int64),
        ("dtype", c_int64),
        ("threads", c_int64),
        ("scale", c_double),
        ("spans", Spans),
        ("q", Tensor),
        ("k", Tensor),
        ("v", Tensor),
        ("out", Tensor),
        ("lse", c_void_p),
        ("grad", Tensor),
        ("dq", Tensor),
        ("dk", Tensor),
        ("dv", Tensor),
        ("grad_lse", c_void_p),
    )
