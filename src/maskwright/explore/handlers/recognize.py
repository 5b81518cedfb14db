"""The recognize panel: the mask of an array that is pasted, or read from an `.npy` or `.npz` file.

Headers of files are limited before anything is allocated, nothing is unpickled, and a compressed
file is read only as far as its header says.
"""

from __future__ import annotations

import io
import math
import zipfile
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.lib import format as npy

from maskwright.draw.masks import GridOptions, grid_of
from maskwright.errors import MaskError
from maskwright.explore.error_responses import HTTPError, bad_request, too_large
from maskwright.explore.expressions import text_of
from maskwright.explore.handlers.mask import PICTURE_CELLS, frame_data, grid_data
from maskwright.linting import lint
from maskwright.messages import render
from maskwright.recognition import recognize

if TYPE_CHECKING:
    import numpy.typing as npt

    from maskwright.explore.schema import RecognizeRequest
    from maskwright.recognition.encoding import Convention

MAX_CELLS: Final = 2**20
MAX_ITEM_SIZE: Final = 8  # bytes
MAX_HEADER: Final = 4096  # bytes
MAX_EXPRESSION: Final = 20_000  # characters
ZIP_MAGIC: Final = b"PK\x03\x04"


def handle_recognize(request: RecognizeRequest) -> dict[str, Any]:
    """The shortest mask that is exactly the array, the findings of `lint`, and the grid."""
    array = _to_array(request.array) if request.npy is None else read_file(request.npy)
    if array.ndim == 0 or not array.size:
        raise bad_request("The array is empty. Send one with queries and keys.")
    response = {"shape": array.shape, "dtype": str(array.dtype)}
    try:
        recognition = recognize(array)
    except MaskError as error:
        nothing = dict.fromkeys(("expression", "convention", "grid"))
        findings = _findings(array, None, request.causal)
        return {**response, **nothing, "lint": findings, "says": str(error)}
    frame, text = recognition.frame, text_of(recognition.mask)
    bound = recognition.mask.on(frame.q_len, frame.kv_len, frame.batch, frame.heads, frame.q_start)
    return {
        **response,
        "lint": _findings(array, recognition.convention, request.causal),
        "expression": text if len(text) <= MAX_EXPRESSION and "(...)" not in text else None,
        "convention": str(recognition.convention),
        "says": str(recognition),
        "frame": frame_data(frame),
        "grid": grid_data(grid_of(bound, GridOptions(max_cells=PICTURE_CELLS))),
    }


def _findings(
    array: npt.NDArray[Any], convention: Convention | None, causal: bool | None
) -> list[dict[str, Any]]:
    """The findings of `lint` under the recognized convention, which they must not contradict."""
    to = None
    if convention is not None and convention.form != "additive":
        to = "keep" if convention.keeps else "drop"
    return [
        {**finding.as_dict(), "message_zh": render(finding.reason, "zh")}
        for finding in lint(array, to=to, causal=bool(causal))
        # Floats are linted as values to add to the scores, whatever `to` is.
        if to is None or array.dtype.kind != "f" or finding.code != "inverted"
    ]


def _to_array(nested: list[Any] | None) -> npt.NDArray[Any]:
    try:
        array = np.array(_with_floats(nested))
        # JSON writes 0.0 as 0: integers other than 0 and 1 are values to add to the scores.
        return (
            array.astype(float) if array.dtype.kind == "i" and array.min(initial=0) < 0 else array
        )
    except ValueError:
        raise bad_request("The array has rows of different length.") from None


def _with_floats(value: Any) -> Any:
    """Nested lists, with the strings "nan", "inf" and "-inf" as floats."""
    if isinstance(value, list):
        return [_with_floats(item) for item in value]
    return float(value) if isinstance(value, str) else value


# ── files ─────────────────────────────────────────────────────────────────────────────────────


def read_file(data: bytes) -> npt.NDArray[Any]:
    """The array in an `.npy` or `.npz` file.

    >>> file = io.BytesIO()
    >>> np.save(file, np.eye(2, dtype=bool))
    >>> read_file(file.getvalue()).tolist()
    [[True, False], [False, True]]
    """
    return _read_zip(data) if data.startswith(ZIP_MAGIC) else _read_npy(data)


def _read_zip(data: bytes) -> npt.NDArray[Any]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            if len(members) != 1:
                names = ", ".join(member.filename[:30] for member in members[:16])
                raise bad_request(
                    f"The file has {len(members)} arrays ({names}). Send a file with one array."
                )
            (member,) = members
            known = member.compress_type in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
            if not known or member.flag_bits & 1:
                raise bad_request("The file is encrypted or its compression unknown. Use np.savez.")
            if member.file_size > MAX_CELLS * MAX_ITEM_SIZE + MAX_HEADER:
                raise too_large(f"The array has {member.file_size} bytes. Send a part of it.")
            return _read_npy(archive.read(member))
    except HTTPError:
        raise
    except Exception as error:  # of zipfile, which raises many types for broken files
        raise bad_request(f"Invalid .npz file ({str(error)[:60]}). Use np.savez.") from None


def _read_npy(data: bytes) -> npt.NDArray[Any]:
    """Checks the header before the array is allocated."""
    file = io.BytesIO(data)
    shape, dtype = _read_header(file)
    cells = math.prod(shape)
    if cells > MAX_CELLS or len(shape) > 4:
        raise too_large(
            f"The array has shape {str(shape)[:60]}, expected at most {MAX_CELLS} cells and 4 "
            "dimensions. Send a part of it."
        )
    if dtype.hasobject or dtype.kind not in "biuf" or dtype.itemsize > MAX_ITEM_SIZE:
        raise bad_request(f"The array has dtype {str(dtype)[:40]}, expected bools or numbers.")
    size, expected = len(data) - file.tell(), cells * dtype.itemsize
    if size != expected:
        raise bad_request(f"The file has {size} bytes of data, expected {expected}.")
    array: npt.NDArray[Any] = np.load(io.BytesIO(data), allow_pickle=False)
    return array


def _read_header(file: io.BytesIO) -> tuple[tuple[int, ...], np.dtype[Any]]:
    try:
        version = npy.read_magic(file)
        readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
        if version not in readers:
            raise bad_request(f"The file has format version {version}. Use np.save.")
        shape, _, dtype = readers[version](file, max_header_size=MAX_HEADER)
    except HTTPError:
        raise
    except Exception as error:  # of numpy, which raises many types for broken headers
        raise bad_request(f"Invalid .npy file ({str(error)[:60]}). Use np.save.") from None
    if any(not 0 <= side <= MAX_CELLS for side in shape):
        raise too_large("A dimension of the array is too large. Send a part of it.")
    return shape, dtype
