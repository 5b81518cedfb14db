"""What is said around the chapters, in both languages."""

from __future__ import annotations

from typing import Final

from maskwright.tour.chapter import Text

TITLE: Final = Text("A tour of maskwright", "maskwright 入门导览")
THEORY: Final = Text(
    "A mask is the set of (batch, head, query, key) cells in which a query may see a key. Every "
    "query's row of it is a few intervals of keys.",
    "掩码是一个集合，由（批次、头、查询、键）的格子组成：在这些格子里，查询可以看到键。"
    "每个查询的那一行，不过是几段连续的键。",
)
MEASURED: Final = Text(
    "All of this was run on the machine that wrote it, on {when}: {versions}, {cores} cores.",
    "这一页上的代码都在写出它的那台机器上真实运行过（{when}）：{versions}，{cores} 个核。",
)
CONTENTS: Final = Text("Contents", "目录")
SKIP: Final = Text("Skip the contents", "跳过目录")
BACK: Final = Text("Back to the contents", "回到目录")
CODE: Final = Text("Code", "代码")
OUTPUT: Final = Text("Output", "输出")
PICTURE: Final = Text("Picture", "图")
IN_WORDS: Final = Text("The picture in words (English)", "图的文字说明（英文）")
TOOK: Final = Text("That took {seconds:.0f} seconds.", "全程用时 {seconds:.0f} 秒。")
WRITTEN: Final = Text("The same as a page: {path}", "同样的内容也写成了网页：{path}")
