"""Whole models by other paths than an eager prefill: generate, and compiled prefill and training step.

The time of `generate` is also divided: a decode step is the mean time between two new tokens of the
same call, without the prefill, in the best call.

A Llama (full causal attention) and a Mistral (window of 256) with the same weights and tokens go through
`sdpa` and `maskwright` of transformers, in turns; their outputs are compared first.
`python -m benchmarks paths_models` writes results/paths_models.json. The first call compiles the model
and is not timed.
"""

from __future__ import annotations

import argparse
import time
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import torch

from benchmarks.attention import Pace, Runner, difference, race
from benchmarks.figures import OURS, models_rows
from benchmarks.measure import machine, save, table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Run = Callable[[], tuple[torch.Tensor, ...]]

TOKENS, NEW_TOKENS, TOLERANCE = 2_048, 24, 1e-3
CONFIG: dict[str, Any] = {
    "vocab_size": 1_000,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
}
WINDOW = 256
# The paths of `generate`: batch size, and its arguments.
GENERATE: dict[str, tuple[int, dict[str, Any]]] = {
    "generate": (1, {}),
    "generate, batch 8": (8, {}),
    "generate, static cache": (1, {"cache_implementation": "static"}),
    "generate, 4 beams": (1, {"num_beams": 4}),
}
COMPILED = ("compiled prefill", "compiled training step")


def build(kind: str, attention: str, tokens: int) -> Any:
    """A model with random weights, the same for every attention."""
    import transformers

    torch.manual_seed(0)
    settings = {**CONFIG, "max_position_embeddings": 2 * tokens, "attn_implementation": attention}
    if kind == "Mistral":
        config = transformers.MistralConfig(**settings, sliding_window=WINDOW)
        return transformers.MistralForCausalLM(config).eval()
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings)).eval()


class StepClock:
    """A stopping criterion that never stops: it records when each token of a call is complete."""

    def __init__(self) -> None:
        self.calls: list[list[float]] = []

    def __call__(self, ids: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """Record the time; False for each sequence."""
        self.calls[-1].append(time.perf_counter())
        return torch.zeros(ids.shape[0], dtype=torch.bool)

    def step(self) -> float:
        """Seconds of one decode step, in the best call but the first, which may compile."""
        return min((times[-1] - times[0]) / (len(times) - 1) for times in self.calls[1:])


def generate(model: Any, tokens: int, batch: int, options: dict[str, Any], steps: StepClock) -> Run:
    """Greedy generation after a prompt; the rows of a batch are padded on the left."""
    import transformers

    ids = _ids(batch, tokens)
    keep = torch.ones_like(ids)
    for row in range(batch):
        keep[row, : row * tokens // (2 * batch)] = 0
    given = {"input_ids": ids, "attention_mask": keep, "do_sample": False, "pad_token_id": 0}
    given |= {"max_new_tokens": NEW_TOKENS, "min_new_tokens": NEW_TOKENS, **options}
    given["stopping_criteria"] = transformers.StoppingCriteriaList([steps])

    def run() -> tuple[torch.Tensor, ...]:
        steps.calls.append([])
        return (model.generate(**given)[:, tokens:],)

    return run


def compiled_prefill(model: Any, tokens: int) -> Run:
    """The logits of the last token of a prompt without padding."""
    ids, forward = _ids(1, tokens), torch.compile(model, fullgraph=True)

    def run() -> tuple[torch.Tensor, ...]:
        with torch.no_grad():
            return (forward(ids, use_cache=False, logits_to_keep=1).logits,)

    return run


def compiled_training_step(model: Any, tokens: int) -> Run:
    """Loss and gradients of all tokens."""
    ids, forward = _ids(1, tokens), torch.compile(model.train(), fullgraph=True)

    def run() -> tuple[torch.Tensor, ...]:
        model.zero_grad()
        loss = forward(ids, use_cache=False).logits.float().square().mean()
        loss.backward()
        return loss.detach(), model.model.layers[0].self_attn.q_proj.weight.grad

    return run


def make(path: str, kind: str, attention: str, tokens: int, steps: StepClock) -> Run:
    """What one attention runs on one path; `steps` records the decode steps of `generate`."""
    model = build(kind, attention, tokens)
    if path in GENERATE:
        batch, options = GENERATE[path]
        return generate(model, tokens, batch, options, steps)
    step = compiled_prefill if path == "compiled prefill" else compiled_training_step
    return step(model, tokens)


def measure(
    tokens: int = TOKENS, pace: Pace | None = None, paths: Sequence[str] = ()
) -> dict[str, Any]:
    """The best seconds of each attention on each path, once their outputs are seen to be the same."""
    from maskwright.integrations.transformers import register

    register()
    found = {}
    for path in paths or (*GENERATE, *COMPILED):
        for kind in ("Llama", "Mistral"):
            torch.compiler.reset()
            clocks = {name: StepClock() for name in (OURS, "sdpa")}
            runners = [
                Runner(name, make(path, kind, name, tokens, steps), prepares=True)
                for name, steps in clocks.items()
            ]
            outputs, failed = race(runners, pace or Pace(most=8, seconds_more=1.0))
            if failed:
                raise RuntimeError(f"{path}, {kind}: {failed}")
            gap = difference(outputs[OURS], outputs["sdpa"])
            if gap > TOLERANCE:
                raise RuntimeError(f"{path}, {kind}: the outputs differ by {gap}")
            seconds = {runner.name: runner.best for runner in runners}
            found[f"{path}, {kind}"] = {
                "seconds": seconds,
                "rounds": {runner.name: runner.rounds for runner in runners},
                "gap": gap,
                "ratio": seconds["sdpa"] / seconds[OURS],
            }
            if path in GENERATE:
                step = {name: clock.step() for name, clock in clocks.items()}
                found[f"{path}, {kind}"]["step"] = {
                    "seconds": step,
                    "ratio": step["sdpa"] / step[OURS],
                }
    return {
        "tokens": tokens,
        "new_tokens": NEW_TOKENS,
        "window": WINDOW,
        "config": CONFIG,
        "transformers": version("transformers"),
        "threads": torch.get_num_threads(),
        "paths": found,
    }


def run(given: Sequence[str] = ()) -> int:
    """Measure, print the table, keep the JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks paths_models", description=__doc__)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    parser.add_argument(
        "--path", action="append", choices=(*GENERATE, *COMPILED), help="all by default"
    )
    options = parser.parse_args(given)
    found = measure(options.tokens, paths=options.path or ())
    print(f"\n{machine()}\n")
    head = [f"{found['tokens']:,} tokens", OURS, "sdpa", "sdpa over maskwright"]
    print(table(head, models_rows(found)))
    whole = options.tokens == TOKENS and not options.path
    print(f"\nwritten to {save('paths_models' if whole else 'paths_models-part', found)}")
    return 0


def _ids(batch: int, tokens: int) -> torch.Tensor:
    return torch.randint(3, 1_000, (batch, tokens), generator=torch.Generator().manual_seed(0))
