"""The position bias of a transformers layer: as values per distance where it has that structure.

T5 computes a tensor (1, heads, queries, keys) in its first layer and passes it to all others. Each
of its diagonals is constant, so one value per head and distance is enough. This is verified once
per tensor. A bias with another structure is passed to the engine unchanged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import torch

from maskwright._torch_state import has_saved_tensor_hooks
from maskwright.bias.terms import DistanceTerm, dense_terms
from maskwright.integrations.tensor_cache import TensorCache

if TYPE_CHECKING:
    from maskwright.core.frame import Frame

MIN_ROWS_TO_READ = 8  # a bias with fewer rows is passed to the engine unchanged
ROWS_PER_BLOCK = 256  # rows that are compared at once
_DISTANCES: Final = TensorCache()  # values per distance of position biases
T5_GRAPH = ("UnsqueezeBackward0", "PermuteBackward0", "EmbeddingBackward0")


class DistanceBias(NamedTuple):
    """A bias with one value per head and distance.

    It has the methods of the biases of `maskwright.bias` that the engine uses.

    >>> import torch, maskwright as mw
    >>> bias = DistanceBias(torch.tensor([[-1.0, 0.0, 1.0]]))
    >>> bias.dense(mw.causal().on(2).frame).tolist()
    [[[[0.0, 1.0], [-1.0, 0.0]]]]
    """

    values: torch.Tensor  # (heads, queries + keys - 1), beginning with last query and first key

    def lower(self, frame: Frame) -> tuple[DistanceTerm, ...]:
        """The bias as one term."""
        return (DistanceTerm(self.values, frame.q_stop - 1),)

    def dense(self, frame: Frame) -> Any:
        """All added scores, (1, heads, queries, keys)."""
        return dense_terms(self.lower(frame), frame)


class PositionBias(NamedTuple):
    """A position bias as the engine takes it."""

    bias: torch.Tensor | DistanceBias | None  # None if all values are 0
    is_finite: bool = True


def read_position_bias(bias: torch.Tensor) -> PositionBias:
    """The position bias in the form that costs the engine least.

    Args:
        bias: (batch or 1, heads, queries, keys).

    Returns:
        The bias, and whether all its values are finite, which the engine requires.
    """
    if bias.is_inference():  # without a version, which would show that it was written into
        return PositionBias(bias, _is_finite(bias))
    values, is_finite = _DISTANCES.get(bias, torch.is_grad_enabled(), lambda: _read_distances(bias))
    if values is None:
        return PositionBias(bias, is_finite)
    if not values.requires_grad and not values.any():
        return PositionBias(None)
    return PositionBias(DistanceBias(values), is_finite)


def _read_distances(bias: torch.Tensor) -> tuple[torch.Tensor | None, bool]:
    """The values per distance, or None, and whether all are finite. It does not return the bias itself."""
    values = _distance_values(bias)
    return values, _is_finite(bias if values is None else values)


def _distance_values(bias: torch.Tensor) -> torch.Tensor | None:
    """One value per head and distance, differentiable; None if the bias has another structure.

    Equal values are enough if no gradient is needed. Otherwise the cells of a diagonal must be the
    same element of one embedding, so that the gradient of one of them stands for all.
    """
    if bias.ndim != 4 or bias.shape[0] != 1 or bias.shape[2] < MIN_ROWS_TO_READ:
        return None
    if bias.requires_grad and torch.is_grad_enabled():
        indices = _embedding_indices(bias)
        if indices is None or indices.shape != bias.shape[2:] or not _is_toeplitz(indices):
            return None
    elif not _is_toeplitz(bias[0]):
        return None
    return torch.cat([bias[0, :, 1:, 0].flip(1), bias[0, :, 0]], dim=1)  # (heads, distances)


def _embedding_indices(bias: torch.Tensor) -> torch.Tensor | None:
    """The indices (queries, keys) of a bias that T5 looked up in its table; None for others."""
    if has_saved_tensor_hooks():
        return None  # as in gradient checkpointing, where reading them would compute them again
    node: Any = bias.grad_fn
    for name in T5_GRAPH:
        if node is None or node.name() != name:
            return None
        lookup, node = node, node.next_functions[0][0]
    indices: torch.Tensor = lookup._saved_indices
    return indices


def _is_toeplitz(x: torch.Tensor) -> bool:
    """Whether all diagonals of the last two axes are constant."""
    x = x.detach()
    for start in range(0, x.shape[-2] - 1, ROWS_PER_BLOCK):
        rows = x[..., start : start + ROWS_PER_BLOCK + 1, :]
        if not bool((rows[..., 1:, 1:] == rows[..., :-1, :-1]).all()):
            return False
    return True


def _is_finite(x: torch.Tensor) -> bool:
    return bool(x.detach().sum().isfinite()) or bool(x.detach().isfinite().all())
