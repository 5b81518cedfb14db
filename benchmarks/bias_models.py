"""Whole models with soft cap and position bias: prefill of a Gemma 2, and the encoder of a T5.

The same weights and tokens go through transformers' own attentions and `maskwright`, in turns.
`python -m benchmarks bias_models` measures both and writes results/bias_models.json.
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
    from collections.abc import Callable, Sequence

TOKENS, TOLERANCE = 2_048, 1e-3
GEMMA: dict[str, Any] = {
    "vocab_size": 1_000,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "sliding_window": 256,  # on every other layer
}
T5: dict[str, Any] = {
    "vocab_size": 1_000,
    "d_model": 256,
    "d_kv": 64,
    "d_ff": 512,
    "num_layers": 6,
    "num_heads": 8,
}


def gemma2(attention: str, tokens: int) -> Callable[[], tuple[torch.Tensor, ...]]:
    """The prefill of a Gemma 2: softcap 50, a window of 256 on every other layer."""
    from transformers import Gemma2Config, Gemma2ForCausalLM

    torch.manual_seed(0)
    config = Gemma2Config(**GEMMA, max_position_embeddings=tokens, attn_implementation=attention)
    model = Gemma2ForCausalLM(config).eval()
    ids = _ids(tokens)

    def run() -> tuple[torch.Tensor, ...]:
        with torch.no_grad():  # the last token's logits, and a cache, as a prefill leaves them
            return (model(ids, use_cache=True, logits_to_keep=1).logits,)

    return run


def t5_encoder(attention: str, tokens: int) -> Callable[[], tuple[torch.Tensor, ...]]:
    """The encoder of a T5: a relative position bias in every layer, no mask."""
    from transformers import T5Config, T5EncoderModel

    torch.manual_seed(0)
    model = T5EncoderModel(T5Config(**T5, attn_implementation=attention)).eval()
    ids = _ids(tokens)

    def run() -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            return (model(input_ids=ids).last_hidden_state,)

    return run


# What is measured, and the attentions of transformers that support it.
MODELS = {
    "Gemma 2, prefill": (gemma2, ("eager",)),
    "T5, encoder": (t5_encoder, ("sdpa", "eager")),
}


def measure(tokens: int = TOKENS, pace: Pace | None = None) -> dict[str, Any]:
    """The best seconds of each attention, once their outputs are seen to be the same."""
    from maskwright.integrations.transformers import register

    register()
    found = {}
    for name, (make, peers) in MODELS.items():
        runners = [Runner(peer, make(peer, tokens), prepares=True) for peer in (OURS, *peers)]
        outputs, failed = race(runners, pace or Pace(least=5, behind=10.0))
        if failed:
            raise RuntimeError(f"{name}: {failed}")
        gaps = {peer: difference(outputs[OURS], out) for peer, out in outputs.items()}
        if max(gaps.values()) > TOLERANCE:
            raise RuntimeError(f"{name}: the outputs differ, {gaps}")
        seconds = {runner.name: runner.best for runner in runners}
        found[name] = {
            "seconds": seconds,
            "gaps": gaps,
            "rounds": {runner.name: runner.rounds for runner in runners},
            "ratio": {peer: seconds[peer] / seconds[OURS] for peer in peers},
        }
    return {
        "tokens": tokens,
        "configs": {"gemma2": GEMMA, "t5": T5},
        "transformers": version("transformers"),
        "threads": torch.get_num_threads(),
        "models": found,
    }


def rows(found: dict[str, Any]) -> list[list[str]]:
    """The rows of the table: model, attention, seconds, and the ratio to maskwright."""
    return [
        [name, peer, clock(took), times(model["ratio"].get(peer))]
        for name, model in found["models"].items()
        for peer, took in model["seconds"].items()
    ]


def run(given: Sequence[str] = ()) -> int:
    """Measure, print the table, keep the JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks bias_models", description=__doc__)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    found = measure(parser.parse_args(given).tokens)
    print(f"\n{machine()}\n")
    head = [f"{found['tokens']:,} tokens", "attention", "seconds", "over maskwright"]
    print(table(head, rows(found)))
    name = "bias_models" if found["tokens"] == TOKENS else "bias_models-part"
    print(f"\nwritten to {save(name, found)}")
    return 0


def _ids(tokens: int) -> torch.Tensor:
    return torch.randint(3, 1_000, (1, tokens), generator=torch.Generator().manual_seed(0))
