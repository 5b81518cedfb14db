"""The recognize handler, and files: read within limits, or refused."""

from __future__ import annotations

import base64
import contextlib
import io
import warnings
import zipfile
from typing import Any

import numpy as np
import pytest

import maskwright as mw
from maskwright.explore.error_responses import HTTPError
from maskwright.explore.handlers.recognize import MAX_CELLS, MAX_HEADER, read_file
from tests._helpers.explore_requests import kinds, post, post_error


def test_an_array_is_recognized() -> None:
    found = post("recognize", array=[[0.0, "-inf"], [0.0, 0.0]])
    assert found["expression"] == "causal()"
    assert found["convention"].startswith("additive")
    assert (found["shape"], found["dtype"], found["lint"]) == ([2, 2], "float64", [])
    assert found["frame"] == {"q_len": 2, "kv_len": 2, "batch": 1, "heads": 1, "q_start": 0}
    assert kinds(found["grid"]) == [[2, 0], [2, 2]]


def test_a_file_is_recognized_and_linted() -> None:
    data = base64.b64encode(saved(np.ones((3, 3), bool), np.savez)).decode()
    found = post("recognize", npy=data, causal=True)
    assert found["expression"] == "everything()"
    (finding,) = found["lint"]
    assert finding["code"] == "future-visible"
    assert finding["cell"] == {"batch": 0, "head": 0, "query": 0, "key": 1}
    assert finding["reason"]["params"]["key"] == 1
    assert "查询 0" in finding["message_zh"]


@pytest.mark.parametrize(
    "array",
    [
        [[0.5, "nan"], [0.1, 2.0]],
        [["inf", 1.0]],
        [[7, 9], [3, 1]],
        np.random.default_rng(0).random((4, 4)).tolist(),
    ],
)
def test_an_array_that_is_not_a_mask_has_a_message_and_no_mask(array: list[Any]) -> None:
    found = post("recognize", array=array)
    assert (found["expression"], found["grid"]) == (None, None)
    assert found["says"]


def test_an_array_without_cells_or_shape_is_refused() -> None:
    for array in ([], [[]], [[1], [1, 2]], [[1], 2], [1, [2]]):
        post_error("recognize", 400, array=array)


def test_an_expression_is_returned_if_it_is_short_enough() -> None:
    noise = np.random.default_rng(0).random((64, 64)) < 0.5
    found = post("recognize", array=noise.tolist())
    cells = mw.parse(found["expression"]).on(64).dense()[0, 0]
    assert np.array_equal(cells, noise) or np.array_equal(cells, ~noise)  # the polarity is open
    wide = np.random.default_rng(0).random((128, 128)) < 0.5
    assert post("recognize", array=wide.tolist())["expression"] is None


# ── files ─────────────────────────────────────────────────────────────────────────────────────


def saved(array: Any, save: Any = np.save, **options: Any) -> bytes:
    file = io.BytesIO()
    save(file, array, **options)
    return file.getvalue()


def file_error(data: bytes) -> HTTPError:
    with pytest.raises(HTTPError) as caught:
        read_file(data)
    return caught.value


def header(shape: str, descr: str = "|b1") -> bytes:
    """The header of a `.npy` file."""
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text


@pytest.mark.parametrize("save", [np.save, np.savez, np.savez_compressed])
@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint16, np.int64, np.float16, np.float64])
def test_files_of_numbers_are_read(save: Any, dtype: Any) -> None:
    for array in (np.tri(5).astype(dtype), np.asfortranarray(np.tri(3, 4).astype(dtype))):
        read = read_file(saved(array, save))
        assert read.dtype == array.dtype
        assert np.array_equal(read, array)


@pytest.mark.parametrize("save", [np.save, np.savez])
def test_pickles_are_never_loaded(save: Any) -> None:
    objects = np.array([{"a": 1}], dtype=object)
    error = file_error(saved(objects, save, allow_pickle=True))
    assert error.status == 400
    assert "dtype object" in error.message


@pytest.mark.parametrize(
    "shape", ["(1000000000, 1000000000)", "(1048577,)", "(2, 2, 2, 2, 2)", "(-1,)", "(2097152, 0)"]
)
def test_a_large_shape_is_refused_before_allocation(shape: str) -> None:
    assert file_error(header(shape)).status == 413


@pytest.mark.parametrize(
    "data",
    [
        *(header("(1,)", descr) for descr in ("|O", "<c16", "<U4", "|V8", "<M8[s]", "<f16")),
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
        b"\x93NUMPY\x01\x00" + (5002).to_bytes(2, "little") + b"{" + b" " * 5000 + b"}",
    ],
)
def test_invalid_files_are_refused(data: bytes) -> None:
    assert len(header("(1,)")) < MAX_HEADER
    assert file_error(data).status == 400


def zipped(*members: tuple[str, bytes]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members:
            archive.writestr(name, data)
    return file.getvalue()


def test_a_zip_bomb_is_refused() -> None:
    bomb = zipped(("a.npy", header("(67108864,)") + b"\x00" * 2**26))
    assert len(bomb) < 2**17
    assert file_error(bomb).status == 413


def test_a_zip_with_a_wrong_size_is_read_only_as_far_as_it_says() -> None:
    bomb = bytearray(zipped(("a.npy", header("(4,)") + b"\x00" * 2**24)))
    size = len(header("(4,)") + b"\x00" * 4).to_bytes(4, "little")
    directory = bomb.rindex(b"PK\x01\x02")
    bomb[directory + 24 : directory + 28] = size  # in the directory, which zipfile reads
    assert file_error(bytes(bomb)).status in (400, 413)


def test_a_zip_with_several_arrays_names_some() -> None:
    one = saved(np.eye(2))
    assert "a.npy, b.npy" in file_error(zipped(("a.npy", one), ("b.npy", one))).message
    many = zipped(*((f"{n}.npy", one) for n in range(1000)))
    assert len(file_error(many).message) < 500


@pytest.mark.parametrize("save", [np.save, np.savez, np.savez_compressed])
def test_a_file_with_any_byte_changed_is_refused_or_read(save: Any) -> None:
    data = saved(np.tri(3), save)
    for place in range(len(data)):
        for broken in (
            data[:place],
            data[:place] + bytes([data[place] ^ 0x55]) + data[place + 1 :],
            data[:place] + b"\xff" + data[place + 1 :],
        ):
            with warnings.catch_warnings(), contextlib.suppress(HTTPError):
                warnings.simplefilter("ignore")  # numpy's, about headers of old versions
                assert read_file(broken).size <= MAX_CELLS
