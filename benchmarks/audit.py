"""The cost of an audit: passes, time and memory of the probes leak, padding and steps on whole models.

A GPT-2 and a BERT of about 110 million random weights are audited on two sequences, one of them
padded. The unit of time is one forward pass over the same inputs, the unit of memory the peak of one
forward and backward pass. Each measurement has a process of its own.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import sys
import time
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import torch

import maskwright as mw
from benchmarks.figures import audit_table
from benchmarks.measure import in_new_process, machine, save
from maskwright.auditing.huggingface import make_inputs

if TYPE_CHECKING:
    from collections.abc import Sequence

TOKENS, THREADS, ROUNDS = 512, 2, 3
PROBES = ("leak", "padding", "steps")
CONFIGS: dict[str, tuple[str, str]] = {  # name: config and model of transformers
    "GPT-2": ("GPT2Config", "GPT2LMHeadModel"),
    "BERT": ("BertConfig", "BertForMaskedLM"),
}


def build(name: str, **sizes: Any) -> Any:
    """A model with the sizes of its config, unless others are given, and random weights."""
    import transformers

    config, model = (getattr(transformers, part) for part in CONFIGS[name])
    torch.manual_seed(0)
    return model(config(**sizes)).eval()


def measure_step(name: str, tokens: int, **sizes: Any) -> dict[str, Any]:
    """The peak memory of one forward and backward pass, in bytes above that before the model."""
    import transformers  # noqa: F401 - part of what is not counted

    before = _peak_bytes()
    model = build(name, **sizes)
    model(**make_inputs(model, tokens)).logits.sum().backward()
    return {"bytes": _peak_bytes() - before}


def measure_audit(name: str, tokens: int, rounds: int = ROUNDS, **sizes: Any) -> dict[str, Any]:
    """The time, passes and peak memory of an audit, and the time of one forward pass."""
    import transformers  # noqa: F401

    before = _peak_bytes()
    model = build(name, **sizes)
    inputs = make_inputs(model, tokens)
    forwards = _forwards(model, inputs, rounds)
    start = time.perf_counter()
    report = mw.audit(model, inputs, expects="auto", probes=PROBES)
    seconds = time.perf_counter() - start
    forwards += _forwards(model, inputs, rounds)
    return {
        "weights": sum(weight.numel() for weight in model.parameters()),
        "forward": statistics.median(forwards),
        "seconds": seconds,
        "forwards": seconds / statistics.median(forwards),
        "passes": report.passes,
        "bytes": _peak_bytes() - before,
        "status": {result.probe: result.status.value for result in report.answers},
    }


def _forwards(model: Any, inputs: dict[str, torch.Tensor], rounds: int) -> list[float]:
    """Seconds of single forward passes, after one that is not counted."""
    found = []
    with torch.no_grad():
        for _ in range(rounds + 1):
            start = time.perf_counter()
            model(**inputs)
            found.append(time.perf_counter() - start)
    return found[1:]


def _peak_bytes() -> int:
    """The largest resident memory of this process until now."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def measure(
    name: str, tokens: int = TOKENS, threads: int = THREADS, **sizes: Any
) -> dict[str, Any]:
    """Both measurements, and their ratio."""
    given = f"{name!r}, {tokens}, **{sizes!r}"
    made = "import json, torch; from benchmarks.audit import measure_step, measure_audit; "
    made += f"torch.set_num_threads({threads}); "
    step = in_new_process(f"{made}print(json.dumps(measure_step({given})))")
    found = in_new_process(f"{made}print(json.dumps(measure_audit({given})))")
    return {**found, "step_bytes": step["bytes"], "memory": found["bytes"] / step["bytes"]}


def run(given: Sequence[str] = ()) -> int:
    """Measure, print the table, keep the JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks audit", description=__doc__)
    parser.add_argument("--tokens", type=int, default=TOKENS)
    tokens = parser.parse_args(given).tokens
    models = {name: measure(name, tokens) for name in CONFIGS}
    print(f"\n{machine()}\n")
    print(audit_table(models))
    result = {
        "tokens": tokens,
        "threads": THREADS,
        "probes": PROBES,
        "transformers": version("transformers"),
        "models": models,
    }
    name = "audit" if tokens == TOKENS else "audit-part"
    print(f"\nwritten to {save(name, result)}")
    return 0
