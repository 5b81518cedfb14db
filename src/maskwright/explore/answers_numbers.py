"""Answers with numbers in them: attention step by step, token by token, and what scaling does."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from maskwright.draw.walkthrough import generation, scaling, walkthrough
from maskwright.errors import FrameError
from maskwright.explore.faults import too_large
from maskwright.explore.requests import MOST_STEPS
from maskwright.explore.subjects import bind, check_plane

if TYPE_CHECKING:
    from maskwright.explore.requests import AskGenerate, AskScaling, AskSteps, Subject
    from maskwright.explore.subjects import Bound


def answer_steps(ask: AskSteps) -> dict[str, Any]:
    """Every step of attention over a few tokens."""
    bound = _bind(ask.subject, ask.batch, ask.head)
    walk = walkthrough(
        _names(bound, ask.batch),
        bound.on,
        **asdict(ask.values),
        scaled=ask.scaled,
        fill=ask.fill,
        rows_too=ask.rows_too,
        batch=ask.batch,
        head=ask.head,
    )
    return {"steps": [step.as_dict() for step in walk.steps]}


def answer_generate(ask: AskGenerate) -> dict[str, Any]:
    """Row after row: from the tokens so far, and as a row of the one pass."""
    bound = _bind(ask.subject, ask.batch, ask.head)
    mask: Any = bound.on  # bound, because the batch may be wider than its data
    rows = generation(
        _names(bound, ask.batch),
        mask,
        **asdict(ask.values),
        batch=ask.batch,
        head=ask.head,
    )
    return {
        "rows": [
            {
                "position": row.position,
                "token": row.token,
                "weights": row.weights.tolist(),
                "output": row.output.tolist(),
                "alone": row.alone.tolist(),
                "equal": row.equal,
            }
            for row in rows
        ]
    }


def answer_scaling(ask: AskScaling) -> dict[str, Any]:
    """The spread of scores by head size, with and without scaling."""
    return {"rows": [row._asdict() for row in scaling(ask.sizes, seed=ask.seed)]}


def _bind(subject: Subject, batch: int, head: int) -> Bound:
    """The mask, if it is small and square enough to be computed with."""
    count = subject.size if subject.tokens is None else len(subject.tokens[0])
    if count > MOST_STEPS:
        raise too_large(
            f"There are {count} tokens, more than the {MOST_STEPS} that fit on a page. "
            "Take fewer tokens."
        )
    bound = bind(subject)
    queries, keys = bound.on.shape[2:]
    if queries != keys:
        raise FrameError(
            f"There are {queries} queries and {keys} keys, and the steps are of self-attention. "
            "Give as many of both."
        )
    check_plane(bound.on, batch, head)
    return bound


def _names(bound: Bound, batch: int) -> list[str]:
    return list(bound.labels(batch) or map(str, range(bound.on.shape[2])))
