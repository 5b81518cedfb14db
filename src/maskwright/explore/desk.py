"""Where a worker answers: the name of a request to the function that answers it."""

from __future__ import annotations

import json
import math
import traceback
import warnings
from typing import TYPE_CHECKING, Any, Final

from maskwright.explore import answers, answers_numbers, answers_use
from maskwright.explore.faults import Fault, Reply, fault_of
from maskwright.explore.requests import read_request

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

JSON: Final = "application/json"

ANSWERS: Final[Mapping[str, Callable[[Any], dict[str, Any] | tuple[str, bytes]]]] = {
    "tokens": answers.answer_tokens,
    "mask": answers.answer_mask,
    "why": answers.answer_why,
    "compare": answers.answer_compare,
    "steps": answers_numbers.answer_steps,
    "generate": answers_numbers.answer_generate,
    "scaling": answers_numbers.answer_scaling,
    "code": answers_use.answer_code,
    "cost": answers_use.answer_cost,
    "recognise": answers_use.answer_recognise,
    "picture": answers_use.answer_picture,
}


def answer(name: str, data: Any) -> Reply:
    """The answer to one request, whatever it is: an error is an answer too.

    >>> answer("tokens", {"text": "a b"}).body
    b'{"tokens": [["a", "b"]], "lengths": [2]}'
    >>> answer("tokens", {}).status
    400
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of overflow in numbers that were asked for
            found = ANSWERS[name](read_request(name, data))
        if isinstance(found, tuple):
            kind, body = found
            return Reply(200, kind, body)
        return Reply(200, JSON, _json(found))
    except Exception as error:
        fault = fault_of(error)
        if fault.status == 500:
            traceback.print_exc()  # into the terminal, for a report
        return refusal(fault)


def refusal(fault: Fault) -> Reply:
    """A refusal as it is sent."""
    return Reply(fault.status, JSON, _json(fault.as_dict()))


def _json(data: dict[str, Any]) -> bytes:
    return json.dumps(plain(data), ensure_ascii=False, allow_nan=False).encode()


def plain(value: Any) -> Any:
    """The same, with the numbers that JSON lacks as words."""
    if isinstance(value, float) and not math.isfinite(value):
        return "nan" if math.isnan(value) else "inf" if value > 0 else "-inf"
    if isinstance(value, dict):
        return {name: plain(item) for name, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, (list, tuple)) else value
