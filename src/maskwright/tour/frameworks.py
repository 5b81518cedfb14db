"""Chapter 5: one mask in the forms of five frameworks."""

from __future__ import annotations

from typing import Final

from maskwright.tour.chapter import Cell, Chapter, Text

FRAMEWORKS: Final = Chapter(
    Text("Hand it to five frameworks", "交给五个框架"),
    Text(
        "Frameworks say masks in ways of their own: here True keeps, there it drops; here a flag is "
        "enough, there it must be an array. lower() gives exactly this mask, or refuses.",
        "每个框架都有自己的写法：有的 True 表示保留，有的表示丢弃；有的用一个开关就够，"
        "有的非要一个数组。lower() 给出的一定就是这个掩码；做不到就拒绝。",
    ),
    (
        Cell(
            """
import numpy as np

import maskwright as mw

mask = mw.causal() & mw.padding(lengths=[3, 4])
q, k, v = np.random.default_rng(0).standard_normal((3, 2, 1, 4, 8)).astype(np.float32)

keep = mw.lower(mask, "numpy", q_len=4)  # True keeps
scores = np.where(keep, q @ k.swapaxes(2, 3) / 8**0.5, -np.inf)
weights = np.exp(scores) / np.exp(scores).sum(axis=3, keepdims=True)
expected = weights @ v
print(*keep[:, 0].astype(int).tolist(), sep="\\n")
""",
            Text(
                "First without any framework: an array, and attention by hand. It is what the others "
                "are compared with.",
                "先不用任何框架：一个数组，手写的注意力。后面的结果都和它比较。",
            ),
        ),
        Cell(
            """
import torch

given = mw.lower(mask, "torch.sdpa", q_len=4)
tensors = (torch.from_numpy(x) for x in (q, k, v))
output = torch.nn.functional.scaled_dot_product_attention(*tensors, **given)
print("SDPA gets a mask of", tuple(given["attn_mask"].shape))
print("and its output differs by", abs(output.numpy() - expected).max())

given = mw.lower(mask, "torch.mha", q_len=4)  # there, True drops
print("nn.MultiheadAttention gets", given["key_padding_mask"].int().tolist())
""",
            Text(
                "1. PyTorch has both habits: in SDPA True keeps, in nn.MultiheadAttention it drops.",
                "1. PyTorch 两种习惯都有：在 SDPA 里 True 表示保留，"
                "在 nn.MultiheadAttention 里表示丢弃。",
            ),
            needs=("torch",),
        ),
        Cell(
            """
print(mw.lower(mask, "hf", q_len=4))
""",
            Text(
                "2. The decoders of transformers hide the future by themselves, so only the padding is "
                "handed over.",
                "2. transformers：它的解码器自己会遮住未来，所以只需要交出填充。",
            ),
            needs=("torch",),
        ),
        Cell(
            """
packed = mw.recipes.packed(lengths=[[3, 4]])
print(mw.lower(packed, "flash.varlen"))
try:
    mw.lower(mw.causal() | mw.prefix(3), "flash.varlen", q_len=8)
except mw.Unsupported as refusal:
    print(refusal)
""",
            Text(
                "3. flash-attn takes packed texts by their offsets. What it can't say, such as a prefix, "
                "is refused, never dropped.",
                "3. flash-attn：拼接在一起的文本用偏移量表示。"
                "它说不出来的（比如前缀）会被拒绝，绝不会悄悄丢掉。",
            ),
            needs=("torch",),
        ),
        Cell(
            """
import jax

given = mw.lower(mask, "jax", q_len=4)
output = jax.nn.dot_product_attention(*(x.swapaxes(1, 2) for x in (q, k, v)), **given)
print("JAX gets", given)
print("and its output differs by", abs(output.swapaxes(1, 2) - expected).max())
""",
            Text(
                "4. JAX needs no array at all: a flag and lengths say the same.",
                "4. JAX：连数组都不用，一个开关加上长度就够了。",
            ),
            needs=("jax",),
        ),
        Cell(
            """
import os

os.environ.setdefault("KERAS_BACKEND", "torch")
given = mw.lower(mask, "keras", q_len=4)
print("Keras gets a mask of", tuple(given["attention_mask"].shape))
""",
            Text(
                "5. Keras: its MultiHeadAttention wants no axis for heads.",
                "5. Keras：它的 MultiHeadAttention 不要“头”这一维。",
            ),
            needs=("keras", "torch"),
        ),
    ),
)
