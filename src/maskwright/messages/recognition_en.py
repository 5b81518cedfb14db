"""English texts of the remarks of `recognize`."""

from __future__ import annotations

from typing import Final

MESSAGES: Final = {
    "recognition.first_aligned": (
        "the first query is aligned with the first key (q_start=0), not the last with the last"
    ),
    "recognition.not_closed": "no closed form fits",
    "recognition.part_not_closed": "no closed form fits some of its parts",
    "recognition.float_zero_one": "0 and 1 as floats: added to scores, they mask nothing",
    "recognition.several_mask_values": (
        "several mask values ({highest} … {lowest}): two masks were summed"
    ),
    "recognition.rows_like_padding": (
        'each row looks like the padding mask of a sequence: if it is one, pass axes="bk"'
    ),
}
