"""The bias of a block of cells, and its gradient, on PyTorch operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from maskwright.bias.terms import Positions, TensorTerm, cell_index

if TYPE_CHECKING:
    from maskwright.bias.scores import Scores


class BlockBias:
    """The values of all bias terms in a block of cells.

    Args:
        scores: The terms.
        positions: Positions of all queries and keys of the call.
        indices: Indices of the query rows and the keys of the block.
        device: The device of the values.
    """

    def __init__(
        self, scores: Scores, positions: Positions, indices: Positions, device: Any
    ) -> None:
        self.scores = scores
        self.rows, self.keys = (torch.from_numpy(x).to(device) for x in indices)
        block_positions = Positions(positions.rows[indices.rows], positions.keys[indices.keys])
        self.cells = [  # which of the flattened values each cell has
            None
            if isinstance(x, TensorTerm)
            else torch.from_numpy(cell_index(x, block_positions)).to(device)
            for x in scores.terms
        ]

    def sum(self, dtype: torch.dtype) -> Any:
        """The sum of the terms, broadcastable to (batch, heads, rows, keys); 0.0 without terms."""
        total: Any = 0.0
        for term, cells in zip(self.scores.terms, self.cells, strict=True):
            part = term.values
            if cells is not None:
                part = part.flatten(1)[:, cells]
            else:
                for axis, index in ((2, self.rows), (3, self.keys)):
                    part = part if part.shape[axis] == 1 else part.index_select(axis, index)
            total = total + part.to(dtype)
        return total

    def add_gradients(self, ds: Any, grads: list[Any]) -> None:
        """Add the gradient of the scores, (batch, heads, rows, keys), to those of the values."""
        for grad, cells, learnable in zip(grads, self.cells, self.scores.learnable, strict=True):
            if not learnable:
                continue
            if cells is None:
                sizes = (
                    *grad.shape[:2],
                    *(ds.shape[n] if grad.shape[n] != 1 else 1 for n in (2, 3)),
                )
                part = ds.sum_to_size(sizes)
                rows = self.rows if grad.shape[2] != 1 else self.rows.new_zeros(1)
                keys = self.keys if grad.shape[3] != 1 else self.keys.new_zeros(1)
                grad[:, :, rows[:, None], keys] += part
            else:
                by_head = ds.sum(0) if grad.shape[0] != 1 else ds.sum((0, 1)).unsqueeze(0)
                grad.flatten(1).index_add_(1, cells.flatten(), by_head.flatten(1))
