"""Verbs that run a model, as a person calls them."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.cli.conftest import Here, run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("toys")

TOYS = """
import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

class Toy(nn.Module):
    def __init__(self, causal=True):
        super().__init__()
        self.words = nn.Embedding(30, 8)
        self.causal = causal
    def forward(self, ids):
        x = self.words(ids)
        return x + scaled_dot_product_attention(x, x, x, is_causal=self.causal)

def sick():
    return Toy(causal=False)

def numbers():
    return nn.Linear(4, 4)
"""


@pytest.fixture
def toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with models to load, which are forgotten in the end."""
    pytest.importorskip("torch")
    (tmp_path / "toys.py").write_text(TOYS)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "toys", None)
    monkeypatch.delitem(sys.modules, "toys")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    return tmp_path


def test_audit_says_that_a_model_respects_its_mask(toys: Path) -> None:
    ran = run("audit", "toys:Toy", "--expects", "causal()", "--length", "12", at=toys)
    assert ran.code == 0, ran.err
    assert ran.out.startswith("Toy respects causal() (")


def test_audit_in_chinese(toys: Path, here: Here) -> None:
    ran = here(
        "audit", "toys:Toy", "--expects", "causal()", "-n", "8", "--probes", "leak", "--lang", "zh"
    )
    assert ran.code == 0, ran.err
    assert ran.out.startswith("Toy 遵守 causal()")


def test_audit_of_a_sick_model_is_code_1_with_a_page(toys: Path, here: Here) -> None:
    words = ("toys:sick", "--expects", "causal()", "-n", "8", "--probes", "leak, reach")
    ran = here("audit", *words, "--format", "json")
    assert ran.code == 1, ran.err
    found = json.loads(ran.out)
    assert not found["ok"]
    assert {one["probe"] for one in found["probes"]} == {"leak", "reach"}

    assert here("audit", *words, "-o", "report.html") == (1, "", "")
    assert "Toy does not respect causal()" in (toys / "report.html").read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["toys:Tyo", "--expects", "causal()"], "Did you mean Toy?"),
        (["toys"], "Expected module:attribute or hf:PATH."),
        (["hf:nowhere"], "Nothing is downloaded"),
        (["toys:Toy"], "reads the config of a model of transformers"),
        (["toys:Toy", "--expects", "casual()"], "Did you mean causal?"),
        (["toys:Toy", "--expects", "causal()", "--length", "0"], "--length 0 is less than 1"),
        (["toys:Toy", "--expects", "padding(lengths=[9])", "-n", "4"], "Pass --length 9 or more"),
        (["toys:Toy", "--expects", "padding(lengths=[3, 4])", "-n", "4"], "Pass --pad-id"),
        (["toys:Toy", "--expects", "causal()", "--probes", "leek"], "no probe 'leek'"),
        (["toys:numbers", "--expects", "causal()"], "pass --vocabulary"),
        (["toys:Toy", "--expects", "causal", "-o", "no/x.html"], "no/x.html can't be written"),
        (["toys:Toy", "--expects", "causal", "-o", "x.png"], "text, json or html, not png"),
    ],
)
def test_a_wrong_audit_is_one_sentence_and_code_2(here: Here, words: list[str], says: str) -> None:
    ran = here("audit", *words)
    assert ran.code == 2
    assert says in ran.err
    assert ran.err.startswith("maskwright: ")
    assert len(ran.err.splitlines()) == 1


def test_audit_and_trace_need_torch() -> None:
    for verb in ("audit", "trace"):
        code = (
            "import sys; sys.modules['torch'] = None\n"
            "from maskwright.__main__ import main\n"
            f"sys.argv = ['maskwright', {verb!r}, 'toys:Toy']\n"
            "main()"
        )
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert "pip install 'maskwright[torch]'" in done.stderr
        assert len(done.stderr.splitlines()) == 1


def test_audit_and_trace_read_a_config_of_transformers(toys: Path, here: Here) -> None:
    pytest.importorskip("transformers")
    sizes = {
        "vocab_size": 40,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
    }
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **sizes}
    (toys / "tiny.json").write_text(json.dumps(config))
    ran = here("audit", "hf:tiny.json", "--probes", "leak,padding", "-n", "12")
    assert ran.code == 0, ran.err
    assert ran.out.startswith("LlamaForCausalLM respects ")
    traced = json.loads(here("trace", "hf:tiny.json", "--format", "json").out)
    assert len(traced["calls"]) == 1


def test_trace_prints_the_table(here: Here) -> None:
    ran = here("trace", "toys:Toy", "-n", "6")
    assert ran.code == 0, ran.err
    head, call = ran.out.splitlines()
    assert head.split()[:2] == ["layer", "kernel"]
    assert "is_causal" in call


def test_trace_of_a_model_that_raises_is_one_sentence(here: Here) -> None:
    ran = here("trace", "toys:Toy", "--vocabulary", "500", "-n", "99")
    assert ran.code == 2
    assert ran.err.startswith("maskwright: The model raises IndexError")
