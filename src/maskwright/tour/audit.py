"""Chapter 7: a model that forgot its mask in one layer, found out by its behaviour."""

from __future__ import annotations

from typing import Final

from maskwright.tour.chapter import Cell, Chapter, Text

AUDIT: Final = Chapter(
    Text("Audit a model", "检查模型是否守规矩"),
    Text(
        "A model may be given the right mask and lose it on the way. audit() changes inputs, watches "
        "outputs, and tells what depends on what it should not.",
        "给对了掩码，模型也可能在半路把它弄丢。audit() 改动输入、观察输出，"
        "说出哪些地方依赖了不该依赖的东西。",
    ),
    (
        Cell(
            """
import torch
from torch import nn

import maskwright as mw


class Decoder(nn.Module):
    def __init__(self, masked_layers):
        super().__init__()
        self.masked_layers = masked_layers
        self.words = nn.Embedding(50, 16)
        self.layers = nn.ModuleList(
            nn.MultiheadAttention(16, 2, batch_first=True) for _ in range(3)
        )

    def forward(self, ids):
        x = self.words(ids)
        future = torch.ones(ids.shape[1], ids.shape[1]).triu(1).bool()
        for n, layer in enumerate(self.layers):
            hidden = future if n < self.masked_layers else None
            x = x + layer(x, x, x, attn_mask=hidden, need_weights=False)[0]
        return x


torch.manual_seed(0)
ids = torch.randint(50, (2, 12))
print(mw.audit(Decoder(masked_layers=2), ids, expects="causal"))
""",
            Text(
                "This one has three layers, and the last of them gets no mask.",
                "下面这个模型有三层，最后一层没有拿到掩码。",
            ),
            Text(
                "It names the layer, the cause and the fix. In training such a model looks splendid: it "
                "reads what it is asked to predict.",
                "它说出了是哪一层、什么原因、怎么改。训练时，这样的模型看起来好得出奇："
                "要它预测的东西，它早就看到了。",
            ),
            needs=("torch",),
        ),
        Cell(
            """
from maskwright.draw.masks import difference_of

moved = mw.influence(Decoder(masked_layers=2), ids).moved[0]
difference_of(mw.dense(moved).on(12), mw.causal().on(12))
""",
            Text(
                "What depends on what can be measured, and drawn beside what should be.",
                "谁依赖谁，可以量出来，再和应有的样子对照着画出来。",
            ),
            Text(
                "dense(...) is what was measured. All of the upper right is the future, and is seen.",
                "dense(...) 就是量出来的结果。右上角全是未来，却都看到了。",
            ),
            needs=("torch",),
        ),
        Cell(
            """
print(mw.audit(Decoder(masked_layers=3), ids, expects="causal"))
""",
            Text("And the same model, mended.", "再看改好之后的同一个模型。"),
            Text(
                "Every probe passes, or says why it did not apply.",
                "每一项检查都通过了；不适用的，也说明了原因。",
            ),
            needs=("torch",),
        ),
    ),
)
