"""The examples that `--help` shows: each is a call that is understood, and all that are short run."""

from __future__ import annotations

import csv
import shlex
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import typer
from safetensors.numpy import save_file

import maskwright as mw
from maskwright.cli import app

if TYPE_CHECKING:
    from pathlib import Path

    from tests.cli.conftest import Here

VERBS: dict[str, Any] = typer.main.get_command(app).commands
EXAMPLES = [
    line.strip()
    for verb in VERBS.values()
    for line in (verb.epilog or "").splitlines()
    if line.strip().startswith("maskwright ")
]
# These train, measure, serve or need transformers; the tests of their verbs run them in small.
LONG = ("train ", "generate ", "compare-masks ", "bench ", "explore", "tour", "hf:")
MODELS = """
import torch
from torch.nn.functional import scaled_dot_product_attention

class Toy(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(30, 8)
    def forward(self, ids, attention_mask=None):
        x = self.words(ids)
        seen = torch.ones(ids.shape[1], ids.shape[1]).tril().bool()
        if attention_mask is not None:
            seen = seen & attention_mask.bool()[:, None]
        return x + scaled_dot_product_attention(x, x, x, attn_mask=seen)

build = Toy
"""


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with all that the examples speak of."""
    causal = mw.causal().on(128).dense()[0, 0]
    np.save(tmp_path / "mask.npy", causal)
    with (tmp_path / "mask.csv").open("w", newline="") as file:
        csv.writer(file).writerows(causal[:8, :8].astype(int).tolist())
    kept = {"attention_mask": np.array([[1, 1, 0], [1, 1, 1]])}
    save_file(kept, tmp_path / "batch.safetensors")
    (tmp_path / "mypkg").mkdir()
    (tmp_path / "mypkg" / "models.py").write_text(MODELS)
    monkeypatch.setattr(sys, "path", list(sys.path))
    for name in ("mypkg", "mypkg.models"):
        monkeypatch.setitem(sys.modules, name, None)
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setenv("COLUMNS", "200")
    return tmp_path


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_an_example(verb: str) -> None:
    assert any(example.startswith(f"maskwright {verb}") for example in EXAMPLES)


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_is_understood(example: str) -> None:
    _, verb, *words = shlex.split(example)
    assert VERBS[verb].make_context(verb, words).params  # raises where an option is not there


@pytest.mark.parametrize(
    "example", [one for one in EXAMPLES if not any(long in f"{one} " for long in LONG)]
)
@pytest.mark.usefixtures("files")
def test_an_example_runs(example: str, here: Here) -> None:
    ran = here(*shlex.split(example)[1:])
    assert ran.code in (0, 1), ran.err  # 1 is an answer: they differ, or something was found
    assert ran.err == ""
