"""Questions as the page asks them, and how answers are read."""

from __future__ import annotations

import base64
import json
from typing import Any

import numpy as np

from maskwright.explore.desk import answer
from maskwright.explore.requests import PAD

WORDS = [["I", "like", PAD], ["you", "do", "too"]]


def ask(name: str, **data: Any) -> Any:
    """The answer, which must be one."""
    reply = answer(name, data)
    assert reply.status == 200, reply.body.decode()
    assert reply.kind == "application/json"
    return json.loads(reply.body)


def refused(name: str, status: int, **data: Any) -> dict[str, Any]:
    reply = answer(name, data)
    assert reply.status == status, reply.body.decode()
    error: dict[str, Any] = json.loads(reply.body)["error"]
    assert error["message"].rstrip("?").rstrip(".") != error["message"]  # a sentence
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
