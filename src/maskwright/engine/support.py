"""What a backend supports of a call, as data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Callable

    from maskwright.engine.call import Call


MAX_GRAPH_INTERVALS: Final = 4  # per row, of masks in FlexAttention in a graph


@dataclass(frozen=True)
class Support:
    """The calls that a backend can compute.

    Attributes:
        devices: Types of devices; empty for any.
        place: The same in words, for messages.
        dtypes: Names of dtypes; empty for any.
        head_dims: Smallest and largest head_dim of q and v; None for any.
        max_terms: The largest number of bias terms, or None.
        dropout: Whether it has dropout.
        softcap: Whether it has a soft cap.
        sinks: Whether it has sinks.
        lse: Whether it returns the logsumexp.
        backward: Whether it has a backward pass that is called with saved tensors. Graphs and partial
            results need one; autograd of PyTorch differentiates a backend without one.
        further: The reason why it cannot compute a call for which the rest holds, or None.
    """

    devices: tuple[str, ...] = ()
    place: str = ""
    dtypes: tuple[str, ...] = ()
    head_dims: tuple[int, int] | None = None
    max_terms: int | None = None
    dropout: bool = True
    softcap: bool = True
    sinks: bool = True
    lse: bool = True
    backward: bool = True
    further: Callable[[Call], str | None] | None = None


def find_problem(call: Call, support: Support) -> str | None:
    """The reason why a backend cannot compute a call, to follow its name; or None."""
    if support.devices and call.device not in support.devices:
        return f"runs on {support.place}, and the tensors are on {call.device}"
    for dtype in call.dtypes:
        if support.dtypes and dtype not in support.dtypes:
            return f"supports {', '.join(support.dtypes)}, and the tensors are {dtype}"
    if support.head_dims is not None:
        low, high = support.head_dims
        dims = (call.shape.head_dim, call.shape.v_head_dim)
        if not (low <= min(dims) and max(dims) <= high):
            return f"supports head_dim {low} to {high}, and q and v have {dims[0]} and {dims[1]}"
    if call.dropout_p and not support.dropout:
        return f"has no dropout, and dropout_p is {call.dropout_p}"
    scores = call.scores
    if not (support.softcap or scores.softcap is None):
        return f"has no soft cap, and softcap is {scores.softcap}"
    if not (support.sinks or scores.sinks is None):
        return "has no sinks, and sinks is not None"
    if support.max_terms is not None and len(scores.terms) > support.max_terms:
        return f"supports {support.max_terms} bias terms, and there are {len(scores.terms)}"
    if call.return_lse and not support.lse:
        return "has no logsumexp, and return_lse is True"
    problem = None if support.further is None else support.further(call)
    if problem is None and call.calls_backward and not support.backward:
        problem = "has no backward pass that is called with saved tensors"
    return problem
