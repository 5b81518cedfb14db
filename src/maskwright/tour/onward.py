"""Chapter 9: which question is answered by which command."""

from __future__ import annotations

from typing import Final

from maskwright.tour.chapter import Chapter, Text

ONWARD: Final = Chapter(
    Text("What to do next", "接下来做什么"),
    Text("Which question do you have?", "你想做什么？"),
    commands=(
        (
            "maskwright explore",
            Text(
                "Where can I try things out? On a page that draws, explains and calculates as you type.",
                "想自己动手试试？打开这个网页，边输入边画图、解释、计算。",
            ),
        ),
        (
            'maskwright show "causal() | prefix(3)"',
            Text("What does a mask look like?", "一个掩码长什么样？"),
        ),
        (
            'maskwright explain "causal()" --tokens "I like tea"',
            Text("What does it do to the numbers?", "它怎样影响计算中的数字？"),
        ),
        (
            'maskwright lower "causal() & padding(lengths=[3, 5])" --to torch.mha',
            Text("How do I hand it to my framework?", "怎样交给我用的框架？"),
        ),
        (
            "maskwright recognize mask.npy",
            Text("What is this array that I have?", "手头这个数组是什么掩码？"),
        ),
        (
            "maskwright lint mask.npy",
            Text("And what is wrong with it?", "它有什么问题？"),
        ),
        (
            "maskwright audit mypackage.models:build --expects causal --length 64",
            Text("Does my model respect its mask?", "我的模型守规矩吗？"),
        ),
        (
            'maskwright bench "window(back=255)"',
            Text("How fast is it here?", "在这台机器上有多快？"),
        ),
        (
            "maskwright train language",
            Text("How is a model trained with it?", "怎样用它训练模型？"),
        ),
        (
            "maskwright --help",
            Text("What else is there?", "还有些什么？"),
        ),
    ),
)
