"""What the steps of attention are called, and what they do, in English and Chinese."""

from __future__ import annotations

from typing import Final

TITLES: Final = {
    "x": {"en": "Tokens as numbers", "zh": "把词元变成数字"},
    "q": {"en": "Queries", "zh": "查询 Q"},
    "k": {"en": "Keys", "zh": "键 K"},
    "v": {"en": "Values", "zh": "值 V"},
    "scores": {"en": "Scores", "zh": "打分"},
    "scaled": {"en": "Scaled scores", "zh": "缩放后的分数"},
    "masked": {"en": "Masked scores", "zh": "加上掩码的分数"},
    "weights": {"en": "Weights", "zh": "注意力权重"},
    "output": {"en": "Output", "zh": "输出"},
}

SAYS: Final = {
    "x": {
        "en": "Each token is a row of numbers.",
        "zh": "每个词元是一行数字。",
    },
    "q": {
        "en": "What each token looks for. The rows keep the order of the tokens.",
        "zh": "每个词元想找什么。行的顺序就是词元的顺序。",
    },
    "k": {
        "en": "What each token offers to be found by.",
        "zh": "每个词元凭什么被找到。",
    },
    "v": {
        "en": "What each token hands over when it is looked at.",
        "zh": "每个词元被看到时交出的内容。",
    },
    "scores": {
        "en": "How well each query (row) fits each key (column).",
        "zh": "每个查询（行）和每个键（列）有多匹配。",
    },
    "scaled": {
        "en": "Divided by the root of the head size, so that softmax does not grow too sharp.",
        "zh": "除以头维度的平方根，softmax 才不会过于尖锐。",
    },
    "masked": {
        "en": "What a query may not see is overwritten before the softmax.",
        "zh": "在 softmax 之前，把查询不该看到的分数覆盖掉。",
    },
    "weights": {
        "en": "Each row adds up to 1 over the keys that it may see; a row that sees none is all 0.",
        "zh": "每一行在可见的键上加起来等于 1；一个键都看不到的行全为 0。",
    },
    "output": {
        "en": "Each row is the mean of the values, by its weights.",
        "zh": "每一行是各个值按权重的平均。",
    },
}
