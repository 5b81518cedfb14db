"""The panels with computed values: attention step by step, generation, and scaling."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import structs

from maskwright.bias.text import parse as parse_bias
from maskwright.draw.walkthrough import generation, scaling, walkthrough
from maskwright.errors import FrameError
from maskwright.explore.error_responses import too_large
from maskwright.explore.expressions import bind, check_plane
from maskwright.explore.schema import MAX_STEPS

if TYPE_CHECKING:
    from maskwright.explore.schema import GenerateRequest, ScalingRequest, StepsRequest


def handle_steps(request: StepsRequest) -> dict[str, Any]:
    """Every step of attention over a few tokens."""
    arguments = _arguments(request)
    walk = walkthrough(
        **arguments,
        scaled=request.scaled,
        softcap=request.softcap,
        bias=None if request.bias is None else parse_bias(request.bias),
        sink=request.sink,
        fill=request.mask_value,
        rows_too=request.rows_too,
    )
    return {"steps": [step.as_dict() for step in walk.steps]}


def handle_generate(request: GenerateRequest) -> dict[str, Any]:
    """Each row of attention computed from the tokens so far, and in one pass."""
    return {"rows": [row._asdict() for row in generation(**_arguments(request))]}


def handle_scaling(request: ScalingRequest) -> dict[str, Any]:
    """The variance of scores by head size, with and without scaling."""
    return {"rows": [row._asdict() for row in scaling(request.sizes, seed=request.seed)]}


def _arguments(request: GenerateRequest) -> dict[str, Any]:
    """The common arguments of `walkthrough` and `generation`."""
    subject = request.subject
    count = subject.size if subject.tokens is None else len(subject.tokens[0])
    if count > MAX_STEPS:
        raise too_large(
            f"There are {count} tokens, expected at most {MAX_STEPS} here. Use fewer tokens."
        )
    bound_subject = bind(subject)
    queries, keys = bound_subject.bound.shape[2:]
    if queries != keys:
        raise FrameError(
            f"There are {queries} queries and {keys} keys, but self-attention needs equal numbers."
        )
    check_plane(bound_subject.bound, request.batch, request.head)
    return {
        "tokens": list(bound_subject.labels(request.batch) or map(str, range(queries))),
        "mask": bound_subject.bound,  # bound, because the batch may be larger than the mask's data
        **structs.asdict(request.values),
        "batch": request.batch,
        "head": request.head,
    }
