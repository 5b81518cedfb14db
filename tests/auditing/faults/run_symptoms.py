"""Symptoms that depend on how a model is run: lengths, ids, options, modes and repetition.

Measured without the audit, as in `symptoms`.
"""

from __future__ import annotations

import copy
import inspect
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from tests.auditing.faults import symptoms
from tests.auditing.faults.symptoms import Inputs, compared, distance, inputs_of, reachable, run
from tests.auditing.faults.tiny import PAD, VOCAB

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.auditing.faults.registry import Case

SHORTER = (1, 2, 3, 5, 8, 13)
LONGER = (32, 64, 100, 129, 160, 192, 256)
WEAK = 1e-9  # in float64, of outputs of size 1


def takes(case: Case, option: str) -> bool:
    """Whether the model's forward has this argument."""
    forward = case.model.forward if isinstance(case.model, nn.Module) else case.model
    return option in inspect.signature(forward).parameters


def is_causal(case: Case) -> bool:
    """Whether no output may depend on a later position."""
    if isinstance(case.expects, dict):
        return False
    [reach] = reachable(case).values()
    return not bool(reach.triu(1).any())


def with_length(case: Case, size: int) -> Inputs | None:
    """The inputs cut, or continued by their own beginning, to `size` positions."""
    found = {}
    for name, x in inputs_of(case).items():
        if not isinstance(x, Tensor) or x.dim() != 2:
            return None
        repeats = -(-size // x.size(1))
        found[name] = x.repeat(1, repeats)[:, :size]
    return found


def length_matters(case: Case) -> float:
    """Run the beginning of the sequences, and longer sequences with the same beginning."""
    inputs = inputs_of(case)
    whole, worst = run(case), 0.0
    if not is_causal(case) or "documents" in inputs:
        return 0.0
    padded = bool((next(iter(inputs.values())) == PAD).any())
    for size in SHORTER + (() if padded else LONGER):
        given = with_length(case, size)
        if given is None:
            return 0.0
        try:
            out = run(case, given)
        except IndexError:  # longer than the table of positions
            break
        common = min(size, whole.size(1))
        worst = max(worst, distance(out[:, :common], whole[:, :common], compared(case)[:, :common]))
    return worst


def ids_matter(case: Case) -> float:
    """Replace the ids of masked positions by every other id in turn."""
    worst, rows = 0.0, compared(case)
    before = run(case)
    for name, reach in reachable(case).items():
        ids = inputs_of(case)[name]
        if ids.is_floating_point():
            continue
        for row in symptoms.some(reach.size(1)):
            where = ~reach[:, row] & (ids != PAD)
            for other in range(1, VOCAB, 4):
                drawn = (ids + other - 1) % (VOCAB - 1) + 1
                given = {**inputs_of(case), name: torch.where(where, drawn, ids)}
                moved = symptoms.distances(run(case, given), before)[:, row]
                worst = max(worst, float(torch.where(rows[:, row], moved, 0.0).max()))
    return worst


def omitted_mask_matters(case: Case) -> float:
    """Omit an attention_mask of ones."""
    inputs = inputs_of(case)
    if "attention_mask" not in inputs:
        return 0.0
    ones = {**inputs, "attention_mask": torch.ones_like(inputs["attention_mask"])}
    omitted = {name: x for name, x in inputs.items() if name != "attention_mask"}
    rows = torch.ones_like(compared(case))
    try:
        return distance(run(case, omitted), run(case, ones), rows)
    except TypeError:  # a required argument
        return 0.0


def option_matters(option: str) -> Callable[[Case], float]:
    """A symptom: pass True and False as this option."""

    def measure(case: Case) -> float:
        if not takes(case, option):
            return 0.0
        outs = [run(case, {**inputs_of(case), option: value}) for value in (True, False)]
        return max(distance(out, run(case), compared(case)) for out in outs)

    return measure


def leak_under_autocast(case: Case) -> float:
    """A leak in an autocast region."""
    if not isinstance(case.model, nn.Module):
        return 0.0
    with torch.autocast("cpu", torch.bfloat16):
        return symptoms.leak(case)


def checkpointing_matters(case: Case) -> float:
    """Train with gradient checkpointing, and without."""
    if not hasattr(case.model, "gradient_checkpointing_enable"):
        return 0.0
    model = copy.deepcopy(case.model).train()
    usual = run(case, model=model, grad=True).detach()
    model.gradient_checkpointing_enable()
    return distance(run(case, model=model, grad=True).detach(), usual, compared(case))


def compiling_matters(case: Case) -> float:
    """Run as if in a compiled region."""
    kept = torch.compiler._is_compiling_flag
    usual = run(case)
    torch.compiler._is_compiling_flag = True
    try:
        return distance(run(case), usual, compared(case))
    finally:
        torch.compiler._is_compiling_flag = kept


def repetition_matters(case: Case) -> float:
    """Run again on the same inputs; run other sequences of the same shape in between."""
    model, other = fresh(case), fresh(case)
    inputs = {name: x.clone() for name, x in inputs_of(case).items()}
    torch.manual_seed(0)
    first = run(case, inputs, model=model)
    torch.manual_seed(1)
    again = run(case, inputs, model=model)
    run(case, {name: x.flip(0) for name, x in inputs_of(case).items()}, model=other)
    later = run(case, model=other)
    return max(distance(out, first, compared(case)) for out in (again, later))


def fresh(case: Case) -> Any:
    """A copy of a model as it was built."""
    return copy.deepcopy(case.model) if isinstance(case.model, nn.Module) else case.model


def weak_leak(case: Case) -> float:
    """1 if there is a leak in float64, however small."""
    if not isinstance(case.model, nn.Module):
        return 0.0
    exact = copy.deepcopy(case.model).double()
    return float(symptoms.leak(replace(case, model=exact)) > WEAK)


RUN_SYMPTOMS: dict[str, Callable[[Case], float]] = {
    "LEN": length_matters,
    "ID": ids_matter,
    "NM": omitted_mask_matters,
    "UC": option_matters("use_cache"),
    "OA": option_matters("output_attentions"),
    "AC": leak_under_autocast,
    "GC": checkpointing_matters,
    "JIT": compiling_matters,
    "ND": repetition_matters,
    "W": weak_leak,
}
