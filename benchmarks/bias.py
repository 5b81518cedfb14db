"""Soft cap, bias and sinks: their cost relative to plain attention, and compared with PyTorch.

All computations of a row take turns in one process, and their results are compared first. Rows for
whole models are added to `CASES`.
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.nn.functional import scaled_dot_product_attention

import maskwright as mw
from benchmarks.attention import Pace, Runner, difference, race
from benchmarks.figures import OURS, clock
from benchmarks.measure import in_new_process, machine, save, table
from maskwright.bias.terms import DistanceTerm

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TOKENS, LONG, HEADS, HEAD_DIM, CAP, WINDOW = 4_096, 16_384, 8, 64, 30.0, 256
BUCKETS, MAX_DISTANCE = 32, 128
TOLERANCE = 1e-3  # of the largest number


class Terms(NamedTuple):
    """A bias of given terms, which has the interface of `maskwright.bias`."""

    terms: tuple[Any, ...]

    def lower(self, frame: Any) -> tuple[Any, ...]:
        """The terms."""
        del frame
        return self.terms

    def dense(self, frame: Any) -> Any:
        """Not used: attention lowers the bias."""
        raise NotImplementedError(frame)


def distances(tokens: int) -> torch.Tensor:
    """All values of k - q."""
    return torch.arange(1 - tokens, tokens)


def alibi(tokens: int) -> torch.Tensor:
    """(heads, distances)."""
    slopes = 2.0 ** (-8 / HEADS * torch.arange(1, HEADS + 1))
    return -slopes[:, None] * distances(tokens).abs()


def buckets(tokens: int) -> torch.Tensor:
    """T5's bucket of each distance, bidirectional."""
    distance, half = distances(tokens), BUCKETS // 2
    n, exact = distance.abs(), half // 2
    far = exact + (
        (n.clamp(min=1) / exact).log() / math.log(MAX_DISTANCE / exact) * (half - exact)
    ).long().clamp(max=half - exact - 1)
    return (distance > 0) * half + torch.where(n < exact, n, far)


def dense(values: torch.Tensor, tokens: int) -> torch.Tensor:
    """(heads, tokens, tokens): a copy of the values of each distance."""
    rows = torch.arange(tokens)
    return values[:, rows[None, :] - rows[:, None] + tokens - 1]


class Case(NamedTuple):
    """Computations of the same numbers, and the one that the ratio refers to."""

    runners: list[Runner]
    others: list[str]  # of which the best is the numerator of the ratio
    same: list[str]  # whose results are equal


def _inputs(tokens: int, grad: bool = False) -> list[torch.Tensor]:
    made = torch.Generator().manual_seed(0)
    shape = (1, tokens, HEADS, HEAD_DIM)
    given = [torch.randn(shape, generator=made).transpose(1, 2) for _ in range(3)]
    return [x.requires_grad_(grad) for x in given]


def _forward(name: str, attend: Callable[[], torch.Tensor], prepares: bool = False) -> Runner:
    def once() -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            return (attend(),)

    return Runner(name, once, prepares)


def plain_and(tokens: int, **options: Any) -> Case:
    """Causal attention with and without changed scores."""
    q, k, v = _inputs(tokens)
    bound = mw.causal().on(tokens, heads=HEADS)
    runners = [
        _forward(OURS, lambda: mw.attention(q, k, v, bound, **options)),
        _forward("plain", lambda: mw.attention(q, k, v, bound)),
    ]
    return Case(runners, ["plain"], [])


def causal_alibi(tokens: int) -> Case:
    """Causal with ALiBi, relative to plain causal attention."""
    return plain_and(tokens, bias=Terms((DistanceTerm(alibi(tokens), tokens - 1),)))


def causal_alibi_softcap(tokens: int) -> Case:
    """The same with a soft cap."""
    bias = Terms((DistanceTerm(alibi(tokens), tokens - 1),))
    return plain_and(tokens, bias=bias, softcap=CAP)


def window_softcap_sinks(tokens: int) -> Case:
    """A causal window with soft cap and sinks, as in gpt-oss and Gemma 2."""
    q, k, v = _inputs(tokens)
    sinks = torch.linspace(-1, 1, HEADS)
    bound = mw.window(back=WINDOW - 1).on(tokens, heads=HEADS)
    visible = torch.from_numpy(bound.dense())

    def eager() -> torch.Tensor:
        scores = CAP * torch.tanh(q @ k.mT * (HEAD_DIM**-0.5 / CAP))
        scores = scores.masked_fill(~visible, -torch.inf)
        column = sinks[None, :, None, None].expand(1, HEADS, tokens, 1)
        return torch.cat([scores, column], -1).softmax(-1)[..., :-1] @ v

    runners = [
        _forward(OURS, lambda: mw.attention(q, k, v, bound, softcap=CAP, sinks=sinks)),
        _forward("eager", eager),
        _flex_runner(q, k, v, sinks),
    ]
    names = [runner.name for runner in runners]
    return Case(runners, names[1:], names)


def _flex_runner(q: Any, k: Any, v: Any, sinks: torch.Tensor) -> Runner:
    """Compiled FlexAttention with the sink as one more key, whose value is 0."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    tokens = q.shape[2]
    keys = torch.cat([k, torch.zeros(1, HEADS, 1, HEAD_DIM)], 2)
    values = torch.cat([v, torch.zeros(1, HEADS, 1, HEAD_DIM)], 2)

    def mask_mod(b: Any, h: Any, row: Any, key: Any) -> Any:
        del b, h
        return ((row >= key) & (row - key < WINDOW)) | (key == tokens)

    def score_mod(score: Any, b: Any, h: Any, row: Any, key: Any) -> Any:
        del b, row
        return torch.where(key == tokens, sinks[h], CAP * torch.tanh(score / CAP))

    mask = create_block_mask(mask_mod, 1, 1, tokens, tokens + 1, device="cpu")
    compiled = torch.compile(flex_attention, dynamic=False)
    run = lambda: compiled(q, keys, values, score_mod=score_mod, block_mask=mask)  # noqa: E731
    return _forward("flex", run, prepares=True)


def t5_training(tokens: int) -> Case:
    """Forward and backward with T5's learnable table, compared with a float mask under autograd."""
    q, k, v = _inputs(tokens, grad=True)
    table = torch.randn(
        BUCKETS, HEADS, generator=torch.Generator().manual_seed(1), requires_grad=True
    )
    index = buckets(tokens)
    grad = torch.randn(1, HEADS, tokens, HEAD_DIM, generator=torch.Generator().manual_seed(2))

    def runner(name: str, attend: Callable[[torch.Tensor], torch.Tensor]) -> Runner:
        def once() -> tuple[torch.Tensor, ...]:
            out = attend(table[index].T)
            return out.detach(), *torch.autograd.grad(out, (q, k, v, table), grad)

        return Runner(name, once)

    rows = torch.arange(tokens)
    cells = index[rows[None, :] - rows[:, None] + tokens - 1]

    def by_sdpa(_: torch.Tensor) -> torch.Tensor:
        # The bias of all cells by one lookup, as in transformers' T5.
        mask = table[cells].permute(2, 0, 1)[None]
        return scaled_dot_product_attention(q, k, v, attn_mask=mask)

    runners = [
        runner(OURS, lambda x: mw.attention(q, k, v, bias=Terms((DistanceTerm(x, tokens - 1),)))),
        runner("sdpa float mask", by_sdpa),
    ]
    return Case(runners, ["sdpa float mask"], [OURS, "sdpa float mask"])


CASES: dict[str, tuple[Callable[[int], Case], float]] = {
    "causal + ALiBi / plain causal": (causal_alibi, 0.88),
    "causal + ALiBi + soft cap / plain causal": (causal_alibi_softcap, 0.65),
    f"window of {WINDOW} + soft cap + sinks / best peer": (window_softcap_sinks, 8.0),
    "T5 table, forward and backward / SDPA with float mask": (t5_training, 5.0),
}
"""Each row's computations, and the ratio that it is meant to reach."""


def measure(name: str, tokens: int = TOKENS, pace: Pace | None = None) -> dict[str, Any]:
    """The best seconds of each, once they are seen to compute the same."""
    make, goal = CASES[name]
    case = make(tokens)
    outputs, failed = race(case.runners, pace or Pace(least=5, behind=20.0))
    if failed:
        raise RuntimeError(f"bias: {failed}")
    for other in case.same:
        if (gap := difference(outputs[OURS], outputs[other])) > TOLERANCE:
            raise RuntimeError(f"bias: {name}: {other} differs by {gap:.1g}")
    seconds = {runner.name: runner.best for runner in case.runners}
    return {
        "case": name,
        "tokens": tokens,
        "threads": torch.get_num_threads(),
        "seconds": seconds,
        "rounds": {runner.name: runner.rounds for runner in case.runners},
        "ratio": min(seconds[other] for other in case.others) / seconds[OURS],
        "goal": goal,
    }


def used_memory(tokens: int) -> int:
    """Bytes that forward and backward with T5's table take at most, above those of their inputs."""
    status = Path("/proc/self/status")

    def read(field: str) -> int:
        line = next(line for line in status.read_text().splitlines() if line.startswith(field))
        return int(line.split()[1]) * 1024

    def once(length: int) -> Any:
        q, k, v = (x[:, :, :length].detach().requires_grad_() for x in given)
        bias = Terms((DistanceTerm(table[buckets(length)].T, length - 1),))
        out = mw.attention(q, k, v, bias=bias)
        return out, torch.autograd.grad(out, (q, k, v, table), grad[:, :, :length])

    given, grad = _inputs(tokens), torch.ones(1, tokens, HEADS, HEAD_DIM).transpose(1, 2)
    table = torch.randn(BUCKETS, HEADS, requires_grad=True)
    once(64)  # loads everything
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before = read("VmRSS")
    once(tokens)
    return read("VmHWM") - before


def measure_memory(tokens: int = LONG) -> dict[str, Any]:
    """Peak memory of forward and backward with T5's table, relative to that of q, k, v and out.

    The peak is above that of the inputs: it has the output, the gradients of q, k and v, and
    scratch memory.
    """
    code = "import json; from benchmarks.bias import used_memory"
    used = in_new_process(f"{code}; print(json.dumps(used_memory({tokens})))")
    size = 4 * tokens * HEADS * HEAD_DIM * 4
    return {
        "tokens": tokens,
        "bytes": used,
        "of q, k, v, out": size,
        "ratio": used / size,
        "goal": 1.5,
    }


def run(given: Sequence[str] = ()) -> int:
    """Measure, print the table, keep the JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks bias", description=__doc__)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument("--long", type=int, default=LONG, help="tokens of the memory measurement")
    parser.add_argument("--rounds", type=int, default=5, help="rounds at least")
    options = parser.parse_args(given)
    pace = Pace(least=options.rounds, behind=20.0)
    cells = [measure(name, options.tokens, pace) for name in CASES]
    memory = measure_memory(options.long)
    rows = [
        [
            cell["case"],
            ", ".join(f"{name} {clock(took)}" for name, took in cell["seconds"].items()),
            f"{cell['ratio']:.2f}",
            f"{cell['goal']}",
        ]
        for cell in cells
    ]
    print(f"\n{machine()}\n")
    print(table([f"{options.tokens:,} tokens", "seconds", "ratio", "goal, at least"], rows))
    print(
        f"\nMemory of forward and backward with T5's table at {memory['tokens']:,} tokens: "
        f"{memory['bytes'] / 2**20:.0f} MiB, {memory['ratio']:.2f} times that of q, k, v and out "
        f"(at most {memory['goal']})"
    )
    name = "bias" if (options.tokens, options.long) == (TOKENS, LONG) else "bias-part"
    print(f"\nwritten to {save(name, {'cells': cells, 'memory': memory})}")
    return 0
