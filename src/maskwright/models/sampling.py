"""Sampling of the next token with temperature, top-k and top-p."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from maskwright.errors import ArgumentError


@dataclass(frozen=True)
class SamplingParams:
    """Parameters of sampling.

    Args:
        temperature: Divides the logits; 0 chooses the most likely token.
        top_k: Sample from the `top_k` most likely tokens only.
        top_p: Sample from the fewest tokens whose probabilities add up to `top_p` only.
        seed: Seed of the random numbers; None uses PyTorch's global generator.

    Raises:
        ArgumentError: A value is out of range.

    >>> from maskwright.models.sampling import SamplingParams
    >>> SamplingParams(temperature=0.8, top_k=20, seed=1)
    SamplingParams(temperature=0.8, top_k=20, top_p=None, seed=1)
    >>> SamplingParams(seed=1).generator(torch.device("cpu")).initial_seed()
    1
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        if self.temperature < 0:
            raise ArgumentError(f"temperature={self.temperature}: expected 0 or more.")
        if self.top_k is not None and self.top_k < 1:
            raise ArgumentError(f"top_k={self.top_k}: expected 1 or more.")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ArgumentError(f"top_p={self.top_p}: expected more than 0 and at most 1.")

    def generator(self, device: torch.device) -> torch.Generator | None:
        """A generator with the seed, or None without a seed."""
        if self.seed is None:
            return None
        return torch.Generator(device).manual_seed(self.seed)


def sample(
    logits: torch.Tensor, params: SamplingParams, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Samples one token per row: (B, vocab_size) → (B,).

    Args:
        logits: Logits of the next token, (B, vocab_size).
        params: Temperature, top-k and top-p.
        generator: Random generator; the default one if None.

    Returns:
        Token ids, (B,).

    >>> import torch
    >>> from maskwright.models.sampling import SamplingParams, sample
    >>> sample(torch.tensor([[0.0, 3.0, 1.0]]), SamplingParams(temperature=0)).tolist()
    [1]
    """
    if params.temperature == 0:
        return logits.argmax(dim=-1)
    logits = logits.float() / params.temperature
    if params.top_k is not None and params.top_k < logits.shape[-1]:
        lowest = logits.topk(params.top_k, dim=-1).values[:, -1:]
        logits = logits.masked_fill(logits < lowest, -torch.inf)
    if params.top_p is not None:
        ordered, order = logits.sort(dim=-1, descending=True)
        probs = ordered.softmax(-1)
        # A token is removed if those before it have enough probability already.
        removed = probs.cumsum(-1) - probs >= params.top_p
        removed = torch.zeros_like(removed).scatter(-1, order, removed)  # back to the token order
        logits = logits.masked_fill(removed, -torch.inf)
    return torch.multinomial(logits.softmax(-1), 1, generator=generator)[:, 0]
