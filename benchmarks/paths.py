"""The Python path of attention on the CPU, where the kernel does little.

Call overhead, decode steps with a new cache length each, small shapes, a new mask per step, and packing.
The peers take turns with maskwright in the same process, and the best time counts. A ratio is the time
of the peer over that of maskwright: above 1 maskwright is faster.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention as sdpa

import maskwright as mw
from benchmarks.figures import BOTH, FORWARD, OURS, paths_rows
from benchmarks.measure import machine, save, table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

OVERHEAD, DECODE, SMALL, NEW_MASK, PACK = (
    "call overhead",
    "decode step",
    "small shapes",
    "new mask per step",
    "pack",
)
GROUPS = (OVERHEAD, DECODE, SMALL, NEW_MASK, PACK)
RECORDED = "forward, gradients recorded"
WARM = "the same mask"
HEADS, HEAD_DIM, WINDOW = 8, 64, 256
STEPS = 32  # decode steps, each with one more key
DOCUMENTS = 12  # per packed row, on average


class Case(NamedTuple):
    """One row: what is measured, the runners by name, and how many calls or tokens a run has."""

    group: str
    case: str
    mode: str
    runners: dict[str, Callable[[], object]]
    calls: int = 1
    tokens: int | None = None
    threads: int | None = None


def race(case: Case, seconds: float) -> dict[str, float]:
    """The best time of each runner per call. They take turns for this time each, three times at least."""
    best = dict.fromkeys(case.runners, float("inf"))
    for run in case.runners.values():
        run()
    rounds, stop = 0, time.perf_counter() + seconds * len(best)
    while rounds < 3 or time.perf_counter() < stop:
        rounds += 1
        for name, run in case.runners.items():
            start = time.perf_counter()
            run()
            best[name] = min(best[name], time.perf_counter() - start)
    return {name: took / case.calls for name, took in best.items()}


def qkv(batch: int, heads: int, q_len: int, kv_len: int | None = None, dim: int = HEAD_DIM) -> Any:
    """q, k and v in the layout of a fused projection."""
    lengths = (q_len, *(q_len if kv_len is None else kv_len,) * 2)
    return [torch.randn(batch, n, heads, dim).transpose(1, 2) for n in lengths]


def passes(attend: Callable[..., torch.Tensor], given: Any, mode: str) -> Callable[[], object]:
    """A runner of one call in this mode."""
    if mode == FORWARD:

        def forward() -> object:
            with torch.no_grad():
                return attend(*given)

        return forward
    inputs = [x.detach().requires_grad_() for x in given]
    if mode == RECORDED:
        return lambda: attend(*inputs)
    out = attend(*inputs)
    slope = torch.randn_like(out)
    return lambda: torch.autograd.grad(attend(*inputs), inputs, slope)


def repeated(run: Callable[[], object], calls: int) -> Callable[[], object]:
    """A runner of several calls, where one is too short to be timed."""

    def many() -> None:
        for _ in range(calls):
            run()

    return many


def in_order(runs: Sequence[Callable[[], object]]) -> Callable[[], object]:
    """A runner of one call of each."""

    def all_of_them() -> None:
        for run in runs:
            run()

    return all_of_them


def overhead() -> Iterator[Case]:
    """Four tokens, one head: what is left is Python and dispatch."""
    given, causal = qkv(1, 1, 4, dim=8), mw.causal()
    bound = causal.on(4)
    ours: dict[str, Any] = {"bound mask": bound, "unbound mask": causal}
    for mode in (FORWARD, RECORDED, BOTH):
        for name, mask in ours.items():
            calls = 20 if mode == BOTH else 100
            runners = {
                OURS: passes(lambda *x, m=mask: mw.attention(*x, m), given, mode),
                "sdpa": passes(lambda *x: sdpa(*x, is_causal=True), given, mode),
            }
            many = {who: repeated(run, calls) for who, run in runners.items()}
            yield Case(OVERHEAD, name, mode, many, calls, threads=1)


def decode() -> Iterator[Case]:
    """A KV cache with room for more tokens; each step has one more key, and is read in place."""
    for batch, start in ((1, 1_024), (1, 8_192), (4, 1_024)):
        most = start + STEPS + 1
        q, k, v = qkv(batch, HEADS, 1, most)
        k, v = k.contiguous(), v.contiguous()
        keep = torch.arange(most) >= 100 * torch.arange(batch)[:, None]
        window, sinks = mw.window(back=WINDOW - 1), mw.recipes.sinks(WINDOW)
        padded = (mw.causal() & mw.padding(keep=keep)).on(most, batch=batch)
        visible = keep[:, None, None]
        sink_keys = torch.zeros(most, dtype=torch.bool)
        sink_keys[:4] = True

        def cut(first: int, n: int, mask: Any = None, k: Any = k, v: Any = v, q: Any = q) -> Any:
            return sdpa(q, k[:, :, first:n], v[:, :, first:n], mask)

        def with_sinks(n: int, k: Any = k, flags: Any = sink_keys) -> torch.Tensor:
            shown = flags[:n].clone()
            shown[n - WINDOW :] = True
            return cut(0, n, shown[None], k=k)

        # Of each: the mask, its first bound mask for next(), and SDPA on a cache cut by hand.
        cases: dict[str, tuple[Any, Any, Any]] = {
            "full": (mw.everything(), mw.everything().on(1, start), lambda n, c=cut: c(0, n)),
            "causal": (mw.causal(), mw.causal().on(1, start), lambda n, c=cut: c(0, n)),
            f"window of {WINDOW}": (window, window.on(1, start), lambda n, c=cut: c(n - WINDOW, n)),
            f"window of {WINDOW}, 4 sinks": (sinks, sinks.on(1, start), with_sinks),
            "left padding": (
                None,
                padded.step(start - 1, kv_len=start),
                lambda n, c=cut, m=visible: c(0, n, m[..., :n]),
            ),
        }
        for name, (mask, first, peer) in cases.items():
            if (name == "left padding") != (batch > 1):
                continue

            def unbound(q: Any = q, k: Any = k, v: Any = v, m: Any = mask, s: int = start) -> None:
                for n in range(s + 1, s + STEPS + 1):
                    mw.attention(q, k[:, :, :n], v[:, :, :n], m)

            def by_next(q: Any = q, k: Any = k, v: Any = v, m: Any = first) -> None:
                for _ in range(STEPS):
                    m = m.next()
                    n = m.frame.kv_len
                    mw.attention(q, k[:, :, :n], v[:, :, :n], m)

            def by_hand(run: Any = peer, s: int = start) -> None:
                for n in range(s + 1, s + STEPS + 1):
                    run(n)

            runners: dict[str, Callable[[], object]] = {OURS: by_next, "sdpa": by_hand}
            if mask is not None:
                runners["unbound mask"] = unbound
            yield Case(DECODE, f"{name}, batch {batch}, {start:,} keys", FORWARD, runners, STEPS)


def small() -> Iterator[Case]:
    """Causal attention of short sequences."""
    causal = mw.causal()
    for mode in (FORWARD, BOTH):
        for batch in (1, 8, 64):
            for heads in (4, 16):
                for tokens in (16, 32, 64, 128, 256):
                    if batch * heads * tokens > 64 * 16 * 64:
                        continue
                    given = qkv(batch, heads, tokens)
                    runners = {
                        OURS: passes(lambda *x: mw.attention(*x, causal), given, mode),
                        "sdpa": passes(lambda *x: sdpa(*x, is_causal=True), given, mode),
                    }
                    yield Case(
                        SMALL, f"batch {batch}, {heads} heads, {tokens} tokens", mode, runners
                    )


def new_mask() -> Iterator[Case]:
    """Packed training: the documents of each step differ from those of the step before."""
    compiled = torch.compile(flex_attention)
    for tokens in (2_048, 8_192):
        packed = [_documents(tokens, seed) for seed in range(8)]
        ids = [torch.from_numpy(np.repeat(np.arange(len(n)), n)[None]) for n in packed]
        masks: dict[str, Callable[[int], mw.Mask]] = {
            "documents(ids=tensor)": lambda n, ids=ids: mw.causal() & mw.documents(ids=ids[n]),
            "documents(lengths=list)": lambda n, packed=packed: (
                mw.causal() & mw.documents(lengths=[packed[n]])
            ),
        }
        given = qkv(1, HEADS, tokens)
        for mode in (FORWARD, BOTH):
            for name, make in masks.items():
                used = [make(n) for n in range(len(packed))]
                # All runners have the same masks, whose work differs.
                runners = {
                    OURS: [
                        passes(lambda *x, m=make, n=n: mw.attention(*x, m(n)), given, mode)
                        for n in range(len(packed))
                    ],
                    WARM: [
                        passes(lambda *x, m=mask: mw.attention(*x, m), given, mode) for mask in used
                    ],
                }
                if mode == FORWARD and tokens == 2_048 and "ids" in name:

                    def flex(*x: Any, row: Any, n: int = tokens) -> torch.Tensor:
                        def same(_b: Any, _h: Any, q: Any, k: Any) -> Any:
                            return (q >= k) & (row[q] == row[k])

                        return compiled(*x, block_mask=create_block_mask(same, 1, 1, n, n, "cpu"))

                    dense = [x.contiguous() for x in given]
                    runners["flex"] = [
                        passes(lambda *x, row=row[0]: flex(*x, row=row), dense, mode) for row in ids
                    ]
                in_turn = {who: in_order(runs) for who, runs in runners.items()}
                yield Case(NEW_MASK, f"{name}, {tokens:,} tokens", mode, in_turn, len(packed))


def _documents(tokens: int, seed: int) -> list[int]:
    """Lengths of documents that fill one row."""
    rng = np.random.default_rng(seed)
    cuts = np.sort(rng.choice(np.arange(1, tokens), rng.integers(DOCUMENTS, 2 * DOCUMENTS), False))
    return np.diff(cuts, prepend=0, append=tokens).tolist()


def packing() -> Iterator[Case]:
    """`mw.pack` into rows of 2,048 tokens."""
    rng = np.random.default_rng(0)
    for mean, count in ((32, 20_000), (256, 8_000)):
        arrays = [rng.integers(0, 50_000, max(1, int(n))) for n in rng.exponential(mean, count)]
        arrays = [row[:2_048] for row in arrays]
        lists = [row.tolist() for row in arrays]
        tokens = sum(map(len, arrays))
        for kind, rows in (("arrays", arrays), ("lists", lists)):
            runners = {OURS: lambda rows=rows: mw.pack(rows, 2_048)}
            yield Case(PACK, f"{kind} of {mean} tokens on average", "", runners, tokens=tokens)


CASES = dict(zip(GROUPS, (overhead, decode, small, new_mask, packing), strict=True))


def _problem(run: Callable[[], object]) -> str | None:
    """Why a peer does not run, or None."""
    try:
        run()
    except Exception as error:
        return f"{type(error).__name__}: {str(error)[:200]}"
    return None


def measure(case: Case, seconds: float) -> dict[str, Any]:
    """The best seconds of each runner, per call.

    After `torch.set_num_threads`, even with the same number, SDPA takes up to twice as long for small
    shapes in this process. It is called only for cases that need another number.
    """
    most = torch.get_num_threads()
    if case.threads not in (None, most):
        torch.set_num_threads(case.threads)
    failed: dict[str, str] = {}
    try:
        for name, run in list(case.runners.items()):
            if name != OURS and (problem := _problem(run)):
                failed[name] = problem
                del case.runners[name]
        best = race(case, seconds)
        threads = torch.get_num_threads()
    finally:
        if case.threads not in (None, most):
            torch.set_num_threads(most)
    found = {"group": case.group, "case": case.case, "mode": case.mode, "threads": threads}
    if case.tokens is not None:
        found["tokens_per_second"] = case.tokens / best[OURS]
    return {**found, "seconds": best, "failed": failed}


def run(given: Sequence[str] = ()) -> int:
    """Measure, print the tables, keep the JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks paths", description=__doc__)
    parser.add_argument("--group", choices=GROUPS, help="only this one; nothing is stored")
    parser.add_argument("--seconds", type=float, default=0.5, help="per runner; default: 0.5")
    options = parser.parse_args(given)
    started = time.perf_counter()
    cells = []
    groups = [options.group] if options.group else sorted(GROUPS, key=lambda x: x == OVERHEAD)
    for group in groups:  # the group that changes the number of threads is the last one
        found = [measure(case, options.seconds) for case in CASES[group]()]
        print(f"\n{group}\n\n{table(*paths_rows(found))}", flush=True)
        cells += found
    cells.sort(key=lambda cell: GROUPS.index(cell["group"]))
    print(f"\n{machine()}")
    if options.group:
        return 0  # a part replaces no complete measurement
    result = {"cells": cells, "seconds": time.perf_counter() - started}
    print(f"\nwritten to {save('paths', result)}")
    return 0
