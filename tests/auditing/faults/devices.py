"""Masks that stay on the device where they were created."""

from __future__ import annotations

import copy
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

import maskwright as mw
from tests.auditing.faults import tiny
from tests.auditing.faults.registry import Case, Family

if TYPE_CHECKING:
    from collections.abc import Callable

# ── a mask on another device ───────────────────────────────────────────────────────────────────────

DEVICE = Family("mask on another device", after="transformers#28369", checks="E", causes="raises")

META = torch.device("meta")  # a second device that every machine has


def created_on_meta(attend: Any, expects: Any) -> Case:
    """A model created on the meta device and moved to the CPU."""
    with META:
        model = tiny.Transformer(attend, tiny.no_args)
    return Case(tiny.initialize(model.to_empty(device="cpu")), tiny.random_ids(2, 12), expects)


class MaskAttribute(tiny.Attention):
    """Creates its mask in __init__, not as a buffer, so that it is not moved."""

    def __init__(self, heads: int) -> None:
        super().__init__(heads)
        self.keep = torch.ones(64, 64, dtype=torch.bool).tril()

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return tiny.eager(q, k, v, self.keep[: q.shape[2], : k.shape[2]])


class MaskPerCall(tiny.Attention):
    """Creates its mask in forward."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return tiny.eager(q, k, v, torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril())


@DEVICE.fault("mask is not a buffer")
def _(faulty: bool) -> Case:
    return created_on_meta(MaskAttribute if faulty else MaskPerCall, mw.causal())


class DeviceAttribute(tiny.Attention):
    """Creates masks on the device that it read in __init__."""

    def __init__(self, heads: int) -> None:
        super().__init__(heads)
        self.device = self.out.weight.device

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        place = torch.arange(q.shape[2], device=self.device)
        return tiny.eager(q, k, v, (place <= place[:, None]) & (place > place[:, None] - 4))


class DeviceOfQueries(tiny.Attention):
    """Creates masks on the device of the queries."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        place = torch.arange(q.shape[2], device=q.device)
        return tiny.eager(q, k, v, (place <= place[:, None]) & (place > place[:, None] - 4))


@DEVICE.fault("device read in __init__, layer 1", layer=1)
def _(faulty: bool) -> Case:
    attends = [DeviceOfQueries, DeviceAttribute if faulty else DeviceOfQueries]
    return created_on_meta(attends, mw.window(back=3))


def cached_by_length(by_device: bool) -> Callable[..., Tensor]:
    """Caches masks by length, for each device or for the first one."""

    @lru_cache(maxsize=8)
    def kept(size: int, device: torch.device) -> Tensor:
        return torch.ones(size, size, dtype=torch.bool, device=device).tril()

    first: dict[int, torch.device] = {}

    def attend(q: Tensor, k: Tensor, v: Tensor, keep: Tensor) -> Tensor:
        size = q.shape[2]
        device = q.device if by_device else first.setdefault(size, q.device)
        return tiny.eager(q, k, v, kept(size, device))

    return attend


@DEVICE.fault("masks cached by length")
def _(faulty: bool) -> Case:
    built = tiny.case(cached_by_length(by_device=not faulty), tiny.random_ids(2, 14))
    with META:
        copy.deepcopy(built.model).to(META)(built.inputs.to(META))
    return built
