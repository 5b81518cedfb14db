"""Which results were measured before the last change of the code that they measure."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from benchmarks import measure

ROOT = Path(__file__).resolve().parent.parent
# The kernel and the engine, and what they read: bound masks with their spans, and the terms of biases.
WATCHED = (
    "src/maskwright/engine",
    "src/maskwright/core",
    "src/maskwright/bias",
    "setup.py",  # the compiler's options
)
_MODELS, _INTEGRATIONS = "src/maskwright/models", "src/maskwright/integrations"
_TARGETS = "src/maskwright/targets"
# What some results measure besides. Of the apps not the trainer: most of it is about checkpoints.
ALSO = {
    "audit": ("src/maskwright/auditing", "src/maskwright/tracing"),
    "bias_models": (_INTEGRATIONS,),
    "explore": ("src/maskwright/explore", "src/maskwright/draw"),
    "extrapolation": (_MODELS, "src/maskwright/apps/data"),
    "language": (_MODELS, "src/maskwright/apps/data", "src/maskwright/apps/language.py"),
    "paths_models": (_INTEGRATIONS,),
    "prefill": (_INTEGRATIONS,),
    "ranks": ("src/maskwright/parallel",),
    "targets": (f"{_TARGETS}/lower.py", f"{_TARGETS}/torch_flex.py", f"{_TARGETS}/predicates.py"),
    "training": (_MODELS,),
}
COMPILED = "gpu_compile"  # its file has a hash of the sources instead, which a test compares


class NoHistoryError(Exception):
    """There is no git, no repository, or no complete history."""


def stale_results(root: Path = ROOT) -> list[str]:
    """One sentence per result file that has to be measured again.

    Args:
        root: The working tree of the repository.

    Raises:
        NoHistoryError: Nothing can be said, since the history of the repository is not there.
    """
    if _git(root, "rev-parse", "--is-shallow-repository") != "false":
        raise NoHistoryError(
            "without the complete git history, the age of results cannot be checked"
        )
    every = dict.fromkeys([*WATCHED, *(path for paths in ALSO.values() for path in paths)])
    changed = _git(root, "status", "--porcelain", "--", *every)
    problems = [f"uncommitted changes: {changed}"] if changed else []
    for path in measure.results():
        if path.stem == COMPILED:
            continue
        measured = json.loads(path.read_text()).get("measured", {})
        if problem := _problem(root, measured, (*WATCHED, *ALSO.get(path.stem, ()))):
            problems.append(f"{path.name} {problem}: run `python -m benchmarks {path.stem}`")
    return problems


def _problem(root: Path, measured: dict[str, object], watched: tuple[str, ...]) -> str | None:
    """Why a result is stale, or None."""
    commit = measured.get("commit")
    if not isinstance(commit, str):
        return "does not say which commit it measured"
    if not measured.get("clean"):
        return f"was measured with uncommitted changes on {commit[:10]}"
    if _git(root, "cat-file", "-e", f"{commit}^{{commit}}") is None:
        return f"was measured at {commit[:10]}, which is not in this repository"
    later = _git(root, "rev-list", f"{commit}..HEAD", "--", *watched)
    if later:
        last = (_git(root, "log", "-1", "--format=%h %s", later.split()[0])) or later[:10]
        return f"was measured at {commit[:10]}, before {last}"
    return None


def _git(root: Path, *args: str) -> str | None:
    """The output of a git command, or None if it fails."""
    try:
        done = subprocess.run(["git", *args], cwd=root, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return None
    return None if done.returncode else done.stdout.strip()
