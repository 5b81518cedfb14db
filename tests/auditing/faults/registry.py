"""Planted faults: each with a healthy twin, the expected cause, and the symptoms it must show."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Case:
    """The arguments of one audit."""

    model: Any
    inputs: Any
    expects: Any
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Fault:
    """A planted fault.

    Args:
        family: The kind of fault.
        variant: What distinguishes it from the others of its family.
        after: A public bug report that it follows.
        causes: The causes that the audit may name.
        layer: The module at fault, or None if it is not a single one.
        checks: Keys of `symptoms.SYMPTOMS` that must show it.
        build: Returns the faulty case for True and its healthy twin for False.
    """

    family: str
    variant: str
    after: str
    causes: tuple[str, ...]
    layer: str | None
    checks: tuple[str, ...]
    build: Callable[[bool], Case]

    @property
    def name(self) -> str:
        """Family and variant."""
        return f"{self.family}: {self.variant}"


FAULTS: list[Fault] = []


@dataclass(frozen=True)
class Family:
    """A kind of fault, with the defaults of its variants."""

    name: str
    after: str
    checks: str = ""
    causes: str = ""

    def fault(
        self,
        variant: str,
        checks: str | None = None,
        causes: str | None = None,
        *,
        layer: int | str | None = None,
        after: str | None = None,
    ) -> Callable[[Callable[[bool], Case]], Callable[[bool], Case]]:
        """Register the decorated function, which builds the faulty case or its healthy twin.

        A number as `layer` means the attention of that layer.
        """

        def register(build: Callable[[bool], Case]) -> Callable[[bool], Case]:
            names = (checks or self.checks).split(), (causes or self.causes).split()
            shows, allowed = map(tuple, names)
            source = after or self.after
            module = f"layers.{layer}.attention" if isinstance(layer, int) else layer
            FAULTS.append(Fault(self.name, variant, source, allowed, module, shows, build))
            return build

        return register
