"""Arrays from files: `.npy` and `.npz`, whose headers are read and bounded before anything is made.

Nothing is unpickled. A compressed file is read up to the size that its header asks for and no
further, so that a small file can't unfold into a large one.
"""

from __future__ import annotations

import base64
import binascii
import io
import math
import zipfile
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.lib import format as npy

from maskwright.explore.faults import Fault, too_large, wrong

if TYPE_CHECKING:
    from typing import IO

    import numpy.typing as npt

MOST_CELLS: Final = 2**20
LARGEST_ITEM: Final = 8  # bytes
MOST_HEADER: Final = 4096
MOST_MEMBERS: Final = 16
ZIP: Final = b"PK\x03\x04"
METHODS: Final = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)


def read_file(text: str) -> npt.NDArray[Any]:
    """The array in a `.npy` or `.npz` file that is given in base64.

    >>> import base64, io
    >>> file = io.BytesIO()
    >>> np.save(file, np.eye(2, dtype=bool))
    >>> read_file(base64.b64encode(file.getvalue()).decode()).tolist()
    [[True, False], [False, True]]
    """
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise wrong("npy is no base64. Send the file's bytes in base64.") from None
    if data.startswith(ZIP):
        return _read_zip(data)
    return _read_npy(io.BytesIO(data))


def _read_zip(data: bytes) -> npt.NDArray[Any]:
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            members = archive.infolist()
            if len(members) != 1:
                names = ", ".join(member.filename[:30] for member in members[:MOST_MEMBERS])
                raise wrong(
                    f"The file holds {len(members)} arrays ({names}). Send a file with one array."
                )
            (member,) = members
            if member.compress_type not in METHODS or member.flag_bits & 1:
                raise wrong("The file is encrypted or compressed in an unknown way. Use np.savez.")
            if member.file_size > MOST_CELLS * LARGEST_ITEM + MOST_HEADER:
                raise too_large(
                    f"The array unfolds to {member.file_size} bytes. Send a part of it."
                )
            with archive.open(member) as file:
                return _read_npy(file)
    except Fault:
        raise
    except Exception as error:  # a broken file can make zipfile fail in any way
        raise wrong(f"The file is no .npz ({str(error)[:60]}). Use np.savez.") from None


def _read_npy(file: IO[bytes]) -> npt.NDArray[Any]:
    """Read the header, then just as many bytes as it says, and hand both to numpy."""
    shape, dtype = _read_header(start := _Kept(file))
    cells = math.prod(shape)
    if cells > MOST_CELLS or len(shape) > 4:
        raise too_large(
            f"The array has shape {str(shape)[:60]}, more than {MOST_CELLS} cells or 4 axes. "
            "Send a part of it."
        )
    if dtype.hasobject or dtype.kind not in "biuf" or dtype.itemsize > LARGEST_ITEM:
        raise wrong(f"The array has dtype {str(dtype)[:40]}. Send truth values or plain numbers.")
    size = cells * dtype.itemsize
    body = file.read(size + 1)
    if len(body) != size:
        raise wrong(
            f"The header says {size} bytes of numbers, which are not what is there. Save it again."
        )
    array: npt.NDArray[Any] = np.load(io.BytesIO(start.seen + body), allow_pickle=False)
    return array


class _Kept:
    """A file of which only the first bytes are read, and kept."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self.seen = file, b""

    def read(self, size: int) -> bytes:
        """Some more of it, while that is little."""
        if not 0 <= size <= MOST_HEADER - len(self.seen):
            raise wrong(f"The header has more than {MOST_HEADER} bytes. Save the array again.")
        more = self._file.read(size)
        self.seen += more
        return more


def _read_header(file: Any) -> tuple[tuple[int, ...], np.dtype[Any]]:
    try:
        version = npy.read_magic(file)
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
        if version not in read:
            raise wrong(f"The file has version {version}. Save it with np.save.")
        shape, _, dtype = read[version](file, max_header_size=MOST_HEADER)
    except Fault:
        raise
    except Exception as error:  # a broken header can make numpy fail in any way
        raise wrong(f"The file is no .npy ({str(error)[:60]}). Save it with np.save.") from None
    if any(not 0 <= side <= MOST_CELLS for side in shape):
        raise too_large("The array has a side that is too long. Send a part of it.")
    return shape, dtype
