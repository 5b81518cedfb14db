"""The code and cost panels: a mask as source code for every framework, its memory and its work."""

from __future__ import annotations

import contextlib
import io
import math
from typing import TYPE_CHECKING, Any, Final

from maskwright.engine.api import explain_backend
from maskwright.engine.native.kernel import loaded
from maskwright.errors import MaskError
from maskwright.explore.error_responses import ADVICE, too_large
from maskwright.explore.expressions import bind, check_intervals
from maskwright.targets.lower import capabilities, explain_lowering

if TYPE_CHECKING:
    from maskwright.core.bound import BoundMask
    from maskwright.explore.schema import CodeRequest, CostRequest
    from maskwright.targets.base import Target

MAX_CODE_CELLS: Final = 2**24  # of the arrays that are lowered
MAX_CODE: Final = 20_000  # characters
MAX_COST_INTERVALS: Final = 2**22
MAX_ESTIMATE_INTERVALS: Final = 2**20
HEAD_DIM: Final = 64  # of the estimate
BLOCK: Final = 128


def handle_code(request: CodeRequest) -> dict[str, Any]:
    """The source code for each target, or why the target does not support the mask."""
    bound = bind(request.subject).bound
    cells = math.prod(bound.shape)
    if cells > MAX_CODE_CELLS:
        raise too_large(
            f"The mask has {cells:,} cells, expected at most {MAX_CODE_CELLS:,} for code. "
            "Use fewer tokens."
        )
    return {"targets": [_target(bound, target) for target in capabilities().values()]}


def handle_cost(request: CostRequest) -> dict[str, Any]:
    """The memory of the mask in each form, and the backend and work of attention with it."""
    subject = bind(request.subject)
    bound, cells = subject.bound, subject.bound.frame.cells
    check_intervals(subject.max_intervals, MAX_COST_INTERVALS)
    intervals, count = bound.spans.intervals(), bound.count()
    return {
        "cells": cells,
        "allowed": count,
        "density": count / cells if cells else 0.0,
        "tiles": {"block": BLOCK, **bound.tiles(BLOCK).counts()},
        "dense_bytes": math.prod(bound.shape),
        "bias_bytes": 4 * math.prod(bound.shape),
        "span_bytes": 16 * intervals + 8 * math.prod(bound.shape[:3]),
        "intervals": intervals,
        "head_dim": HEAD_DIM,
        **_backend(bound),
    }


def _target(bound: BoundMask, target: Target) -> dict[str, Any]:
    code: str | None = None
    refusal: str | None = None
    if target.num_masks != 1:
        refusal = f"{target.name} takes {target.num_masks} masks. See recipes.translation."
    else:
        try:
            with contextlib.redirect_stderr(io.StringIO()):  # warnings of imported packages
                code = explain_lowering(bound, target.name)
        except (MaskError, ImportError) as error:
            refusal = str(error)
        except MemoryError:
            refusal = f"The code is too large for the memory of a worker. {ADVICE}"
    if code is not None and len(code) > MAX_CODE:
        refusal = f"The code has {len(code):,} characters. Use fewer tokens."
        code = None
    return {
        "name": target.name,
        "gives": target.returns,
        "polarity": target.polarity,
        "ok": code is not None,
        "code": code,
        "refusal": refusal,
    }


def _backend(bound: BoundMask) -> dict[str, Any]:
    """The backend of `attention` and its work; None for masks whose estimate takes seconds."""
    if bound._reader.max_intervals() > MAX_ESTIMATE_INTERVALS:
        return dict.fromkeys(("backend", "reason", "instruction_set", "work"))
    frame = bound.frame
    q, k = ((frame.batch, frame.heads, n, HEAD_DIM) for n in (frame.q_len, frame.kv_len))
    choice = explain_backend(q, k, mask=bound)
    return {
        "backend": choice.backend,
        "reason": choice.reason,
        "instruction_set": loaded().isa if choice.backend == "native" else None,
        "work": choice.work.as_dict(),
    }
