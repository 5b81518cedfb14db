"""Handles of masks: they are unique, found again while the mask lives, and held for an owner."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

import maskwright as mw
from maskwright.core import mask_registry
from maskwright.core.mask_registry import MIN_PRUNE, hold, lookup

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Owner:
    """Something that a mask is held for."""


def alive(owner: Owner) -> Callable[[], bool]:
    ref = weakref.ref(owner)
    return lambda: ref() is not None


@pytest.fixture(autouse=True)
def empty_table(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(mask_registry, "_held", [])
    monkeypatch.setattr(mask_registry, "_prune_at", MIN_PRUNE)
    yield
    gc.collect()


@pytest.mark.parametrize("mask", [mw.causal(), mw.causal() & mw.chunks(3), mw.causal().on(4)])
def test_handle_finds_mask(mask: mw.Mask | mw.BoundMask) -> None:
    assert vars(mask)["_handle"] == mask._handle  # torch.compile reads instance attributes
    assert lookup(mask._handle) is mask
    for other in (copy.copy(mask), copy.deepcopy(mask), pickle.loads(pickle.dumps(mask))):
        assert other._handle != mask._handle
        assert lookup(other._handle) is other


def test_handle_of_no_mask_is_error_that_names_it() -> None:
    handle = mw.window(back=3)._handle
    gc.collect()
    for use in (lookup, lambda gone: hold(gone, lambda: True)):
        with pytest.raises(mw.ArgumentError, match=rf"{handle}.*reference"):
            use(handle)


def test_handles_are_unique_over_threads() -> None:
    with ThreadPoolExecutor(8) as pool:
        masks = list(pool.map(lambda n: mw.window(back=n) & mw.causal(), range(2_000)))
    assert len({mask._handle for mask in masks}) == len(masks)
    assert all(lookup(mask._handle) is mask for mask in masks)


def test_looked_up_mask_is_not_kept() -> None:
    mask = mw.window(back=5)
    ref = weakref.ref(mask)
    lookup(mask._handle)
    del mask
    gc.collect()
    assert ref() is None


def test_masks_of_dead_owners_are_collected() -> None:
    refs = []
    for n in range(2_000):
        mask = mw.window(back=n)
        refs.append(weakref.ref(mask))
        hold(mask._handle if n % 2 else mask, alive(Owner()))
        del mask
        assert len(mask_registry._held) < 100
    gc.collect()
    assert sum(ref() is not None for ref in refs) < 100


def test_masks_of_live_owners_stay() -> None:
    owners = [Owner() for _ in range(500)]
    handles = []
    for n, owner in enumerate(owners):
        mask = mw.window(back=n)
        handles.append(mask._handle)
        hold(mask, alive(owner))
        hold(mw.chunks(n + 1), alive(Owner()))  # of a dead owner
    del mask, owner
    gc.collect()
    assert [lookup(handle).back for handle in handles] == list(range(500))  # type: ignore[union-attr]
    del owners[1:]
    for _ in range(2_000):
        hold(mw.causal(), alive(Owner()))
    gc.collect()
    assert lookup(handles[0]) == mw.window(back=0)
    with pytest.raises(mw.ArgumentError):
        lookup(handles[-1])


def test_owners_are_checked_bounded_number_of_times_per_call() -> None:
    checks = 0

    def owner_alive() -> bool:
        nonlocal checks
        checks += 1
        return True

    for _ in range(4_000):
        hold(mw.causal(), owner_alive)
    assert checks <= 2 * 4_000


def test_masks_are_held_from_many_threads() -> None:
    owners = [Owner() for _ in range(400)]

    def keep(n: int) -> int:
        mask = mw.window(back=n)
        hold(mask, alive(owners[n]))
        hold(mw.causal(), alive(Owner()))
        return mask._handle

    with ThreadPoolExecutor(8) as pool:
        handles = list(pool.map(keep, range(400)))
    gc.collect()
    assert [lookup(handle) for handle in handles] == [mw.window(back=n) for n in range(400)]
