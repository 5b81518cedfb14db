"""Stillness: the same random numbers in every run, and a model that is afterwards as it was."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def same_chance(seed: int) -> Iterator[None]:
    """The same random numbers each time; afterwards they go on where they were.

    Devices that nobody has used are left alone: torch.manual_seed takes note of them, slowly.
    """
    devices = list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []
    with torch.random.fork_rng(devices=devices):
        torch.default_generator.manual_seed(seed)
        if devices:
            torch.cuda.manual_seed_all(seed)
        yield


@contextmanager
def still(model: Any) -> Iterator[None]:
    """Dropout off; training flags, buffers and gradients are afterwards what they were."""
    if not isinstance(model, nn.Module):
        yield
        return
    flags = [(part, part.training) for part in model.modules()]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    grads = [(weight, weight.grad) for weight in model.parameters()]
    model.eval()
    try:
        yield
    finally:
        for part, flag in flags:
            part.training = flag
        with torch.no_grad():
            for buffer, kept in buffers:
                if buffer.shape == kept.shape:
                    buffer.copy_(kept)
        for weight, grad in grads:
            weight.grad = grad
