"""Tiny models of all families of the installed transformers; the original is their eager attention."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from conformance.runners import ROOT, RunError
from conformance.sources import NotRunError, installed
from conformance.suite import Outcome, Reason, Runs, Suite

if TYPE_CHECKING:
    from conformance.sources import Sources

SWEEP = "tests.integrations.sweep"
PASSED = ("equal", "not used")
REASONS = (
    Reason(
        "theirs",
        "attentions: failed: by design: ",
        "The weights of eager leave the sinks out, which are in its output.",
    ),
    Reason(
        "by design",
        "recurrent_gemma, generate_padded: failed: refused: ",
        "A cache that makes a mask of one key for a decode step is refused.",
    ),
    Reason("by design", "failed: refused: ", "The model is in the list of unsupported models."),
)


def run(sources: Sources) -> Runs:  # noqa: ARG001 - the models are in the installed package
    """All checks of all families."""
    release = installed("transformers")
    if find_spec(SWEEP) is None:
        raise NotRunError(f"{SWEEP} does not exist")
    done = subprocess.run(
        [sys.executable, "-m", SWEEP], cwd=ROOT, capture_output=True, text=True, check=False
    )
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        raise RunError(f"{SWEEP} failed:\n{done.stderr[-3000:]}")
    original, maskwright = {}, {}
    for line in lines:
        name, result = f"{line['family']}, {line['check']}", line["result"]
        message = f"{result}: {line['reason']}"
        ran = result != "not run"
        original[name] = Outcome("passed") if ran else Outcome("skipped", message)
        passed = result in PASSED
        maskwright[name] = Outcome("passed") if passed else Outcome("failed", message)
    return Runs(f"transformers {release}", original, maskwright)


SUITE = Suite(
    "families",
    "tiny models of all families of transformers: forward, padded, generate, gradients, weights",
    '"eager" of the attention interface',
    run,
    REASONS,
)
