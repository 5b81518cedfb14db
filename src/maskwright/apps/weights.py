"""The weights of a task while it trains. These are of one process; `weights_over_ranks` has others."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    import torch
    from torch import nn


class Weights:
    """A model's weights, all in this process. Over ranks, all of them call everything together."""

    def __init__(self, model: nn.Module, loss: Callable[[Any], torch.Tensor]) -> None:
        self.model, self._loss = model, loss

    def loss(self, batch: Any) -> torch.Tensor:
        """The loss of a batch that is for this rank."""
        return self._loss(batch)

    def backward(self, loss: torch.Tensor) -> None:
        """Add its gradients to those of the step."""
        loss.backward()

    @contextlib.contextmanager
    def adding_up(self, last: bool) -> Iterator[None]:  # noqa: ARG002 - for those over ranks
        """Inside is one of a step's batches."""
        yield

    @contextlib.contextmanager
    def whole(self) -> Iterator[None]:
        """Inside, every rank has all weights, and may use the model without the others."""
        yield

    def copied(self) -> dict[str, torch.Tensor]:
        """All weights. Where each rank has a part, the main rank alone is given them."""
        return {name: x.detach().clone() for name, x in self.model.state_dict().items()}

    def put(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Take what `copied` gave."""
        self.model.load_state_dict(weights)
