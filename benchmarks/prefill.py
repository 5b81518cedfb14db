"""A whole model: the prefill of a Mistral with a sliding window, by transformers' own attentions.

The same weights and tokens go through `sdpa`, `eager` and `maskwright`, in turns.
"""

from __future__ import annotations

import argparse
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.attention import Pace, Runner, difference, race
from benchmarks.figures import OURS, clock, times
from benchmarks.measure import machine, save, table

if TYPE_CHECKING:
    from collections.abc import Sequence

CONFIG: dict[str, Any] = {
    "hidden_size": 512,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "num_hidden_layers": 4,
    "intermediate_size": 1_024,
    "vocab_size": 1_000,
    "sliding_window": 256,
}
TOKENS, TOLERANCE = 4_096, 1e-3


def measure(tokens: int = TOKENS, pace: Pace | None = None, **changes: Any) -> dict[str, Any]:
    """The best seconds of each attention, once their outputs are seen to be the same."""
    from transformers import MistralConfig, MistralForCausalLM

    from maskwright.integrations.transformers import register

    register()
    settings = {**CONFIG, "max_position_embeddings": tokens, **changes}
    given = torch.randint(
        0, settings["vocab_size"], (1, tokens), generator=torch.Generator().manual_seed(0)
    )

    def runner(name: str) -> Runner:
        torch.manual_seed(0)
        model = MistralForCausalLM(MistralConfig(**settings, attn_implementation=name)).eval()

        def run() -> tuple[torch.Tensor, ...]:
            with torch.no_grad():  # the last token's logits, and a cache, as a prefill leaves them
                return (model(given, use_cache=True, logits_to_keep=1).logits,)

        return Runner(name, run, prepares=True)

    runners = [runner(name) for name in (OURS, "sdpa", "eager")]
    outputs, failed = race(runners, pace or Pace(least=5, behind=10.0))
    if failed:
        raise RuntimeError(f"prefill: {failed}")
    gaps = {name: difference(outputs[OURS], out) for name, out in outputs.items()}
    if max(gaps.values()) > TOLERANCE:
        raise RuntimeError(f"prefill: the outputs differ, {gaps}")
    seconds = {runner.name: runner.best for runner in runners}
    return {
        "tokens": tokens,
        "config": settings,
        "transformers": version("transformers"),
        "threads": torch.get_num_threads(),
        "seconds": seconds,
        "rounds": {runner.name: runner.rounds for runner in runners},
        "first": {runner.name: runner.first for runner in runners},
        "ratio": {name: seconds[name] / seconds[OURS] for name in ("sdpa", "eager")},
    }


def run(given: Sequence[str] = ()) -> int:
    """Measure, print the table, keep the JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks prefill", description=__doc__)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    found = measure(parser.parse_args(given).tokens)
    print(f"\n{machine()}\n")
    head = [f"prefill of {found['tokens']:,} tokens", "seconds", "the others over maskwright"]
    rows = [
        [name, clock(took), times(found["ratio"].get(name))]
        for name, took in found["seconds"].items()
    ]
    print(table(head, rows))
    name = "prefill" if found["tokens"] == TOKENS else "prefill-part"
    print(f"\nwritten to {save(name, found)}")
    return 0
