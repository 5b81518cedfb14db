"""The program as a whole: help, version, and what a wrong call says."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

import maskwright as mw
from maskwright.cli.options import complete_expression
from tests.cli.conftest import Here, run

if TYPE_CHECKING:
    from pathlib import Path

VERBS = (
    *("show", "diff", "explain", "recipes", "lower", "targets", "recognize", "lint"),
    *("plan", "bench", "doctor", "audit", "trace", "apps", "train", "generate", "compare-masks"),
    *("explore", "tour"),
)


def test_help_tells_the_theory_and_names_every_verb(here: Here) -> None:
    whole = here("--help")
    assert "A mask is the set of (batch, head, query, key) cells" in whole.out
    found = re.findall(r"^│ (\w[\w-]*) ", whole.out, re.MULTILINE)
    assert tuple(found) == VERBS


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_examples(here: Here, verb: str) -> None:
    assert "Examples:" in here(verb, "-h").out


def test_the_examples_of_pictures_and_numbers_run(
    here: Here, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that need no model, no file and no browser."""
    monkeypatch.setenv("COLUMNS", "200")
    left_out = (
        *("bench", "audit", "trace", "explore", "mask.npy", "mask.csv", "batch."),
        *("train", "generate", "compare-masks"),
    )
    for verb in VERBS:
        for line in here(verb, "--help").out.splitlines():
            words = line.strip()
            if words.startswith("maskwright ") and not any(word in words for word in left_out):
                ran = here(*shlex.split(words)[1:])
                assert ran.code in (0, 1), (words, ran.err)
    assert {path.name for path in tmp_path.iterdir()} == {"mask.svg", "plan.svg"}


def test_help_names_every_atom(here: Here) -> None:
    from maskwright.core.atoms import ATOMS

    words = here("show", "--help").out.replace(",", " ").replace(";", " ").replace(".", " ").split()
    assert set(ATOMS) | {"by_head", "by_batch"} <= set(words)


def test_version() -> None:
    assert run("--version").out == f"maskwright {mw.__version__}\n"


def test_bad_usage_is_code_2(here: Here) -> None:
    assert here("show").code == 2
    assert here("nonsense").code == 2


@pytest.mark.parametrize("missing", ["typer", "wcwidth"])
def test_without_the_extra_it_is_named(missing: str) -> None:
    code = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        "sys.argv = ['maskwright', 'show', 'causal()']\n"
        "from maskwright.__main__ import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'maskwright[cli]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_the_shell_completes_atoms() -> None:
    assert complete_expression("causal() & pre") == ["causal() & prefix("]
    assert complete_expression("wi") == ["window("]
    assert len(complete_expression("")) == 18
