"""What an app is to the command line: a task to train, a report at the end, and a use for it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from maskwright.core.parser import parse
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from maskwright.apps.checkpoints import Progress
    from maskwright.apps.training import Course, Task
    from maskwright.core.expr import Mask


@dataclass(frozen=True)
class Wishes:
    """What a person asks of an app, besides the course of training. None is the app's own choice."""

    version: str | None = None  # which model, where an app has several
    mask: str | None = None  # an expression in place of the app's own mask
    text: Path | None = None  # own data: a text
    pairs: Path | None = None  # own data: pairs, a tab between
    data: str | None = None  # other data that the app knows by name
    batch: int | None = None
    seed: int = 0

    def mask_or(self, own: Mask) -> Mask:
        """The mask asked for, or the app's own.

        >>> import maskwright as mw
        >>> from maskwright.apps.app import Wishes
        >>> Wishes(mask="everything()").mask_or(mw.causal()), Wishes().mask_or(mw.causal())
        (everything(), causal())
        """
        return (
            own if self.mask is None else parse(self.mask if "(" in self.mask else f"{self.mask}()")
        )


def version_of(app: str, versions: Sequence[str], asked: str | None) -> str:
    """The version of an app that is asked for, or its first one.

    >>> from maskwright.apps.app import version_of
    >>> version_of("language", ["gpt", "v4"], None)
    'gpt'
    """
    if asked is not None and asked not in versions:
        raise ArgumentError(
            f"There is no version {asked} of {app}. Give one of {', '.join(versions)}."
        )
    return asked or versions[0]


def named_mask(task: Task) -> str:
    """The mask that a task is trained under, in words.

    >>> from maskwright.apps.app import Wishes, named_mask
    >>> from maskwright.apps.registry import find_app
    >>> named_mask(find_app("image").task(Wishes()))
    'causal()'
    """
    return "the mask of each batch" if task.mask is None else repr(task.mask)


@dataclass(frozen=True)
class Prompt:
    """What a person gives to a trained app."""

    text: str | None = None
    count: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    beams: int | None = None
    seed: int | None = None
    output: Path | None = None


class App(Protocol):
    """One application."""

    name: str
    summary: str
    versions: tuple[str, ...]  # the first one is meant where none is asked for

    def course(self, wishes: Wishes) -> Course:
        """How it is trained, if nobody says otherwise."""
        ...

    def task(self, wishes: Wishes) -> Task:
        """The data and the model, new."""
        ...

    def again(self, progress: Progress) -> Task:
        """The task of a checkpoint, for use: its model has the right shape and no weights yet."""
        ...

    def sample(self, task: Any) -> str:
        """A line or two that show what it can do by now, while it trains."""
        ...

    def report(self, task: Any) -> Iterator[str]:
        """What came of the training: measured figures, and the audit of its mask."""
        ...

    def judged(self, task: Any, honest: Any) -> tuple[str, float]:
        """How good is what it generates by itself: what is measured, and the figure.

        `honest` is the same app trained under its own mask, for apps that let it judge.
        """
        ...

    def use(self, task: Any, prompt: Prompt) -> Iterator[str]:
        """What it says to a prompt."""
        ...
