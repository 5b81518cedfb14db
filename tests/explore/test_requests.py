"""What is asked: every field is read strictly and bounded, and every refusal says why."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import warnings
import zipfile
from typing import Any

import numpy as np
import pytest

from maskwright.explore import files
from maskwright.explore.faults import Fault
from maskwright.explore.fields import DEEPEST, MAX_BYTES, read_json
from maskwright.explore.files import read_file
from maskwright.explore.numbers import MOST_RANGE, check_ranges
from maskwright.explore.requests import MOST_SIZE, READERS, read_request

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
    "recognise": {"array": [[1, 0], [1, 1]]},
    "picture": {"subject": SUBJECT},
}


def fault(name: str, data: Any) -> Fault:
    with pytest.raises(Fault) as caught:
        read_request(name, data)
    assert caught.value.message.endswith(".")
    return caught.value


def test_every_request_has_a_valid_example() -> None:
    assert set(VALID) == set(READERS)
    for name, data in VALID.items():
        read_request(name, data)


@pytest.mark.parametrize("name", sorted(READERS))
@pytest.mark.parametrize("data", [None, [], "causal()", 3, True])
def test_a_request_is_an_object(name: str, data: Any) -> None:
    assert fault(name, data).status == 400


@pytest.mark.parametrize("name", sorted(READERS))
def test_unknown_fields_are_refused_by_name(name: str) -> None:
    assert "'surprise'" in fault(name, {**VALID[name], "surprise": 1}).message


@pytest.mark.parametrize("name", [n for n in sorted(READERS) if "subject" in VALID[n]])
def test_a_subject_is_needed_and_strict(name: str) -> None:
    rest = {key: value for key, value in VALID[name].items() if key != "subject"}
    assert "no field subject" in fault(name, rest).message
    odd = {**rest, "subject": {**SUBJECT, "sice": 3}}
    assert "'sice'" in fault(name, odd).message


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"expression": 3}, 400),
        ({"expression": None}, 400),
        ({"expression": "x" * 20_001}, 413),
        ({"expression": "\ud800"}, 400),
        ({"tokens": "a b"}, 400),
        ({"tokens": []}, 400),
        ({"tokens": [[]]}, 400),
        ({"tokens": [["a"], ["b", "c"]]}, 400),
        ({"tokens": [["a", 1]]}, 400),
        ({"tokens": [["a" * 65]]}, 413),
        ({"tokens": [["a"] * 257]}, 413),
        ({"tokens": [["a"]] * 9}, 413),
        ({"padding": 1}, 400),
        ({"size": 0}, 400),
        ({"size": -1}, 400),
        ({"size": 8.0}, 400),
        ({"size": True}, 400),
        ({"size": "8"}, 400),
        ({"size": None}, 400),
        ({"size": MOST_SIZE + 1}, 413),
        ({"size": 10**30}, 413),
        ({"keys": 0}, 400),
        ({"keys": MOST_SIZE + 1}, 413),
        ({"q_start": MOST_SIZE + 1}, 413),
        ({"q_start": -MOST_SIZE - 1}, 400),
        ({"batch": 65}, 413),
        ({"heads": 65}, 413),
        ({"heads": 0}, 400),
    ],
)
def test_a_subject_is_bounded(changes: dict[str, Any], status: int) -> None:
    assert fault("mask", {"subject": {**SUBJECT, **changes}}).status == status


@pytest.mark.parametrize(
    ("name", "changes", "status"),
    [
        ("mask", {"batch": -1}, 400),
        ("mask", {"head": 64}, 413),
        ("mask", {"most": 0}, 400),
        ("mask", {"most": 513}, 413),
        ("mask", {"view": [0, 1, 0, 1]}, 400),
        ("mask", {"view": {"row": 0, "rows": 1, "key": 0}}, 400),
        ("mask", {"view": {"row": 0, "rows": 0, "key": 0, "keys": 1}}, 400),
        ("mask", {"view": {"row": 0, "rows": 1, "key": 0, "keys": 1, "x": 1}}, 400),
        ("why", {"query": None}, 400),
        ("why", {"key": -1}, 400),
        ("tokens", {"side": "top"}, 400),
        ("tokens", {"side": []}, 400),
        ("tokens", {"text": "a" * 20_001}, 413),
        ("steps", {"fill": "inf"}, 400),
        ("steps", {"fill": 1e39}, 400),
        ("steps", {"scaled": 0}, 400),
        ("steps", {"values": {"scores": [[1, 2], [3]]}}, 400),
        ("steps", {"values": {"scores": [[1, "2"]]}}, 400),
        ("steps", {"values": {"scores": [[1e7]]}}, 400),
        ("steps", {"values": {"scores": []}}, 400),
        ("steps", {"values": {"scores": [[0] * 65]}}, 413),
        ("steps", {"values": {"scores": [[1]], "x": [[1]]}}, 400),
        ("steps", {"values": {"width": 65}}, 413),
        ("steps", {"values": {"seed": -1}}, 400),
        ("compare", {"others": []}, 400),
        ("compare", {"others": ["causal()"] * 3}, 413),
        ("compare", {"others": [3]}, 400),
        ("scaling", {"sizes": []}, 400),
        ("scaling", {"sizes": [0]}, 400),
        ("scaling", {"sizes": [1025]}, 413),
        ("scaling", {"sizes": [1] * 17}, 413),
        ("recognise", {"npy": "AAAA"}, 400),
        ("recognise", {"array": None}, 400),
        ("recognise", {"causal": "yes"}, 400),
        ("recognise", {"array": [[1, None]]}, 400),
        ("recognise", {"array": [[1, "x"]]}, 400),
        ("recognise", {"array": [[1], 2]}, 400),
        ("recognise", {"array": [1, [2]]}, 400),
        ("recognise", {"array": [[[[[1]]]]]}, 400),
        ("recognise", {"array": [2**60]}, 400),
        ("recognise", {"array": {"a": 1}}, 400),
        ("picture", {"format": "gif"}, 400),
        ("picture", {"theme": "auto"}, 400),
    ],
)
def test_other_fields_are_bounded(name: str, changes: dict[str, Any], status: int) -> None:
    assert fault(name, {**VALID[name], **changes}).status == status


def bad_json(body: bytes) -> Fault:
    with pytest.raises(Fault) as caught:
        read_json(body)
    return caught.value


@pytest.mark.parametrize("word", [b"NaN", b"Infinity", b"-Infinity"])
def test_json_has_no_numbers_that_are_none(word: bytes) -> None:
    assert bad_json(b'{"size": ' + word + b"}").status == 400


def test_a_number_that_overflows_is_refused_by_the_field() -> None:
    values = read_json(b'{"scores": [[1e999]]}')
    assert "beyond" in fault("steps", {**VALID["steps"], "values": values}).message


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"{]", b"\xff\xfe", b"'a'", b"[1,]", b"{} {}", b'{"a": 1, "a": 2}', b"9" * 5000],
)
def test_what_is_no_json_is_refused(body: bytes) -> None:
    assert bad_json(body).status == 400


@pytest.mark.parametrize("body", [b"[" * 100_000, b'{"a":' * 100_000, b"[" * 50 + b"]" * 50])
def test_json_that_nests_deep_is_refused_before_it_is_read(body: bytes) -> None:
    assert str(DEEPEST) in bad_json(body).message


def test_brackets_in_texts_nest_nothing() -> None:
    assert read_json(b'{"text": "' + b"[" * 100 + b'\\" [["}')["text"].startswith("[[")


def test_a_body_is_bounded_once_more() -> None:
    assert bad_json(b" " * (MAX_BYTES + 1)).status == 413


@pytest.mark.parametrize(
    "text",
    [
        f"keys(range({MOST_RANGE + 1}))",
        f"keys(range(({MOST_RANGE + 1})))",
        "keys(range(0, -4000000, -1))",
        " | ".join(["keys(range(1000000))"] * 3),
    ],
)
def test_long_ranges_are_refused_before_they_are_made(text: str) -> None:
    with pytest.raises(Fault, match="shorter ranges") as caught:
        check_ranges(text)
    assert caught.value.status == 413


def test_short_ranges_pass() -> None:
    for text in (
        "keys(range(4))",
        "keys(range(0, 4000000, 8))",
        "causal(",
        "range()",
        "keys(range(x))",
    ):
        check_ranges(text)


# ── files ─────────────────────────────────────────────────────────────────────────────────────


def saved(array: Any, save: Any = np.save, **options: Any) -> bytes:
    file = io.BytesIO()
    save(file, array, **options)
    return file.getvalue()


def bad_file(data: bytes) -> Fault:
    with pytest.raises(Fault) as caught:
        read_file(base64.b64encode(data).decode())
    assert caught.value.message.endswith(".")
    return caught.value


def header(shape: str, descr: str = "|b1") -> bytes:
    """The start of a `.npy` file that claims such an array."""
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


@pytest.mark.parametrize("save", [np.save, np.savez, np.savez_compressed])
@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint16, np.int64, np.float16, np.float64])
def test_files_of_numbers_are_read(save: Any, dtype: Any) -> None:
    array = np.tri(5).astype(dtype)
    read = read_file(base64.b64encode(saved(array, save)).decode())
    assert read.dtype == array.dtype
    assert np.array_equal(read, array)


def test_a_file_in_other_order_is_read() -> None:
    array = np.asfortranarray(np.tri(3, 4))
    assert np.array_equal(read_file(base64.b64encode(saved(array)).decode()), array)


def test_pickles_are_never_loaded() -> None:
    objects = np.array([{"a": 1}], dtype=object)
    data = saved(objects, allow_pickle=True)
    assert "dtype object" in bad_file(data).message
    assert bad_file(saved(objects, np.savez, allow_pickle=True)).status == 400


@pytest.mark.parametrize(
    "shape", ["(1000000000, 1000000000)", "(1048577,)", "(2, 2, 2, 2, 2)", "(-1,)", "(2097152, 0)"]
)
def test_a_header_that_asks_for_much_is_refused_before_anything_is_made(shape: str) -> None:
    assert bad_file(header(shape)).status == 413


@pytest.mark.parametrize("descr", ["|O", "<c16", "<U4", "|V8", "<M8[s]", "<f16"])
def test_other_types_are_refused(descr: str) -> None:
    assert bad_file(header("(1,)", descr)).status == 400


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\x93NUMPY",
        b"\x93NUMPY\x09\x00" + b"\x00" * 20,
        header("(4,)") + b"\x01" * 3,  # too short
        header("(4,)") + b"\x01" * 5,  # too long
        header("(__import__('os'),)"),
        header("(" * 500 + ")" * 500),
        b"\x93NUMPY\x02\x00\xff\xff\xff\x7f{",
        b"PK\x03\x04 and nothing more",
        header("(1,", "'"),
        header("(1,)", "|b1', 'more': 'x"),
        np.lib.format.magic(1, 0) + b"\x02\x00{\n",
    ],
)
def test_broken_files_are_refused(data: bytes) -> None:
    assert bad_file(data).status == 400


def zipped(*members: tuple[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return file.getvalue()


def test_a_zip_that_unfolds_to_much_is_refused_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    bomb = zipped(("a.npy", header("(67108864,)") + b"\x00" * 2**26))
    assert len(bomb) < 2**17
    assert bad_file(bomb).status == 413


def test_a_zip_that_lies_about_its_size_is_read_no_further_than_it_says() -> None:
    bomb = bytearray(zipped(("a.npy", header("(4,)") + b"\x00" * 2**24)))
    lie = len(header("(4,)") + b"\x00" * 4).to_bytes(4, "little")
    central = bomb.rindex(b"PK\x01\x02")
    bomb[central + 24 : central + 28] = lie  # the size in the directory, which is the one used
    assert bad_file(bytes(bomb)).status in (400, 413)


def test_every_way_to_break_a_file_is_refused_or_read() -> None:
    """One byte of it changed, or its end cut off, at every place."""
    for data in (
        saved(np.tri(3)),
        saved(np.tri(3), np.savez),
        saved(np.tri(3), np.savez_compressed),
    ):
        for place in range(len(data)):
            for broken in (
                data[:place],
                data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :],
                data[:place] + b"\xff" + data[place + 1 :],
            ):
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")  # numpy's, on headers of old files
                    with contextlib.suppress(Fault):
                        read = read_file(base64.b64encode(broken).decode())
                        assert read.size <= files.MOST_CELLS


def test_a_zip_with_several_or_no_arrays_is_refused() -> None:
    one = saved(np.eye(2))
    assert "a.npy, b.npy" in bad_file(zipped(("a.npy", one), ("b.npy", one))).message
    many = zipped(*((f"{n}.npy", one) for n in range(1000)))
    assert len(bad_file(many).message) < 500


def test_headers_are_short() -> None:
    long = saved(np.zeros((2,), bool))
    assert len(long) < files.MOST_HEADER
    text = b"{" + b" " * 5000 + b"}"
    assert bad_file(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text).status == 400


def test_base64_is_strict() -> None:
    with pytest.raises(Fault, match="base64"):
        read_file("not base64!")


def test_requests_are_plain_data_for_the_workers() -> None:
    for data in VALID.values():
        assert read_json(json.dumps(data).encode()) == data
