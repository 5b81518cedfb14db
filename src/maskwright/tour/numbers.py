"""Chapter 4: attention over three tokens, number by number."""

from __future__ import annotations

from typing import Final

from maskwright.tour.chapter import Cell, Chapter, Text

NUMBERS: Final = Chapter(
    Text("Follow the numbers", "跟着数字算一遍"),
    Text(
        "Three tokens have nine scores. The mask sets those that are hidden to −∞, and softmax makes "
        "weights of each row.",
        "三个词元，九个分数。掩码把看不到的分数改成 −∞，再对每一行做 softmax，得到权重。",
    ),
    (
        Cell(
            """
import maskwright as mw

scores = [[0.8, 0.2, 0.9], [0.4, 0.7, 0.5], [0.3, 1.1, 0.6]]
steps = mw.walkthrough("I like tea", mw.causal(), scores=scores)
steps.scene(digits=4)
""",
            after=Text(
                "The first token sees only itself, so its weight is 1. Each row adds up to 1 over what "
                "it may see.",
                "第一个词元只能看自己，权重就是 1。每一行在看得到的键上加起来都是 1。",
            ),
        ),
        Cell(
            """
import math

powers = [math.exp(score) for score in (0.3, 1.1, 0.6)]
[round(power / sum(powers), 4) for power in powers]
""",
            Text(
                "The last row by hand: e to the power of each score, divided by their sum.",
                "最后一行用手算：对每个分数取 e 的幂，再除以它们的和。",
            ),
        ),
        Cell(
            """
wrong = mw.walkthrough("I like tea", mw.causal(), scores=scores, fill=0.0)
wrong["weights"].values.round(4)
""",
            Text(
                "What if hidden scores became 0 instead of −∞?",
                "如果被遮住的分数不改成 −∞，而是改成 0，会怎样？",
            ),
            Text(
                "e to the power of 0 is 1, so the future gets weight after all: the first row is no "
                "longer 1, 0, 0.",
                "e 的 0 次方是 1，未来照样分到了权重：第一行不再是 1、0、0。",
            ),
        ),
    ),
)
