"""The program as a whole: help, version, and what a wrong call says."""

from __future__ import annotations

import re

import maskwright as mw
from maskwright.cli.options import complete_expression
from tests.cli.conftest import Here, run

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


def test_help_names_every_atom(here: Here) -> None:
    from maskwright.core.atoms import ATOMS

    words = here("show", "--help").out.replace(",", " ").replace(";", " ").replace(".", " ").split()
    assert set(ATOMS) | {"by_head", "by_batch"} <= set(words)


def test_version() -> None:
    assert run("--version").out == f"maskwright {mw.__version__}\n"


def test_bad_usage_is_code_2(here: Here) -> None:
    assert here("show").code == 2
    assert here("nonsense").code == 2


def test_the_shell_completes_atoms() -> None:
    assert complete_expression("causal() & pre") == ["causal() & prefix("]
    assert complete_expression("wi") == ["window("]
    assert len(complete_expression("")) == 18
