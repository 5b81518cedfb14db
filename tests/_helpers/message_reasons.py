"""The reasons that a reason contains."""

from __future__ import annotations

from typing import TYPE_CHECKING

from maskwright.messages import Reason

if TYPE_CHECKING:
    from collections.abc import Iterator


def reasons(reason: Reason) -> Iterator[Reason]:
    """Yields the reason and all reasons in its parameters."""
    yield reason
    for value in reason.params.values():
        for part in value if isinstance(value, tuple) else (value,):
            if isinstance(part, Reason):
                yield from reasons(part)
