"""What a probe answers: what it tried, and the troubles that it met. Plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from maskwright.auditing.model_under_test import Change, Inputs, Subject


@dataclass
class Trouble:
    """Something that should not be, where it was seen, and what to run to see it again.

    `change` and `inputs` say what was run, beside the subject at rest; `by` says how, where that
    was another way. `kind` is for the diagnosis.
    """

    probe: str
    kind: str
    message: str
    far: float = 0.0
    batch: int | None = None
    output: int | None = None
    input: int | None = None
    name: Any = None  # of the input
    change: Change | None = None
    inputs: Inputs | None = None
    by: Callable[..., Any] | None = None
    subject: Subject | None = None  # another one than was asked about: the same in halves
    rows: list[int] | None = None  # the sequences of `inputs`, of those at rest
    columns: list[int] | None = None  # and their positions, where some were cut off
    order: list[list[int]] | None = None  # or of each sequence its own, where they were moved
    reproduce: str = ""


@dataclass
class Answer:
    """What a probe tried, in words, and what came of it."""

    probe: str
    tried: str = ""
    troubles: list[Trouble] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    skipped: bool = False
    passes: int = 0
    worst: float = 0.0  # the largest movement where there should be none
    measured: Any = None  # (batch, outputs, inputs), where every input was changed by itself


def skip(probe: str, why: str) -> Answer:
    """A question that can't be asked, and why."""
    return Answer(probe, notes=[why], skipped=True)


def brief(error: BaseException) -> str:
    """The first line of an error."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:160]
