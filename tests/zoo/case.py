"""What the zoo is made of: a fault, the subject that has it, and its healthy twin."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Subject:
    """What is audited, and how."""

    model: Any
    inputs: Any
    expects: Any
    options: dict[str, Any] = field(default_factory=dict)  # further arguments of audit


@dataclass(frozen=True)
class Fault:
    """A planted mistake: where it was seen in public, what it is called, and where it lies."""

    family: str
    variant: str
    after: str
    causes: tuple[str, ...]
    layer: str | None
    checks: str
    sick: Callable[[], Subject]
    healthy: Callable[[], Subject]

    @property
    def name(self) -> str:
        """The family and the variant, as one."""
        return f"{self.family}: {self.variant}"


FAULTS: list[Fault] = []


def plant(
    family: str,
    variant: str,
    sick: Callable[[], Subject],
    healthy: Callable[[], Subject],
    *,
    after: str,
    causes: tuple[str, ...],
    checks: str,
    layer: str | None = None,
) -> None:
    """Add a fault to the zoo."""
    FAULTS.append(Fault(family, variant, after, causes, layer, checks, sick, healthy))
