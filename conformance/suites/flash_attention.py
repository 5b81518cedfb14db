"""flash-attention's reference implementation, which its tests compare its kernels with."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

import maskwright as mw
from conformance.runners import Side, run_functions
from conformance.sources import version_in
from conformance.suite import Runs, Suite

if TYPE_CHECKING:
    from conformance.sources import Sources

RELEASE = "v2.8.3"
EINOPS = "einops==0.8.1"  # which the reference imports
CASES = 600
TOLERANCE = 2e-5


@dataclass(frozen=True)
class Case:
    """The arguments of `attention_ref`; lengths are None without padding masks."""

    q_len: int
    kv_len: int
    kv_heads: int
    causal: bool
    window: tuple[int, int]
    chunk: int
    sink: int
    softcap: float
    q_lengths: list[int] | None
    kv_lengths: list[int] | None  # with the left padding
    left: list[int] | None

    def keys(self, row: int) -> tuple[int, int]:
        """The first key of a sequence, and the end of its keys."""
        end = self.kv_len if self.kv_lengths is None else self.kv_lengths[row]
        return (0 if self.left is None else self.left[row]), end

    def queries(self, row: int) -> int:
        """The number of queries of a sequence."""
        return self.q_len if self.q_lengths is None else self.q_lengths[row]


def run(sources: Sources) -> Runs:
    """`attention_ref` with drawn arguments."""
    folder = sources.clone(
        "flash-attention", "Dao-AILab/flash-attention", RELEASE, "hopper/test_util.py"
    )
    sys.path[:0] = [str(folder / "hopper"), str(sources.packages(EINOPS))]
    reference = importlib.import_module("test_util").attention_ref
    generator = np.random.default_rng(0)
    tests = {
        f"{index}: {case}": partial(check, reference, case)
        for index, case in enumerate(draw(generator) for _ in range(CASES))
    }
    release = version_in(folder / "flash_attn/__init__.py", r'__version__ = "(.+?)"')
    return run_functions(f"flash-attention {release}", tests)


def draw(generator: np.random.Generator) -> Case:
    """A case of two sequences."""
    q_len, kv_len = (int(generator.integers(1, 40)) for _ in range(2))
    padded, left_padded = generator.random(2) < (0.5, 0.3)
    kv_lengths = [int(generator.integers(1, kv_len + 1)) for _ in range(2)]
    kind = generator.choice(["none", "window", "window and sink", "chunk"])
    # The reference takes -1 for unlimited on the left only, unless both are -1.
    window = (int(generator.integers(-1, 12)), int(generator.integers(0, 12)))
    return Case(
        q_len=q_len,
        kv_len=kv_len,
        kv_heads=int(generator.choice([1, 2, 4])),
        causal=bool(generator.random() < 0.5),
        window=window if "window" in kind else (-1, -1),
        chunk=int(generator.integers(1, 16)) if kind == "chunk" else 0,
        sink=int(generator.integers(1, 5)) if "sink" in kind else 0,
        softcap=float(generator.choice([0.0, 3.0])),
        q_lengths=[int(generator.integers(1, q_len + 1)) for _ in range(2)] if padded else None,
        kv_lengths=kv_lengths if padded or left_padded else None,
        left=[int(generator.integers(0, n)) for n in kv_lengths] if left_padded else None,
    )


def check(reference: Any, case: Case, side: Side) -> None:
    """Raise if the visible cells, or the outputs, are not those of the reference."""
    import torch

    q_len, kv_len = case.q_len, case.kv_len
    generator = torch.Generator().manual_seed(q_len * kv_len)
    q, k, v = (
        torch.randn(2, length, heads, 16, generator=generator)
        for length, heads in ((q_len, 4), (kv_len, case.kv_heads), (kv_len, case.kv_heads))
    )
    q_padding = k_padding = left = None
    if case.q_lengths is not None:
        q_padding = torch.arange(q_len) < torch.tensor(case.q_lengths)[:, None]
    if case.kv_lengths is not None:
        k_padding = torch.arange(kv_len) < torch.tensor(case.kv_lengths)[:, None]
    if case.left is not None and k_padding is not None:
        left = torch.tensor(case.left)
        k_padding &= torch.arange(kv_len) >= left[:, None]
    out, weights = reference(
        *(q, k, v, q_padding, k_padding, left),
        causal=case.causal,
        window_size=case.window,
        attention_chunk=case.chunk,
        sink_token_length=case.sink,
        softcap=case.softcap,
    )
    if side == "original":
        return
    cells = np.stack([cells_of(case, row) for row in range(2)])[:, None]
    expected = weights > 0
    if count := int((torch.from_numpy(cells) != expected).any(1).sum()):
        raise AssertionError(f"{count} cells differ")
    result = mw.attention(
        *(x.transpose(1, 2) for x in (q, k, v)),
        mw.dense(cells),
        softcap=case.softcap or None,
        enable_gqa=True,
    )
    torch.testing.assert_close(result.transpose(1, 2), out, rtol=TOLERANCE, atol=TOLERANCE)


def cells_of(case: Case, row: int) -> np.ndarray:
    """The cells of a sequence: its last query is aligned with its last key."""
    first, end = case.keys(row)
    queries, keys = case.queries(row), end - first
    back, ahead = (None if size < 0 else size for size in case.window)
    ahead = 0 if case.causal else ahead
    mask = mw.window(back, ahead)
    if case.sink and back is not None:
        mask = mask | (mw.keys(range(min(case.sink, keys))) & mw.window(None, ahead))
    if case.chunk:
        mask = mask & mw.chunks(case.chunk)
    cells = np.zeros((case.q_len, case.kv_len), np.bool_)
    cells[:queries, first:end] = mask.on(queries, keys).dense()[0, 0]
    return cells


SUITE = Suite(
    "flash_attention",
    f"`attention_ref` of the tests with {CASES} drawn arguments: padding on both sides, windows, chunks, "
    "sinks, soft cap",
    "`attention_ref`",
    run,
)
