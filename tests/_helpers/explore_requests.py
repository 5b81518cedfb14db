"""Requests to the handlers of the explorer, and readers of their responses."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np

from maskwright.explore.handlers import dispatch
from maskwright.explore.schema import PAD

WORDS = [["I", "like", PAD], ["you", "do", "too"]]
SUBJECT = {"expression": "causal()"}
VALID: dict[str, dict[str, Any]] = {
    "tokens": {"text": "a b"},
    "mask": {"subject": SUBJECT},
    "why": {"subject": SUBJECT, "query": 1, "key": 0},
    "steps": {"subject": SUBJECT},
    "generate": {"subject": SUBJECT},
    "compare": {"subject": SUBJECT, "others": ["everything()"]},
    "code": {"subject": SUBJECT},
    "cost": {"subject": SUBJECT},
    "scaling": {},
    "recognize": {"array": [[1, 0], [1, 1]]},
    "picture": {"subject": SUBJECT},
}


def post(name: str, **data: Any) -> Any:
    """The decoded response, which must have status 200."""
    response = dispatch(name, json.dumps(data).encode())
    assert response.status == 200, response.body.decode()
    assert response.media_type == "application/json"
    return json.loads(response.body)


def post_error(name: str, status: int, **data: Any) -> dict[str, Any]:
    """The error of a response, which must have this status."""
    response = dispatch(name, json.dumps(data).encode())
    assert response.status == status, response.body.decode()
    error: dict[str, Any] = json.loads(response.body)["error"]
    assert error["message"]
    return error


def on(expression: str, **rest: Any) -> dict[str, Any]:
    return {"expression": expression, **rest}


def kinds(grid: dict[str, Any]) -> list[list[int]]:
    rows, columns = grid["shape"]
    flat = np.frombuffer(base64.b64decode(grid["kinds"]), np.uint8)
    shades = np.frombuffer(base64.b64decode(grid["shades"]), np.uint8)
    assert flat.size == shades.size == rows * columns
    table: list[list[int]] = flat.reshape(rows, columns).tolist()
    return table
