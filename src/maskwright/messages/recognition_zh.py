"""Chinese texts of the remarks of `recognize`."""

from __future__ import annotations

from typing import Final

MESSAGES: Final = {
    "recognition.first_aligned": (
        "第一个查询与第一个键对齐（q_start=0），而不是最后一个与最后一个对齐"
    ),
    "recognition.not_closed": "没有合适的闭式表达",
    "recognition.part_not_closed": "其中一部分没有合适的闭式表达",
    "recognition.float_zero_one": "浮点数 0 和 1：加到分数上不会屏蔽任何键",
    "recognition.several_mask_values": "有多个屏蔽值（{highest} … {lowest}）：两个掩码被相加了",
    "recognition.rows_like_padding": (
        '每一行看起来像一个序列的填充掩码：若是如此，请传入 axes="bk"'
    ),
}
