"""Chapter 6: attention under a mask, timed beside PyTorch's own on this machine."""

from __future__ import annotations

from typing import Final

from maskwright.tour.chapter import Cell, Chapter, Text

SPEED: Final = Chapter(
    Text("Run attention, and time it", "运行注意力，并且计时"),
    Text(
        "attention(q, k, v, mask) computes what the mask lets through, and skips the rest.",
        "attention(q, k, v, mask) 只算掩码放行的部分，其余的直接跳过。",
    ),
    (
        Cell(
            """
import torch

import maskwright as mw

tokens = 4096
q, k, v = torch.randn(3, 1, 8, tokens, 64)  # 8 heads of 64
sdpa = torch.nn.functional.scaled_dot_product_attention

mask = mw.window(back=255).on(tokens)
ours = mw.attention(q, k, v, mask)
theirs = sdpa(q, k, v, **mw.lower(mask, "torch.sdpa"))
print(f"the largest difference is {(ours - theirs).abs().max():.1e}")
""",
            Text(
                "The result is that of PyTorch, up to rounding.",
                "结果和 PyTorch 的一样，只差舍入误差。",
            ),
            needs=("torch",),
        ),
        Cell(
            """
import time


def best_of(turns, run):
    times = []
    for _ in range(turns):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return 1000 * min(times)


masks = {
    "window of 256": mw.window(back=255),
    "8 packed documents": mw.causal() & mw.documents(lengths=[[tokens // 8] * 8]),
    "causal": mw.causal(),
}
for name, mask in masks.items():
    bound = mask.on(tokens)
    given = mw.lower(bound, "torch.sdpa")  # a flag where that is exact, else dense
    ours = best_of(5, lambda: mw.attention(q, k, v, bound))
    theirs = best_of(5, lambda: sdpa(q, k, v, **given))
    print(f"{name:<20}{ours:6.0f} ms, SDPA {theirs:6.0f} ms: {theirs / ours:.1f} times as fast")
""",
            Text(
                "Now timed, on this machine, the best of five each. SDPA gets causal() as a flag, for "
                "which it has a fast way of its own, and the others as a dense mask.",
                "现在就在这台机器上计时，各跑五次，取最快的一次。对 SDPA 来说，causal() 只是一个开关，"
                "它有专门的快速算法；另外两个只能给它完整的矩阵。",
            ),
            Text(
                "The less a mask lets through, the more there is to skip. maskwright bench does this for "
                "any mask.",
                "掩码放行得越少，能跳过的就越多。maskwright bench 可以给任何掩码计时。",
            ),
            needs=("torch",),
        ),
    ),
)
