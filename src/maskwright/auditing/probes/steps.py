"""Steps: one pass gives the same as token by token, and piece by piece, with a cache."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from maskwright.auditing.measure import RESHAPED
from maskwright.auditing.model_under_test import takes
from maskwright.auditing.probes.answer import Answer, Trouble, brief, skip
from maskwright.auditing.probes.stillness import same_chance

if TYPE_CHECKING:
    from collections.abc import Callable

    from maskwright.auditing.expectations import Expectation
    from maskwright.auditing.measure import Meter
    from maskwright.auditing.model_under_test import Subject

    Step = Callable[[Any, Any, Any], tuple[Any, Any]]

SINGLE = 12  # tokens that go by themselves


class _NoCacheError(Exception):
    """What a model gave holds no cache."""


def steps(meter: Meter, expected: Expectation, step: Step | None) -> Answer:
    """Run the positions in pieces, and compare with all at once."""
    subject = meter.subject
    step = step or own_step(subject)
    if step is None:
        return skip("steps", "no cache is known of; pass step= to say how one is used")
    length = subject.length()
    if length < 2 or meter.rest.shape[1] != length:
        return skip("steps", "outputs are not one for each position")
    ends = _ends(expected, length)
    if ends == {length}:
        return skip("steps", "outputs know of all that comes later, so no piece stands by itself")
    answer = Answer("steps")
    judged = torch.from_numpy(expected.judged)
    tried = []
    for name, stops in _pieces(length).items():
        cuts = [stop for stop in stops if stop in ends]
        try:
            out = run_pieces(subject, step, cuts)
        except _NoCacheError:
            return skip("steps", "the model gives no cache")
        except Exception as error:
            answer.troubles.append(
                Trouble(
                    "steps",
                    "steps raise",
                    f"the model raises when it is run {name}: {brief(error)}",
                    by=_runner(step, cuts),
                )
            )
            return answer
        tried.append(name)
        if out.shape != meter.rest.shape:
            answer.notes.append(f"{name}: outputs of shape {tuple(out.shape)} are not compared")
            continue
        far = torch.where(judged, meter.apart(out, meter.rest, RESHAPED), 0.0)
        answer.worst = max(answer.worst, float(far.max()))
        if not bool((far > 0).any()):
            continue
        b, i = (int(x) for x in np.argwhere((far > 0).numpy())[0])

        def again(other: Meter, cuts: list[int] = cuts) -> float:
            found = run_pieces(other.subject, step, cuts)
            return float(torch.where(judged, other.apart(found, other.rest, RESHAPED), 0.0).max())

        if meter.confirmed(float(far.max()), again):
            answer.troubles.append(
                Trouble(
                    "steps",
                    "steps",
                    f"run {name}, position {i} differs from one pass by {float(far[b, i]):.2g} "
                    f"(batch {b})",
                    float(far[b, i]),
                    b,
                    i,
                    by=_runner(step, cuts),
                )
            )
            return answer
    answer.tried = ", ".join(tried)
    return answer


def _ends(expected: Expectation, length: int) -> set[int]:
    """Where a piece may end: no output before knows of anything after."""
    seen = expected.closure & expected.judged[:, :, None]
    last = np.where(seen.any(-1), length - 1 - seen[:, :, ::-1].argmax(-1), 0).max(0)
    clear = np.maximum.accumulate(last) <= np.arange(length)
    return {int(i) + 1 for i in np.flatnonzero(clear)} | {length}


def _pieces(length: int) -> dict[str, list[int]]:
    """Ways to cut the positions, as the ends of their pieces."""
    single = [*range(1, min(length, SINGLE) + 1), length]
    half = length // 2
    third = sorted({max(1, length // 3), max(1, 2 * length // 3), length})
    after = sorted({half, *range(half, min(half + 3, length) + 1), length} - {0})
    return {
        "token by token": sorted(set(single)),
        "in three pieces": third,
        "first half, then token by token": after,
    }


def run_pieces(subject: Subject, step: Step, cuts: list[int]) -> torch.Tensor:
    """The outputs of all pieces, put together."""
    state, found, start = None, [], 0
    with torch.no_grad():
        for stop in cuts:
            piece = _piece(subject, start, stop)
            subject.passes += 1
            with same_chance(subject.seed):
                result, state = step(subject.model, piece, state)
            found.append(subject.read(result))
            start = stop
    return torch.cat(found, 1)


def _piece(subject: Subject, start: int, stop: int) -> Any:
    """The next positions; what else runs along them is given up to here."""
    main = subject.inputs[subject.main][:, start:stop]
    if len(subject.inputs) == 1:
        return main if isinstance(subject.main, int) else {subject.main: main}
    length = subject.length()
    given: dict[Any, Any] = {}
    for key, x in subject.inputs.items():
        along = subject.axes_along(key, x, subject.main, length)
        if key == subject.main:
            given[key] = main
        elif 1 in along and x.dim() > 1:
            given[key] = x[:, start:stop] if "position" in str(key) else x[:, :stop]
        else:
            given[key] = x
    return given if isinstance(subject.main, str) else tuple(given.values())


def _runner(step: Step, cuts: list[int]) -> Callable[[Subject], Any]:
    return lambda subject: run_pieces(subject, step, cuts)


def own_step(subject: Subject) -> Step | None:
    """How a model with a cache as transformers has it is run on; None where it has none."""
    model = subject.model
    if not takes(model, "past_key_values") or not takes(model, "use_cache", loosely=True):
        return None
    config = getattr(model, "config", None)
    if config is None or not getattr(config, "use_cache", True):
        return None
    return _decoder_step if getattr(config, "is_encoder_decoder", False) else _step


def _step(model: Any, piece: Any, state: Any) -> tuple[Any, Any]:
    given = piece if isinstance(piece, dict) else {"input_ids": piece}
    result = model(**given, past_key_values=state, use_cache=True)
    cache = getattr(result, "past_key_values", None)
    if cache is None:
        raise _NoCacheError
    return result, cache


def _decoder_step(model: Any, piece: Any, state: Any) -> tuple[Any, Any]:
    """The encoder is run once, and what it gave is given to every step."""
    if not isinstance(piece, dict) or not takes(model, "encoder_outputs"):
        raise _NoCacheError
    given = dict(piece)
    source = {key: given.pop(key) for key in ("input_ids", "inputs_embeds") if key in given}
    if state is None:
        keep = {key: given[key] for key in ("attention_mask",) if key in given}
        state = model.get_encoder()(**source, **keep, return_dict=True), None
    encoded, before = state
    result, cache = _step(model, {**given, "encoder_outputs": encoded}, before)
    return result, (encoded, cache)
