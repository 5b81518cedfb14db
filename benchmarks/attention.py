"""Attention under many masks: maskwright and the alternatives in PyTorch, in the same run.

A cell is one pattern at one length, in one dtype, forward alone or with its backward. In every
cell all runners compute the same thing from the same tensors, which is checked, and take turns.
What a caller can prepare (masks, block masks, compiling) is prepared before the clock starts.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

import maskwright as mw
from benchmarks import figures, peers
from benchmarks.figures import BOTH, FORWARD, IN_FLOAT32, OURS
from benchmarks.measure import in_new_process, save
from benchmarks.patterns import GROUPS, HEAD_DIM, PATTERNS, Case, make, patterns_of
from benchmarks.peak import Peak
from benchmarks.peers import Way

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from benchmarks.peers import Attention

    Tensors = tuple[torch.Tensor, ...]

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
PART = "attention-part"
TOLERANCE = {"float32": 1e-3, "bfloat16": 5e-2}  # of the largest number in the tensor
FLOPS = {FORWARD: 4, BOTH: 14}  # for each seen cell and each of the head's dimensions
# In bfloat16, implementations that are also measured in float32 are several times slower than there.
MAX_BFLOAT16_CELLS = (None, 2**22)  # forward, and with the backward pass
MAX_BFLOAT16_TOKENS = (
    8_192  # longer sequences are measured in float32 only, which takes minutes less
)

_MEMORY = r"""
import json, re
from pathlib import Path
import torch
import maskwright as mw
def resident(kind):  # kB; VmHWM is the highest so far of this process alone
    return int(re.search(kind + r":\s+(\d+)", Path("/proc/self/status").read_text())[1])
def tensor(tokens):
    return torch.randn(1, tokens, {heads}, {dim}).transpose(1, 2)
def run(q, k, v, grad):
    inputs = [x.requires_grad_() for x in (q, k, v)]
    out = mw.attention(*inputs, mw.recipes.sliding({window}))
    return out, torch.autograd.grad(out, inputs, grad)
run(*(tensor(64) for _ in range(4)))  # what is loaded and set up once
given = [tensor({tokens}) for _ in range(4)]
before = resident("VmRSS")
out, _ = run(*given)
peak = (resident("VmHWM") - before) * 1024
bare = sum(x.nbytes for x in (*given[:3], out))
print(json.dumps(dict(tokens={tokens}, window={window}, heads={heads}, head_dim={dim},
                      peak_bytes=peak, tensor_bytes=bare, multiple=peak / bare)))
"""

_COMPILE = r"""
import json, os, tempfile, time, warnings
warnings.simplefilter("ignore")
with tempfile.TemporaryDirectory() as cache:
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = cache
    import torch
    from benchmarks import attention, patterns
    from benchmarks.peers import flex
    case = patterns.make("window", "{tokens}")
    run = flex.flex(case)
    q, k, v, _ = attention.tensors(case, torch.float32)
    with torch.no_grad():
        start = time.perf_counter()
        run(q, k, v)
    print(json.dumps(time.perf_counter() - start))
"""


@dataclass(frozen=True)
class Pace:
    """How often a runner is run."""

    least: int = 3
    long: float = 1.0  # a run longer than this is run
    least_long: int = 2  # times at least
    most: int = 30
    seconds: float = 0.5  # after which `least` rounds are enough
    once: float = 4.0  # a run longer than this is not repeated
    behind: float = 3.0  # nor is a peer more times slower than the fastest
    close: float = 1.1  # where we and the fastest peer are so near, both are run
    more: int = 40  # times more, or
    seconds_more: float = 2.0  # for so long
    call: float = 0.002  # shorter calls are timed several at a time


@dataclass
class Runner:
    """One way to compute a cell, and what became of it."""

    name: str
    run: Callable[[], Tensors]
    prepares: bool = False  # the first call also plans or compiles, and is timed separately
    first: float = math.nan
    best: float = math.inf
    rounds: int = 0
    spent: float = 0.0
    calls: int = 1

    def start(self, pace: Pace) -> Tensors:
        """The first call; it is also the first round, unless it prepares."""
        begin = time.perf_counter()
        outputs = self.run()
        self.first = time.perf_counter() - begin
        if self.prepares:
            self.turn()
        else:
            self.best, self.rounds, self.spent = self.first, 1, self.first
        self.calls = max(1, math.ceil(pace.call / max(self.best, 1e-6)))
        return outputs

    def turn(self) -> None:
        """One round more."""
        begin = time.perf_counter()
        for _ in range(self.calls):
            self.run()
        took = time.perf_counter() - begin
        self.best = min(self.best, took / self.calls)
        self.rounds, self.spent = self.rounds + 1, self.spent + took


def race(runners: Sequence[Runner], pace: Pace) -> tuple[dict[str, Tensors], dict[str, str]]:
    """Run all in turns, best of n; the outputs of their first calls, and what failed."""
    outputs, failed = {}, {}
    for runner in runners:
        made = _try_start(runner, pace)
        if isinstance(made, str):
            failed[runner.name] = made
        else:
            outputs[runner.name] = made
    fastest = min((r.best for r in runners if r.name != OURS), default=math.inf)
    going = [
        runner
        for runner in runners
        if runner.best <= pace.once
        and (runner.name == OURS or runner.best <= pace.behind * fastest)
    ]
    while going:
        going.reverse()  # who follows whom changes, since each leaves caches and memory behind
        for runner in going:
            runner.turn()
        going = [
            runner
            for runner in going
            if runner.rounds < (pace.least if runner.best <= pace.long else pace.least_long)
            or (runner.rounds < pace.most and runner.spent < pace.seconds)
        ]
    _settle(runners, pace)
    return outputs, failed


def _settle(runners: Sequence[Runner], pace: Pace) -> None:
    """More rounds for us and the fastest peer, where noise alone could decide between the two."""
    ours = next((r for r in runners if r.name == OURS), None)
    peer = min((r for r in runners if r.name != OURS), key=lambda r: r.best, default=None)
    if ours is None or peer is None or max(ours.best, peer.best) > pace.once:
        return
    end = time.perf_counter() + pace.seconds_more
    for turn in range(pace.more):
        near = 1 / pace.close < ours.best / peer.best < pace.close
        if not near or time.perf_counter() > end:
            return
        for runner in (ours, peer) if turn % 2 else (peer, ours):
            runner.turn()


def _try_start(runner: Runner, pace: Pace) -> Tensors | str:
    """The outputs; or why there are none, so that the others can go on."""
    try:
        return runner.start(pace)
    except Exception as error:
        return f"{type(error).__name__}: {error}".splitlines()[0][:200]


# ── what a cell is made of ────────────────────────────────────────────────────────────────────


def tensors(case: Case, dtype: torch.dtype) -> Tensors:
    """q, k, v and the gradient of the output, laid out as projections give them."""
    source = torch.Generator().manual_seed(0)

    def draw(length: int) -> torch.Tensor:
        shape = (case.batch, length, case.heads, case.head_dim)
        return torch.randn(shape, generator=source).to(dtype).transpose(1, 2)

    return draw(case.q_len), draw(case.kv_len), draw(case.kv_len), draw(case.q_len)


def ways(case: Case, dtype: str, names: Iterable[str] | None = None) -> dict[str, Way]:
    """Implementations of a case: maskwright, and all peers or those named. Masks are made here, once."""
    mask = case.mask
    found = {OURS: Way(lambda q, k, v: mw.attention(q, k, v, mask), compiles=True)}
    found |= peers.ways(case, dtype, names)
    if dtype != "float32":
        wide = peers.ways(case, "float32", names)
        for name, way in wide.items():
            if way.upcast:
                found[name] = replace(found[name], max_cells=MAX_BFLOAT16_CELLS)
                found[name + IN_FLOAT32] = replace(way, attend=in_float32(way.attend))
    return found


def in_float32(attend: Attention) -> Attention:
    """The same, computed in float32 and cast back."""
    return lambda q, k, v: attend(q.float(), k.float(), v.float()).to(q.dtype)


def runners_of(found: dict[str, Way], given: Tensors, mode: str) -> list[Runner]:
    """The implementations that are measured in this mode, as runners on these tensors."""
    q, k, v, grad = given

    def forward(attend: Attention) -> Tensors:
        with torch.no_grad():
            return (attend(q, k, v),)

    def both(attend: Attention) -> Tensors:
        inputs = [x.detach().requires_grad_() for x in (q, k, v)]
        out = attend(*inputs)
        return (out.detach(), *torch.autograd.grad(out, inputs, grad))

    run = forward if mode == FORWARD else both
    return [
        Runner(name, lambda way=way: run(way.attend), prepares=way.compiles)
        for name, way in found.items()
        if way.is_measured(mode, q.shape[2] * k.shape[2])
    ]


def difference(ours: Tensors, theirs: Tensors) -> float:
    """The largest difference of two outputs, as a share of the largest number in them."""
    worst = 0.0
    for a, b in zip(ours, theirs, strict=True):
        a, b = a.float(), b.float()
        gap = float((a - b).abs().max()) / max(float(b.abs().max()), 1e-30)
        worst = max(worst, gap if gap == gap else math.inf)
    return worst


def measure(case: Case, found: dict[str, Way], dtype: str, mode: str, pace: Pace) -> dict[str, Any]:
    """One cell: the best seconds of every runner, once they are seen to compute the same."""
    runners = runners_of(found, tensors(case, DTYPES[dtype]), mode)
    outputs, failed = race(runners, pace)
    gaps = {
        name: difference(outputs[OURS], out)
        for name, out in outputs.items()
        if name != OURS and OURS in outputs
    }
    ran = [runner for runner in runners if runner.name in outputs]
    bound = case.bound()
    return {
        "pattern": case.pattern,
        "group": case.group,
        "dtype": dtype,
        "mode": mode,
        "shape": {
            name: getattr(case, name) for name in ("batch", "heads", "q_len", "kv_len", "head_dim")
        },
        "density": bound.density,
        "flops": FLOPS[mode] * case.head_dim * bound.count(),
        "seconds": {runner.name: runner.best for runner in ran},
        "rounds": {runner.name: runner.rounds for runner in ran},
        "first": {runner.name: runner.first for runner in ran if runner.prepares},
        "differs": {name: gap for name, gap in gaps.items() if not gap <= TOLERANCE[dtype]},
        "failed": failed,
    }


# ── the run ───────────────────────────────────────────────────────────────────────────────────


def suite(
    groups: Iterable[str],
    patterns: Iterable[str] | None = None,
    dtypes: Iterable[str] = tuple(DTYPES),
    *,
    modes: Sequence[str] = (FORWARD, BOTH),
    names: Iterable[str] | None = None,
    pace: Pace | None = None,
    peak: Peak | None = None,
    result: dict[str, Any] | None = None,
    kept: Callable[[dict[str, Any]], object] = lambda _: None,
) -> dict[str, Any]:
    """Every cell; `kept` is given the result so far after each of them."""
    pace = Pace() if pace is None else pace
    wanted = list(PATTERNS if patterns is None else patterns)
    begin = time.perf_counter()
    result = {} if result is None else result
    result |= {"threads": torch.get_num_threads(), "seconds": 0.0, "cells": []}
    peak = Peak() if peak is None else peak
    result |= {"yardstick": peak.yardstick.name, "peak": 0.0}
    peak.ask(rounds=20)
    _warm_up()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # peers that tell of slow paths of their own
        for group in groups:
            for dtype in dtypes:
                for pattern in patterns_of(group):
                    if pattern not in wanted:
                        continue
                    case = make(pattern, group)
                    if dtype == "bfloat16" and case.kv_len > MAX_BFLOAT16_TOKENS:
                        continue
                    found = ways(case, dtype, names)
                    for mode in modes:
                        if mode == BOTH and case.q_len == 1:
                            continue
                        peak.ask(every=2.0)
                        cell = measure(case, found, dtype, mode, pace)
                        result["cells"].append(cell)
                        result["peak"] = peak.ask(every=2.0)
                        result["seconds"] = time.perf_counter() - begin
                        print(figures.line(cell, peak.best), file=sys.stderr, flush=True)
                        kept(result)
                    del case, found  # before the next masks are made
    return result


def _warm_up() -> None:
    """What is loaded once in a process is not part of any cell's first call."""
    for dtype in DTYPES.values():
        q = torch.randn(1, 1, 64, HEAD_DIM, dtype=dtype, requires_grad=True)
        mw.attention(q, q, q, mw.causal()).sum().backward()


def memory(tokens: int, window: int = 256, heads: int = 8) -> dict[str, Any]:
    """Forward and backward in a new process: memory above what q, k, v and a gradient need."""
    return in_new_process(_MEMORY.format(tokens=tokens, window=window, heads=heads, dim=HEAD_DIM))


def compile_seconds(tokens: int = 4_096) -> float:
    """Compiling flex_attention for a new mask_mod, with nothing cached."""
    return in_new_process(_COMPILE.format(tokens=tokens))


def read_options(given: Sequence[str]) -> argparse.Namespace:
    """The command line, with what was left out filled in."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks attention", description=__doc__)
    some = lambda text: text.split(",")  # noqa: E731
    parser.add_argument("--quick", action="store_true", help="1,024 tokens at most, float32")
    parser.add_argument("--lengths", type=some, help=f"some of {','.join(GROUPS)}")
    parser.add_argument("--patterns", type=some, help=f"some of {','.join(PATTERNS)}")
    parser.add_argument("--dtypes", type=some, help=f"some of {','.join(DTYPES)}")
    parser.add_argument("--peers", type=some, help=f"some of {','.join(peers.names())}")
    parser.add_argument("--forward-only", action="store_true", help="leave the backward out")
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="cuda, also for ROCm"
    )
    parser.add_argument("--name", help="of the JSON: attention, for a part attention-part")
    options = parser.parse_args(given)
    if options.patterns and (unknown := set(options.patterns) - set(PATTERNS)):
        parser.error(f"there is no pattern {', '.join(sorted(unknown))}")
    if options.dtypes and (unknown := set(options.dtypes) - set(DTYPES)):
        parser.error(f"there is no dtype {', '.join(sorted(unknown))}")
    if options.peers and (unknown := set(options.peers) - set(peers.names())):
        parser.error(f"there is no peer {', '.join(sorted(unknown))}")
    for group in options.lengths or ():
        if group not in GROUPS and not (
            group.isdigit() and math.isqrt(int(group)) ** 2 == int(group)
        ):
            parser.error(f"{group!r} is no length: give some of {', '.join(GROUPS)}, or a square")
    options.whole = not (options.quick or options.lengths or options.patterns or options.dtypes)
    options.whole &= not (options.peers or options.forward_only)
    options.name = options.name or ("attention" if options.whole else PART)
    options.lengths = options.lengths or (["1024", "small", "decode"] if options.quick else GROUPS)
    options.dtypes = options.dtypes or (["float32"] if options.quick else list(DTYPES))
    return options


def run(given: Sequence[str] = ()) -> int:
    """Measure, print the tables, keep the JSON; 1 where a runner computed something else."""
    options = read_options(given)
    if options.device == "cuda":
        from benchmarks import attention_gpu

        return attention_gpu.run(options)
    result: dict[str, Any] = {"command": " ".join(["python -m benchmarks attention", *given])}
    if options.whole:
        result |= {"memory": memory(65_536), "flex_compile": compile_seconds()}
    suite(
        options.lengths,
        options.patterns,
        options.dtypes,
        modes=(FORWARD,) if options.forward_only else (FORWARD, BOTH),
        names=options.peers,
        pace=Pace(seconds=0.1) if options.quick else Pace(),
        result=result,
        kept=lambda so_far: save(PART, so_far),  # an interrupted run replaces no complete one
    )
    print(f"\n{figures.cells_table(result)}\n\n{figures.summary(result)}")
    print(f"\nwritten to {save(options.name, result)}")
    return int(bool(figures.wrong(result)))
