"""The C kernel with every instruction set of this processor, compared with the blocks backend and SDPA.

All take turns in one process, and so does the floating-point peak to which the shares refer.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.functional import scaled_dot_product_attention

import maskwright as mw
from benchmarks.attention import FLOPS, Pace, Runner, difference, race
from benchmarks.figures import BOTH, FORWARD, variants_rows
from benchmarks.measure import machine, save, table
from benchmarks.peak import yardstick
from maskwright.engine.native.kernel import loaded, use_isa

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

TOKENS, HEADS, HEAD_DIM = 4_096, 8, 64
MASKS = {
    "causal": mw.causal(),
    "packed documents of 512, causal": mw.causal() & mw.chunks(512),
    "causal window of 256": mw.window(back=255),
    "causal window of 128": mw.window(back=127),
    "causal window of 64": mw.window(back=63),
}
TOLERANCE = 1e-3  # of the largest number
BLOCKS, SDPA, PEAK = "blocks", "sdpa", "peak"


def measure(said: str, mode: str, tokens: int = TOKENS, pace: Pace | None = None) -> dict[str, Any]:
    """The best seconds of each, once they are seen to compute the same."""
    bound = MASKS[said].on(tokens, heads=HEADS)
    given = [torch.randn(1, tokens, HEADS, HEAD_DIM).transpose(1, 2) for _ in range(4)]
    inputs, slope = [x.requires_grad_(mode == BOTH) for x in given[:3]], given[3]
    dense = None if said == "causal" else mw.lower(bound, "torch.additive")

    def runner(name: str, attend: Callable[..., torch.Tensor], isa: str | None = None) -> Runner:
        def once() -> tuple[torch.Tensor, ...]:
            if isa is not None:
                use_isa(isa)
            out = attend(*inputs)
            grads = torch.autograd.grad(out, inputs, slope) if mode == BOTH else ()
            return out.detach(), *grads

        return Runner(name, once)

    def by_sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(q, k, v, dense, is_causal=dense is None)

    fma = yardstick()
    runners = [
        *(runner(isa, lambda *x: mw.attention(*x, bound), isa) for isa in loaded().isas),
        runner(BLOCKS, lambda *x: mw.attention(*x, bound, impl="blocks")),
        runner(SDPA, by_sdpa),
        Runner(PEAK, lambda: (fma.run(),)),
    ]
    outputs, failed = race(runners, pace or Pace(behind=100.0))
    if failed:
        raise RuntimeError(f"variants: {failed}")
    truth = outputs[SDPA]
    for name, out in outputs.items():
        if name != PEAK and (gap := difference(out, truth)) > TOLERANCE:
            raise RuntimeError(f"variants: {name} differs from SDPA by {gap:.1g}")
    best = {runner.name: runner.best for runner in runners}
    peak = fma.flops / best.pop(PEAK)
    work = FLOPS[mode] * HEAD_DIM * bound.count()
    return {
        "mask": said,
        "mode": mode,
        "threads": torch.get_num_threads(),
        "tokens": tokens,
        "yardstick": fma.name,
        "peak": peak,
        "seconds": best,
        "shares": {name: work / took / peak for name, took in best.items()},
    }


def run(given: Sequence[str] = ()) -> int:
    """Measure, print the table, keep the JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks variants", description=__doc__)
    parser.parse_args(given)
    if not loaded().isas:
        print(f"There is no C kernel to measure: {loaded().reason}.")
        return 1
    used, most = loaded().isa, torch.get_num_threads()
    try:
        cells = []
        for threads in sorted({1, most}):
            torch.set_num_threads(threads)
            cells += [measure(said, mode) for mode in (FORWARD, BOTH) for said in MASKS]
    finally:
        torch.set_num_threads(most)
        use_isa(str(used))
    print(f"\n{machine()}\n\n{table(*variants_rows(cells))}")
    print(f"\nwritten to {save('variants', {'cells': cells})}")
    return 0
