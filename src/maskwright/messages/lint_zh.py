"""Chinese texts of the findings of lint."""

from __future__ import annotations

from typing import Final

MESSAGES: Final = {
    "lint.finding": "{code}：{reason}{fix}",
    "lint.no_findings": "没有发现问题",
    # Parts of sentences
    "lint.at_anywhere": " ",
    "lint.at_batch": "（批次行 {batch}）",
    "lint.at_head": "（头 {head}）",
    "lint.at_batch_head": "（批次行 {batch}，头 {head}）",
    "lint.axis_b": "批次行",
    "lint.axis_h": "头",
    "lint.axis_q": "查询",
    "lint.axis_k": "键",
    "lint.addend_score": "分数",
    "lint.addend_mask": "另一个掩码",
    "lint.more": "及另外 {count} 个查询",
    "lint.no_more": "",
    # Values of a mask array
    "fill-at-limit.message": "掩码值 {fill:.5g} 接近该数据类型的最小值：再加上{addend}就成为 -inf，"
    "完全屏蔽的行产生 NaN。",
    "fill-overflows.message": "掩码值 {fill:.5g} 超出 {dtype} 的范围，其最小值为 {limit:.5g}："
    "它会成为 -inf，而 0 * -inf 是 NaN。",
    "fill-too-weak.message": "掩码值 {fill:.3g} 过于接近 0：同样大小的分数差就能将它抵消。",
    "integer-bias.message": "加到分数上的应为浮点数组，实际为 {dtype}。",
    "integer-wrapped.message": "数组含有 {low} 和 {high}：在 {dtype} 中对 0 和 1 取 {operator} 会回绕。",
    "nan-value.message": "数组含有 NaN：凡与它相加的分数都成为 NaN。",
    "no-values.message": "无法读取掩码的值：{error}。",
    "odd-values.message": "应为 0 和 1，实际有 {value}。",
    "positive-value.message": "数组含有 {value:.3g}：它会提高分数，而不是屏蔽键。",
    "summed-fills.message": "应只有一个掩码值，实际有 {high:.3g} 和 {low:.3g}：两个加性掩码被相加。",
    "wrong-form.message": "应为布尔掩码，实际为加性掩码：按布尔值读取时，0 表示屏蔽，其他值都表示保留。",
    "zero-one-added.message": "应为 0 和 -inf，实际为 0 和 1（{dtype}）：加到分数上什么也不会屏蔽。",
    "wrong-device.message": "掩码应在查询和键所在的设备 {expected} 上，实际在 {actual} 上。",
    # Its shape
    "batch-on-heads.broadcast": "形状 {shape} 从右侧开始广播，因此它的 {batch} 个批次行与头对齐"
    "（若该轴确实是头，请传入 axes='hqk'）。",
    "batch-on-heads.axis": "形状 {shape} 的 {batch} 个批次行位于头的轴上：应为 mask.swapaxes(0, 1)。",
    "batch-on-queries.message": "形状 {shape} 从右侧开始广播，因此它的 {batch} 个批次行与查询对齐"
    "（若该轴确实是查询，请传入 axes='qk'）。",
    "does-not-broadcast.message": "{axis}数应为 {expected} 或 1，实际为 {actual}：形状 {shape}。",
    "does-not-broadcast.batch": "形状 {shape} 从右侧开始广播，因此它的 {batch} 个批次行与 {count} 个"
    "{axis}对齐：应为 {index}。",
    "does-not-fit.message": "{error}。",
    "keys-mismatch.message": "键数应为 {expected}，实际为 {actual}：形状 {shape}。",
    "queries-mismatch.message": "查询数应为 {expected}，实际为 {actual}：形状 {shape}。",
    "wrong-rank.message": "应为 {expected}，实际有 {rank} 个轴：形状 {shape}。",
    # Its cells
    "aligned-lower-right.message": "第一个查询的位置应为 {expected}，实际为 {actual}。",
    "aligned-upper-left.message": "第一个查询的位置应为 {expected}，实际为 {actual}。",
    "differs.message": "应为 {mask}：{reason}。",
    "documents-leak.message": "查询 {query}{at}关注键 {key}，但 {terms}。",
    "empty-row.nan": "查询 {query}{at}{more}的所有键都被屏蔽，softmax 产生 NaN。",
    "empty-row.uniform": "查询 {query}{at}{more}的所有键都被屏蔽，softmax 在所有键上均匀分布"
    "（每个分数都是 {fill:.3g}）。",
    "future-visible.message": "查询 {query}{at}关注键 {key}，而它的位置更靠后。",
    "inverted.complement": "应为 {mask}，实际为其补集。",
    "inverted.future": "每个查询都只关注位置更靠后的键。",
    "inverted.padding": "查询 {query}{at}关注键 {key}，而它是填充，并且没有查询关注任何词元。",
    "inverted.window": "没有查询关注自身，并且每个查询只屏蔽一段连续的键。",
    "own-position-hidden.message": "查询 {query}{at}不关注键 {key}，即它自身的位置。",
    "padding-on-queries.message": "查询 {query}{at}关注键 {key}，而它是填充；填充查询所在的行却被屏蔽。",
    "padding-on-queries.rows": "每个查询要么关注所有键，要么不关注任何键。",
    "padding-visible.message": "查询 {query}{at}关注键 {key}，而它是填充。",
    "queries-and-keys-swapped.message": "应为 {mask}，实际为其转置。",
    "real-key-hidden.message": "键 {key}{at}不是填充，却没有查询关注它。",
    "window.back": "应为 {window}，即往回 {expected} 个键（包括查询自身），实际为 {actual} 个。",
    "window.ahead": "应为 {window}，即往后 {expected} 个键，实际为 {actual} 个。",
}
