"""The parameters of one attention call, and what its backward pass needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask

DTYPES: Final = ("float32", "bfloat16", "float16", "float64")
IMPLS: Final = ("auto", "native", "blocks", "sdpa", "flex", "reference")


class AttentionOptions(NamedTuple):
    """The keyword arguments of `attention`, as the caller passed them."""

    scale: float | None = None
    dropout_p: float = 0.0
    enable_gqa: bool = False
    q_start: int | None = None
    impl: str = "auto"
    return_lse: bool = False
    softcap: float | None = None
    bias: Any = None
    sinks: Any = None


class AttentionShape(NamedTuple):
    """The sizes of q (batch, heads, q_len, head_dim), k and v (batch, kv_heads, kv_len, ...)."""

    batch: int
    heads: int
    kv_heads: int
    q_len: int
    kv_len: int
    head_dim: int
    v_head_dim: int


class TermIndex(NamedTuple):
    """How the values of one bias term are indexed; `ScoreTensors` holds the values.

    Attributes:
        kind: "distance": values (heads or 1, distances), index k - q + zero of absolute positions.
            "grid": values (heads or 1, 2 * height - 1, 2 * width - 1), see `GridTerm`.
            "tensor": values (batch or 1, heads or 1, q_len or 1, kv_len or 1).
        zero: Index of distance 0.
        height: Rows of the grid.
        width: Columns of the grid.
        requires_grad: Whether the backward pass computes the gradient of the values.
    """

    kind: str
    zero: int = 0
    height: int = 0
    width: int = 0
    requires_grad: bool = False


class Positions(NamedTuple):
    """Absolute positions of the queries and keys of a call, both ascending int64 arrays."""

    rows: Any
    keys: Any


class ScoreTensors(NamedTuple):
    """The tensors of an attention call besides q, k and v.

    Attributes:
        values: The values of each bias term, in the order of `AttentionParams.terms`.
        sinks: One logit per head, (heads,), or None.
    """

    values: tuple[Any, ...] = ()
    sinks: Any = None


@dataclass(frozen=True)
class AttentionParams:
    """Everything that one attention call depends on, besides the values of its tensors.

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
        softcap: The scores become softcap * tanh(scores / softcap) before a bias is added, or None.
        terms: How the values of each bias term are indexed.
        has_sinks: Whether a sink of each head joins the denominator of the softmax.
        positions: Positions of queries and keys, for the terms of kind "distance" and "grid"; those
            of the mask's frame if None.
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
    softcap: float | None = None
    terms: tuple[TermIndex, ...] = ()
    has_sinks: bool = False
    positions: Positions | None = None

    @property
    def changes_scores(self) -> bool:
        """Whether there is a soft cap, a bias or a sink."""
        return self.softcap is not None or bool(self.terms) or self.has_sinks


class Saved(NamedTuple):
    """The tensors that the forward pass saves for the backward pass."""

    q: Any
    k: Any
    v: Any
    out: Any
    lse: Any
    scores: ScoreTensors = ScoreTensors()
