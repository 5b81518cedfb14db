"""`Cache`, for values computed on first use, and `mask_property`, which keeps one in its mask."""

from __future__ import annotations

from threading import RLock
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar, cast, overload

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable

ValueT = TypeVar("ValueT")
MISSING: Final[Any] = object()  # None is a value


class Cache:
    """Values computed on first use. Thread-safe; the owner's copies and pickles leave it out.

    With `max_entries`, the least recently used value is dropped when there are more.

    >>> squares = Cache(max_entries=2)
    >>> [squares.get(n, lambda: n * n) for n in (1, 2, 3)]
    [1, 4, 9]
    >>> squares.values
    {2: 4, 3: 9}
    """

    __slots__ = ("_lock", "_max_entries", "last", "values")

    def __init__(self, max_entries: int | None = None) -> None:
        self._max_entries = max_entries
        self._lock = RLock()  # reentrant: one value may be computed from another
        self.values: dict[Hashable, Any] = {}
        self.last: tuple[Hashable, Any] = (MISSING, None)  # key and value, if there is a limit

    def get(self, key: Hashable, make: Callable[[], ValueT]) -> ValueT:
        """Returns the value of `key`, calling `make` if there is none."""
        values, limit = self.values, self._max_entries
        if limit is None:
            value = values.get(key, MISSING)
            if value is not MISSING:
                return cast("ValueT", value)
        with self._lock:
            value = values.get(key, MISSING)
            if value is MISSING:
                value = make()
            elif limit is not None:
                del values[key]  # inserted again below, as the most recently used
            values.setdefault(key, value)
            while limit is not None and len(values) > limit:
                del values[next(iter(values))]
            if limit is not None:
                self.last = (key, value)
        return cast("ValueT", value)


class mask_property(Generic[ValueT]):  # noqa: N801 - a decorator, as functools.cached_property is
    """Property of a mask that is computed on first use and kept in the mask's cache.

    >>> import maskwright as mw
    >>> mask = mw.documents(ids=[[0, 1, 0]])
    >>> mask._runs.max_per_document
    2
    >>> "_runs" in mask._cache.values
    True
    """

    def __init__(self, make: Callable[[Any], ValueT]) -> None:
        self.make = make
        self.name = make.__name__
        self.__doc__ = make.__doc__

    @overload
    def __get__(self, mask: None, owner: object) -> mask_property[ValueT]: ...
    @overload
    def __get__(self, mask: object, owner: object) -> ValueT: ...
    def __get__(self, mask: Any, owner: object) -> mask_property[ValueT] | ValueT:
        if mask is None:
            return self
        return cast("ValueT", mask._cached(self.name, lambda: self.make(mask)))
