"""How the next token is drawn from its logits."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from maskwright.errors import ArgumentError


@dataclass(frozen=True)
class Sampling:
    """Temperature 0 takes the likeliest; `top_k` and `top_p` draw from the likeliest few only.

    >>> from maskwright.models.sampling import Sampling
    >>> Sampling(temperature=0.8, top_k=20, seed=1)
    Sampling(temperature=0.8, top_k=20, top_p=None, seed=1)
    >>> Sampling(seed=1).generator(torch.device("cpu")).initial_seed()
    1
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ArgumentError(
                f"temperature={self.temperature} is negative. Give 0 for the likeliest, or more."
            )
        if self.top_k is not None and self.top_k < 1:
            raise ArgumentError(f"top_k={self.top_k} leaves nothing to draw. Give 1 or more.")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ArgumentError(f"top_p={self.top_p} is no share. Give more than 0, at most 1.")

    def generator(self, device: torch.device) -> torch.Generator | None:
        """A source of random numbers of its own, where there is a seed."""
        if self.seed is None:
            return None
        return torch.Generator(device).manual_seed(self.seed)


def sample(
    logits: torch.Tensor, how: Sampling, generator: torch.Generator | None = None
) -> torch.Tensor:
    """A token for each row: (B, vocabulary) → (B,).

    >>> import torch
    >>> from maskwright.models.sampling import Sampling, sample
    >>> sample(torch.tensor([[0.0, 3.0, 1.0]]), Sampling(temperature=0)).tolist()
    [1]
    """
    if how.temperature == 0:
        return logits.argmax(dim=-1)
    logits = logits.float() / how.temperature
    if how.top_k is not None and how.top_k < logits.shape[-1]:
        least = logits.topk(how.top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if how.top_p is not None:
        logits = _likeliest(logits, how.top_p)
    chosen: torch.Tensor = torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
    return chosen


def _likeliest(logits: torch.Tensor, share: float) -> torch.Tensor:
    """The fewest tokens that have that share of the probability between them."""
    ordered, order = logits.sort(dim=-1, descending=True)
    chances = ordered.softmax(-1)
    beyond = chances.cumsum(-1) - chances >= share  # what comes before it is enough already
    return logits.masked_fill(torch.zeros_like(beyond).scatter(-1, order, beyond), -torch.inf)
