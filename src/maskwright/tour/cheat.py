"""Chapter 8: one small language model trained twice, with its mask and without."""

from __future__ import annotations

from typing import Final

from maskwright.tour.chapter import Cell, Chapter, Text

CHEAT: Final = Chapter(
    Text("Train BabyGPT with its mask and without", "训练 BabyGPT：有掩码和没有掩码"),
    Text(
        "BabyGPT has one layer of attention, and learns from Python's own help to name each next "
        "letter. The same model is trained twice, some seconds each: under causal(), and under "
        "everything(), where the next letter stands there to be copied.",
        "BabyGPT 只有一层注意力，用 Python 自带的帮助文档学习预测下一个字母。"
        "同一个模型训练两遍，每遍几秒：一遍用 causal()；一遍用 everything()，"
        "这时下一个字母就摆在眼前，照抄就行。",
    ),
    (
        Cell(
            """
from maskwright.apps.app import Wishes
from maskwright.apps.cheat import compare_masks
from maskwright.apps.language import Language
from maskwright.apps.training import Course

wishes = Wishes(version="v3", batch=16)
course = Course(steps=300, rate=1e-2, warmup=20, evaluate_every=300)
print(compare_masks(Language(), wishes, mask="everything", course=course))
""",
            after=Text(
                "Without its mask the model's training loss is far lower, since it copies what it "
                "should predict. When it writes by itself there is nothing to copy from, and what it "
                "gives is worthless. So a splendid loss is no proof; an audit is.",
                "没有掩码，训练损失低得多，因为模型直接照抄了本该预测的字母。"
                "轮到它自己写的时候，没有东西可抄，写出来的毫无用处。"
                "所以损失好看并不说明问题，检查过才算数。",
            ),
            needs=("torch", "tokenizers", "safetensors"),
        ),
    ),
)
