"""Chapters 1 to 3: say a mask, see it, and ask why a cell is hidden."""

from __future__ import annotations

from typing import Final

from maskwright.tour.chapter import Cell, Chapter, Text

SAY: Final = Chapter(
    Text("Say a mask", "说出一个掩码"),
    Text(
        "A mask says which keys (columns) each query (row) may see. Atoms are simple masks with a name, "
        "and & (and), | (or), ~ (not) join them.",
        "掩码只说一件事：每个查询（一行）可以看到哪些键（列）。"
        "最简单的掩码各有名字，再用 &（与）、|（或）、~（非）组合起来。",
    ),
    (
        Cell(
            """
import maskwright as mw

mask = mw.causal() & mw.padding(lengths=[3, 4])
print(mask.on(4))
""",
            Text(
                "Here two sentences of 3 and 4 tokens are padded to 4. No token sees the future, and "
                "none sees the padding.",
                "这里有两个句子，分别是 3 个和 4 个词元，都补齐到 4 个。"
                "谁也看不到未来，谁也看不到填充。",
            ),
            Text(
                "In the first sentence column 3 is padding: it is hidden from all.",
                "第一句的第 3 列是填充，对所有查询都遮住了。",
            ),
        ),
        Cell(
            """
long = mw.causal() & mw.window(back=4095) & mw.documents(lengths=[[2048] * 512])
long.on(1_048_576).tiles(128).counts()
""",
            Text(
                "A mask has no size until on() gives it one. It is kept as a few intervals of keys a "
                "row, so a million tokens are as exact as four.",
                "掩码本身没有大小，on() 才给它一个。每一行只记几段连续的键，"
                "所以一百万个词元和四个词元一样精确。",
            ),
            Text(
                "Of 67 million tiles of 128 × 128 cells all but 70 thousand are empty. Nothing as large as "
                "the whole was ever built.",
                "在 6700 万个 128 × 128 的方块里，只有约 7 万个不是空的。"
                "从头到尾都没有把整个矩阵造出来。",
            ),
        ),
    ),
)

SEE: Final = Chapter(
    Text("See it", "看一看"),
    Text(
        "Any mask can be drawn. A notebook draws a bound mask by itself, and "
        'mw.picture(mask.on(4), "mask.svg") writes a file.',
        "任何掩码都能画出来。在笔记本里，定好大小的掩码会自己显示成图；"
        '用 mw.picture(mask.on(4), "mask.svg") 可以存成文件。',
    ),
    (
        Cell(
            """
import maskwright as mw
from maskwright.draw.masks import scene_of

tokens = [["I", "like", "tea", "<pad>"], ["We", "all", "like", "tea"]]
scene_of((mw.causal() & mw.padding(lengths=[3, 4])).on(4), tokens=tokens)
""",
            Text("The mask of chapter 1, with its tokens.", "第 1 章的那个掩码，这次标上词元。"),
        ),
        Cell(
            """
mw.recipes.sinks(4, sinks=2).on(16)
""",
            Text(
                "And one that a paper names: a window of four tokens, and the first two always in view.",
                "再看一个论文里有名字的：只看最近四个词元，另外始终看得到最前面的两个。",
            ),
            Text(
                "Its title is what it is made of. All recipes are such compositions.",
                "标题就是它的组成。所有这类配方都是由简单掩码拼成的。",
            ),
        ),
    ),
)

WHY: Final = Chapter(
    Text("Ask why a cell is hidden", "问一问：这一格为什么看不到"),
    Text(
        "Every cell can say which part of the mask stops it, or lets it through.",
        "每一格都能说清楚：是掩码的哪一部分拦下了它，或者放行了它。",
    ),
    (
        Cell(
            """
import maskwright as mw

bound = (mw.causal() & mw.padding(lengths=[3, 4])).on(4)
print(bound.why(0, 2))
print(bound.why(3, 3, batch=0))
print(bound.why(3, 3, batch=1))
""",
            after=Text(
                "Key 2 lies in the future of query 0. Key 3 is padding in the first sentence, and a "
                "real token in the second.",
                "对查询 0 来说，键 2 在未来。键 3 在第一句里是填充，在第二句里是真实的词元。",
            ),
        ),
    ),
)
