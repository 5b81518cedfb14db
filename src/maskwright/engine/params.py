"""The parameters of one attention call, and what its backward pass needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask

DTYPES: Final = ("float32", "bfloat16", "float16", "float64")
IMPLS: Final = ("auto", "native", "blocks", "sdpa", "flex", "triton", "reference")


class AttentionOptions(NamedTuple):
    """The keyword arguments of `attention`, as the caller passed them."""

    scale: float | None = None
    dropout_p: float = 0.0
    enable_gqa: bool = False
    q_start: int | None = None
    impl: str = "auto"
    return_lse: bool = False


class AttentionShape(NamedTuple):
    """The sizes of q (batch, heads, q_len, head_dim), k and v (batch, kv_heads, kv_len, ...)."""

    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    v_head_dim: int


@dataclass(frozen=True)
class AttentionParams:
    """Everything that one attention call depends on, besides the values of q, k and v.

    Attributes:
        mask: The bound mask. It is 1 along batch or heads where it is shared.
        shape: The sizes of q, k and v.
        scale: Factor of the scores q · k.
        dtype: Name of the dtype of q, k and v, such as "bfloat16".
        device: Type of their device, such as "cpu".
        dropout_p: Probability with which a softmax weight is dropped.
        seed: Seed of the dropout mask. Not used if `dropout_p` is 0.
        impl: Name of the backend, or "auto".
        return_lse: Whether the caller wants the logsumexp.
        requires_grad: Whether a backward pass may follow.
        explicit_backward: Whether the caller runs the backward pass itself, with saved tensors, as
            compiled graphs and partial results do; else autograd does.
    """

    mask: BoundMask
    shape: AttentionShape
    scale: float
    dtype: str = "float32"
    device: str = "cpu"
    dropout_p: float = 0.0
    seed: int = 0
    impl: str = "auto"
    return_lse: bool = False
    requires_grad: bool = False
    explicit_backward: bool = False


class Saved(NamedTuple):
    """The tensors that the forward pass saves for the backward pass."""

    q: Any
    k: Any
    v: Any
    out: Any
    lse: Any
