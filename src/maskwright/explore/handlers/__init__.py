"""Request handlers, one module per group of panels, and the table that dispatches to them."""

from __future__ import annotations

import traceback
import warnings
from typing import TYPE_CHECKING, Any, Final

from maskwright.explore.error_responses import JSON, Response, encode_json, to_http_error
from maskwright.explore.handlers import code, mask, recognize, steps
from maskwright.explore.schema import decode

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

HANDLERS: Final[Mapping[str, Callable[[Any], dict[str, Any] | tuple[str, bytes]]]] = {
    "tokens": mask.handle_tokens,
    "mask": mask.handle_mask,
    "why": mask.handle_why,
    "compare": mask.handle_compare,
    "picture": mask.handle_picture,
    "steps": steps.handle_steps,
    "generate": steps.handle_generate,
    "scaling": steps.handle_scaling,
    "code": code.handle_code,
    "cost": code.handle_cost,
    "recognize": recognize.handle_recognize,
}


def dispatch(name: str, body: bytes) -> Response:
    """Decodes a request, calls its handler, and encodes the result or the error.

    >>> dispatch("tokens", b'{"text": "a b"}').body
    b'{"tokens":[["a","b"]],"lengths":[2]}'
    >>> dispatch("tokens", b"{}").status
    400
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # overflow in values that were given
            result = HANDLERS[name](decode(name, body))
        if isinstance(result, tuple):
            return Response(200, *result)
        return Response(200, JSON, encode_json(result))
    except Exception as error:
        failed = to_http_error(error)
        if failed.status == 500:
            traceback.print_exc()  # for a bug report
        return failed.response()
