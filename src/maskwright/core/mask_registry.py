"""Integer handles of masks, for compiled graphs, which can store an integer but not a mask.

Every mask receives a handle when it is constructed. The registry refers to masks weakly, so a
handle is valid for as long as something else keeps its mask. `hold` keeps a mask for as long as
another object, such as a tensor saved for the backward pass, is alive.
"""

from __future__ import annotations

import secrets
from itertools import count
from threading import RLock
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable

    from maskwright.core.bound import BoundMask
    from maskwright.core.expr import Mask

FunctionT = TypeVar("FunctionT", bound="Callable[..., Any]")

MIN_PRUNE: Final = 64  # held masks below which no owner is checked

# The constructors of masks write to these two directly: a function call per node would be
# a large part of the time that it takes to build an expression.
# torch.compile does not trace a WeakValueDictionary: a mask that is constructed in a compiled function
# is a graph break, and not part of the graph by a handle that is out of date in the next call.
# The first handle is random, so that a graph that was saved by another process finds no mask here
# instead of another one.
HANDLES: Final = count(secrets.randbits(40) << 20)
MASKS: Final[WeakValueDictionary[int, Mask | BoundMask]] = WeakValueDictionary()


def outside_graphs(function: Callable[..., Any]) -> None:
    """Marks a constructor that torch.compile does not trace: a graph break, or this error message.

    `torch.compiler.disable` sets the same attributes, on a wrapper that every call would pay for.
    """
    function._torchdynamo_disable = True  # type: ignore[attr-defined]
    function._torchdynamo_disable_msg = (  # type: ignore[attr-defined]
        "a mask cannot be constructed or bound in a graph: construct it outside of the compiled "
        "function, and pass it as an argument or refer to it; or omit fullgraph=True"
    )


def constant_in_graphs(function: FunctionT) -> FunctionT:
    """Marks a function that torch.compile calls while it traces: its result is a constant of the graph.

    `torch.compiler.assume_constant_result` sets the same attribute, but loads the compiler.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


class _Held(NamedTuple):
    """A strong reference to a mask, valid while `owner_alive()` is true."""

    mask: Mask | BoundMask
    owner_alive: Callable[[], bool]


_lock = RLock()
_held: list[_Held] = []
_prune_at = MIN_PRUNE


def lookup(handle: int) -> Mask | BoundMask:
    """Returns the mask with this handle.

    Args:
        handle: The `_handle` of a mask.

    Raises:
        ArgumentError: If no mask has this handle, or the mask has been garbage-collected.

    >>> import maskwright as mw
    >>> mask = mw.causal()
    >>> lookup(mask._handle) is mask
    True
    """
    mask = MASKS.get(handle)
    if mask is None:
        raise ArgumentError(
            f"No mask has handle {handle}: it has been garbage-collected. "
            "Keep a reference to the mask for as long as the compiled function uses it."
        )
    return mask


def hold(mask: int | Mask | BoundMask, owner_alive: Callable[[], bool]) -> None:
    """Keeps a strong reference to a mask for as long as `owner_alive()` is true.

    Entries whose owner is gone are removed by later calls, at most when the number of entries
    has doubled since the last removal, so the cost per call is constant on average.

    Args:
        mask: A mask, or its handle.
        owner_alive: Returns whether the owner still exists. It must not keep the owner alive.

    Raises:
        ArgumentError: If the handle belongs to no mask.

    >>> import weakref
    >>> import maskwright as mw
    >>> class Owner:
    ...     pass
    >>> owner = Owner()
    >>> mask = mw.causal()
    >>> handle, alive = mask._handle, weakref.ref(owner)
    >>> hold(mask, lambda: alive() is not None)
    >>> del mask
    >>> lookup(handle)
    causal()
    """
    global _prune_at
    entry = _Held(lookup(mask) if isinstance(mask, int) else mask, owner_alive)
    removed: list[_Held] = []  # released after the lock
    with _lock:
        if len(_held) >= _prune_at:
            alive = [item.owner_alive() for item in _held]
            removed = [item for item, kept in zip(_held, alive, strict=True) if not kept]
            _held[:] = [item for item, kept in zip(_held, alive, strict=True) if kept]
            _prune_at = max(MIN_PRUNE, 2 * len(_held))
        _held.append(entry)
    del removed
