"""The core and its peers: spans and tiles against create_block_mask, dense against numpy.

One table row per claim: ours, the peer's, the ratio, and the goal.
"""

from __future__ import annotations

import warnings

import numpy as np

import maskwright as mw
from benchmarks.measure import best_of, in_new_process, machine, save, table

TOKENS, WINDOW, DOCUMENTS, BLOCK = 16_384, 1_024, 100, 128
LENGTHS = [65_536, 131_072, 262_144, 524_288, 1_048_576]

_LONG = r"""
import json, re, time
from pathlib import Path
import numpy as np
import maskwright as mw
tokens, documents = {tokens}, {tokens} // 2_097
cuts = np.sort(np.random.default_rng(0).choice(np.arange(1, tokens), documents - 1, replace=False))
lengths = np.diff(np.concatenate([[0], cuts, [tokens]])).tolist()
def run():
    mask = mw.causal() & mw.window(back=4_095) & mw.documents(lengths=[lengths])
    start = time.perf_counter()
    bound = mask.on(tokens)
    bound.spans
    middle = time.perf_counter()
    tiles = bound.tiles({block})
    return middle - start, time.perf_counter() - middle
def resident(kind):  # kB; VmHWM is the highest so far of this process alone
    return int(re.search(kind + r":\s+(\d+)", Path("/proc/self/status").read_text())[1])
before = resident("VmRSS")
first = run()
peak = resident("VmHWM") - before
runs = [run() for _ in range(9)]
print(json.dumps(dict(zip(("spans", "tiles"), map(min, zip(*runs))), peak=peak / 1024)))
"""

_IMPORT = """
import json, time
start = time.perf_counter()
import maskwright
print(json.dumps(time.perf_counter() - start))
"""


def document_lengths(tokens: int, count: int) -> list[int]:
    """`count` documents of random lengths that fill `tokens`."""
    rng = np.random.default_rng(0)
    cuts = np.sort(rng.choice(np.arange(1, tokens), count - 1, replace=False))
    return np.diff(np.concatenate([[0], cuts, [tokens]])).tolist()


def beside_create_block_mask(rounds: int = 3) -> dict[str, float]:
    """Causal ∧ window ∧ documents: spans and tiles, and PyTorch's block mask of the same."""
    import torch
    from torch.nn.attention.flex_attention import create_block_mask

    lengths = document_lengths(TOKENS, DOCUMENTS)
    ids = torch.repeat_interleave(torch.arange(DOCUMENTS), torch.tensor(lengths))

    def mask_mod(b, h, q, k):  # noqa: ARG001
        return (q >= k) & (q - k < WINDOW) & (ids[q] == ids[k])

    def ours() -> mw.Tiles:
        mask = mw.causal() & mw.window(back=WINDOW - 1) & mw.documents(lengths=[lengths])
        bound = mask.on(TOKENS)
        bound.spans  # noqa: B018 - read, and kept for the tiles
        return bound.tiles(BLOCK)

    def theirs():
        return create_block_mask(mask_mod, None, None, TOKENS, TOKENS, "cpu", BLOCK)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check_same(ours(), theirs())
        best = best_of(rounds, {"ours": ours, "theirs": theirs})
    best["ours"] = min(best["ours"], best_of(50, {"ours": ours})["ours"])
    return best


def check_same(tiles: mw.Tiles, theirs) -> None:
    """Both must have found the same full and partial blocks, or the times mean nothing."""
    kinds = tiles.kinds()[0, 0]
    partial = blocks_of(theirs.kv_num_blocks, theirs.kv_indices, kinds.shape)
    full = blocks_of(theirs.full_kv_num_blocks, theirs.full_kv_indices, kinds.shape)
    assert np.array_equal(kinds == 1, partial)
    assert np.array_equal(kinds == 2, full)


def blocks_of(counts, indices, shape: tuple[int, int]) -> np.ndarray:
    lit = np.zeros(shape, bool)
    for row, count in enumerate(counts[0, 0].tolist()):
        lit[row, indices[0, 0, row, :count].numpy()] = True
    return lit


def dense_beside_numpy(rounds: int = 2_000) -> dict[str, float]:
    """A batch of 32 × 128: bind causal ∧ padding and make the array, against numpy by hand."""
    lengths = np.random.default_rng(0).integers(1, 129, 32)

    def ours() -> np.ndarray:
        return (mw.causal() & mw.padding(lengths=lengths)).on(128).dense()

    def theirs() -> np.ndarray:
        real = np.arange(128) < lengths[:, None]
        return np.tril(np.ones((128, 128), bool)) & real[:, None, None, :]

    assert np.array_equal(ours(), theirs())
    return best_of(rounds, {"ours": ours, "theirs": theirs})


def run() -> None:
    """Measure everything, print the tables, keep the JSON."""
    blocks = beside_create_block_mask()
    dense = dense_beside_numpy()
    long = {tokens: in_new_process(_LONG.format(tokens=tokens, block=BLOCK)) for tokens in LENGTHS}
    imports = min(in_new_process(_IMPORT) for _ in range(5))
    growth = {
        tokens: (row["spans"] + row["tiles"])
        / (long[LENGTHS[0]]["spans"] + long[LENGTHS[0]]["tiles"])
        / (tokens / LENGTHS[0])
        for tokens, row in long.items()
    }
    print(f"\n{machine()}\n")
    print(
        table(
            ["what", "ours", "peer", "ratio", "wanted"],
            [
                [
                    f"spans + tiles, {TOKENS} tokens, causal & window {WINDOW} & "
                    f"{DOCUMENTS} documents, compared with create_block_mask",
                    f"{blocks['ours'] * 1e3:.2f} ms",
                    f"{blocks['theirs'] * 1e3:.0f} ms",
                    f"{blocks['theirs'] / blocks['ours']:.0f} times faster",
                    "1000 times",
                ],
                [
                    "bind causal & padding, B = 32, T = 128, dense(), compared with numpy",
                    f"{dense['ours'] * 1e6:.0f} µs",
                    f"{dense['theirs'] * 1e6:.0f} µs",
                    f"{dense['ours'] / dense['theirs']:.2f} times the time",
                    "at most 2",
                ],
                ["import maskwright", f"{imports:.3f} s", "", "", "below 0.25 s"],
            ],
        )
    )
    print("\ncausal & window 4096 & documents of 2,097 tokens on average:\n")
    print(
        table(
            ["tokens", "spans", "tiles", "memory above the start", "time per token, 65,536 = 1"],
            [
                [
                    f"{tokens:,}",
                    f"{row['spans'] * 1e3:.1f} ms",
                    f"{row['tiles'] * 1e3:.1f} ms",
                    f"{row['peak']:.0f} MB",
                    f"{growth[tokens]:.2f}",
                ]
                for tokens, row in long.items()
            ],
        )
    )
    result = {"blocks": blocks, "dense": dense, "long": long, "import": imports, "growth": growth}
    print(f"\nwritten to {save('core', result)}")
