"""Requests: every field has a type and limits, and decoding takes linear time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from maskwright.explore.error_responses import HTTPError
from maskwright.explore.expressions import MAX_RANGE, check_ranges
from maskwright.explore.handlers import HANDLERS
from maskwright.explore.schema import MAX_BODY, MAX_SIZE, REQUESTS, decode
from tests._helpers.explore_requests import SUBJECT, VALID

if TYPE_CHECKING:
    from tests.explore.conftest import Page


def decode_error(name: str, data: Any) -> HTTPError:
    body = data if isinstance(data, bytes) else json.dumps(data).encode()
    with pytest.raises(HTTPError) as caught:
        decode(name, body)
    return caught.value


def test_every_request_has_a_handler_and_a_valid_example() -> None:
    assert set(VALID) == set(REQUESTS) == set(HANDLERS)
    for name, data in VALID.items():
        decode(name, json.dumps(data).encode())


@pytest.mark.parametrize("name", sorted(REQUESTS))
def test_a_request_is_an_object_without_unknown_fields(name: str) -> None:
    for data in (None, [], "causal()", 3, True):
        assert decode_error(name, data).status == 400
    assert "`surprise`" in decode_error(name, {**VALID[name], "surprise": 1}).message
    if "subject" in VALID[name]:
        rest = {key: value for key, value in VALID[name].items() if key != "subject"}
        assert "`subject`" in decode_error(name, rest).message
        odd = {**rest, "subject": {**SUBJECT, "sice": 3}}
        assert "`sice`" in decode_error(name, odd).message


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"expression": 3}, 400),
        ({"expression": "x" * 20_001}, 413),
        ({"expression": "\ud800"}, 400),
        ({"tokens": []}, 400),
        ({"tokens": [[]]}, 400),
        ({"tokens": [["a"], ["b", "c"]]}, 400),
        ({"tokens": [["a" * 65]]}, 413),
        ({"tokens": [["a"] * 257]}, 413),
        ({"tokens": [["a"]] * 9}, 413),
        ({"size": 0}, 400),
        ({"size": 8.0}, 400),
        ({"size": True}, 400),
        ({"size": MAX_SIZE + 1}, 413),
        ({"size": 10**30}, 413),
        ({"keys": MAX_SIZE + 1}, 413),
        ({"q_start": MAX_SIZE + 1}, 413),
        ({"q_start": -MAX_SIZE - 1}, 400),
        ({"batch": 65}, 413),
        ({"heads": 65}, 413),
        ({"heads": 0}, 400),
    ],
)
def test_a_subject_is_limited(changes: dict[str, Any], status: int) -> None:
    assert decode_error("mask", {"subject": {**SUBJECT, **changes}}).status == status


@pytest.mark.parametrize(
    ("name", "changes", "status"),
    [
        ("mask", {"batch": -1}, 400),
        ("mask", {"head": 64}, 413),
        ("mask", {"most": 0}, 400),
        ("mask", {"most": 513}, 413),
        ("mask", {"max_cells": 8}, 400),
        ("mask", {"view": {"row": 0, "rows": 1, "key": 0}}, 400),
        ("mask", {"view": {"row": 0, "rows": 0, "key": 0, "keys": 1}}, 400),
        ("mask", {"view": {"row": 0, "rows": 1, "key": 0, "keys": 1, "x": 1}}, 400),
        ("why", {"key": -1}, 400),
        ("tokens", {"side": "top"}, 400),
        ("tokens", {"text": "a" * 20_001}, 413),
        ("steps", {"fill": "inf"}, 400),
        ("steps", {"fill": 1e39}, 413),
        ("steps", {"values": {"scores": [[1, 2], [3]]}}, 400),
        ("steps", {"values": {"scores": [[1e7]]}}, 413),
        ("steps", {"values": {"scores": []}}, 400),
        ("steps", {"values": {"scores": [[0] * 65]}}, 413),
        ("steps", {"values": {"scores": [[1]], "x": [[1]]}}, 400),
        ("steps", {"values": {"width": 65}}, 413),
        ("steps", {"values": {"seed": -1}}, 400),
        ("compare", {"others": []}, 400),
        ("compare", {"others": ["causal()"] * 3}, 413),
        ("scaling", {"sizes": []}, 400),
        ("scaling", {"sizes": [0]}, 400),
        ("scaling", {"sizes": [1025]}, 413),
        ("scaling", {"sizes": [1] * 17}, 413),
        ("recognize", {"npy": "AAAA"}, 400),
        ("recognize", {"array": None}, 400),
        ("recognize", {"array": None, "npy": "not base64!"}, 400),
        ("recognize", {"array": [[1, "x"]]}, 400),
        ("recognize", {"array": [[[[[1]]]]]}, 400),
        ("recognize", {"array": [2**60]}, 413),
        ("picture", {"format": "gif"}, 400),
        ("picture", {"theme": "auto"}, 400),
    ],
)
def test_other_fields_are_limited(name: str, changes: dict[str, Any], status: int) -> None:
    assert decode_error(name, {**VALID[name], **changes}).status == status


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"{]", b"\xff\xfe", b"'a'", b"[1,]", b"{} {}", b"9" * 5000, b'{"text": "\xff"}'),
        *(b'{"text": %s}' % number for number in (b"NaN", b"Infinity", b"-Infinity", b"1e999")),
        *(b"[" * 100_000, b'{"text":' * 100_000, b"[" * 50 + b"]" * 50),
    ],
)  # fmt: skip
def test_malformed_json_is_refused(body: bytes) -> None:
    assert decode_error("tokens", body).status == 400
    assert decode_error("recognize", b'{"array":' + body).status == 400


def test_brackets_in_strings_are_text() -> None:
    assert decode("tokens", b'{"text": "' + b"[" * 100 + b'\\" [["}').text.startswith("[[")


def test_a_body_is_limited() -> None:
    assert decode_error("tokens", b" " * (MAX_BODY + 1)).status == 413


def test_an_unterminated_string_of_escaped_quotes_takes_linear_time(page: Page) -> None:
    """A quadratic parser would take hours for this body, and the worker's time is 5 seconds."""
    body = b'{"text": "' + b'\\"' * (MAX_BODY // 2 - 8)
    assert page.post_bytes("tokens", body).status_code == 400
    assert page.post("tokens", VALID["tokens"]).status_code == 200


@pytest.mark.parametrize(
    "text",
    [
        f"keys(range({MAX_RANGE + 1}))",
        f"keys(range(({MAX_RANGE + 1})))",
        "keys(range(0, -4000000, -1))",
        " | ".join(["keys(range(1000000))"] * 3),
    ],
)
def test_long_ranges_are_refused(text: str) -> None:
    with pytest.raises(HTTPError) as caught:
        check_ranges(text)
    assert caught.value.status == 413


def test_short_ranges_are_accepted() -> None:
    for text in ("keys(range(4))", "keys(range(0, 4000000, 8))", "causal(", "range()", "range(x)"):
        check_ranges(text)
