"""The command line as a person runs it."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING, NamedTuple

import pytest

import maskwright as mw

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Ran(NamedTuple):
    code: int
    out: str
    err: str


def run(*words: str, at: Path | None = None) -> Ran:
    command = [sys.executable, "-m", "maskwright", *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120, cwd=at)
    return Ran(done.returncode, done.stdout, done.stderr)


def test_show_draws_what_print_does() -> None:
    ran = run("show", "causal() & padding(lengths=[3, 4])", "--size", "4")
    assert ran == (0, f"{(mw.causal() & mw.padding(lengths=[3, 4])).on(4)}\n", "")


def test_show_takes_all_sizes() -> None:
    ran = run("show", "causal()", "-n", "2", "--keys", "4", "--q-start", "0", "--heads", "3")
    assert ran.out == f"{mw.causal().on(2, 4, heads=3, q_start=0)}\n"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["show", "casual()"], "Did you mean causal?"),
        (["show", "causal("], "brackets"),
        (["show", "padding(lengths=[9])"], "Pass --keys 9 or more"),
        (["show", "causal()", "--size", "-1"], "--size -1 is less than 0"),
        (["show", "dense([[1, 0]])"], "Pass --size 1, --keys 2."),
        (["tour", "--chapter", "99"], "no chapter 99"),
        (["targets", "torch.mah"], "There is no target torch.mah."),
        (["lower", "causal()", "--to", "torch.mah", "-n", "4"], "Did you mean torch.mha?"),
        (["lower", "causal()", "--to", "numpy"], "Pass --size"),
        (["lower", "causal()", "causal()", "--to", "numpy", "-n", "4"], "takes one mask, not 2"),
        (["lower", "causal() | prefix([3])", "--to", "flash.varlen", "-n", "8"], "prefix"),
    ],
)
def test_a_wrong_mask_is_one_sentence_and_code_2(words: list[str], says: str) -> None:
    ran = run(*words)
    assert ran.code == 2
    assert ran.out == ""
    assert says in ran.err
    assert ran.err.startswith("maskwright: ")
    assert len(ran.err.splitlines()) == 1


def test_bad_usage_is_code_2() -> None:
    assert run("show").code == 2
    assert run("nonsense").code == 2


def test_help_tells_the_theory_and_gives_examples() -> None:
    whole = run("--help")
    assert "A mask is the set of (batch, head, query, key) cells" in whole.out
    for verb in ("show", "tour"):
        assert verb in whole.out
        assert "Examples:" in run(verb, "--help").out


def test_help_names_every_atom() -> None:
    from maskwright.core.atoms import ATOMS

    words = run("show", "--help").out.replace(",", " ").replace(";", " ").replace(".", " ").split()
    assert set(ATOMS) | {"by_head", "by_batch"} <= set(words)


def test_version() -> None:
    assert run("--version").out == f"maskwright {mw.__version__}\n"


def test_without_typer_the_extra_is_named() -> None:
    code = "import sys; sys.modules['typer'] = None\nfrom maskwright.__main__ import main; main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'maskwright[cli]'" in done.stderr


def test_lower_prints_the_snippet() -> None:
    words = ["causal() & padding(lengths=[3, 5])", "--to", "torch.mha"]
    mask = mw.causal() & mw.padding(lengths=[3, 5])
    assert run("lower", *words) == (0, mw.explain_lowering(mask, "torch.mha") + "\n", "")


def test_lower_takes_three_masks_for_a_transformer() -> None:
    three = ("padding(lengths=[3])", "causal()", "padding(lengths=[3])")
    ran = run("lower", *three, "--to", "torch.transformer", "-n", "4")
    masks = tuple(mw.parse(text) for text in three)
    assert ran.out == mw.explain_lowering(masks, "torch.transformer", 4) + "\n"


def test_targets_lists_all_and_tells_of_one() -> None:
    names = list(mw.capabilities())
    assert [line.split()[0] for line in run("targets").out.splitlines()] == names
    told = json.loads(run("targets", "torch.mha", "--format", "json").out)
    assert [(one["name"], one["polarity"]) for one in told] == [("torch.mha", "True drops")]
    assert "polarity    True drops\n" in run("targets", "torch.mha").out


def test_plan_prints_what_the_library_would_run() -> None:
    ran = run("plan", "window(back=255)", "--size", "1024", "--heads", "8")
    assert ran == (0, f"{mw.explain_route(mw.window(back=255), 1024, heads=8)}\n", "")


def test_plan_shows_the_backward_pass() -> None:
    from maskwright.engine.plan import plan_of

    ran = run("plan", "causal()", "--size", "512", "--backward")
    assert ran.out == f"{plan_of(mw.causal().on(512), 'backward')}\n"


def test_plan_needs_no_framework() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from maskwright.__main__ import main\n"
        "sys.argv = ['maskwright', 'plan', 'causal()', '--size', '64']\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_plan_refuses_what_does_not_fit() -> None:
    ran = run("plan", "padding(lengths=[3, 4])", "--size", "4", "--batch", "3")
    assert ran.code == 2
    assert ran.out == ""
    assert len(ran.err.splitlines()) == 1


def test_bench_times_a_mask_beside_sdpa() -> None:
    ran = run("bench", "causal()", "--size", "64", "--heads", "2")
    first, ours, theirs, last = ran.out.splitlines()
    assert first == "causal(), 64 queries and keys, 2 heads of 64, float32"
    assert ours.startswith("maskwright")
    assert theirs.startswith("SDPA")
    assert "times as fast" in last


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
def toys(tmp_path: Path) -> Path:
    pytest.importorskip("torch")
    (tmp_path / "toys.py").write_text(TOYS)
    return tmp_path


@pytest.fixture
def here(
    toys: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., Ran]:
    """The command line in this process, where torch is imported already."""
    from maskwright.__main__ import main

    monkeypatch.chdir(toys)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setitem(sys.modules, "toys", None)  # so that it is forgotten in the end
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")

    def go(*words: str) -> Ran:
        monkeypatch.delitem(sys.modules, "toys", raising=False)
        monkeypatch.setattr(sys, "argv", ["maskwright", *words])
        with pytest.raises(SystemExit) as stop:
            main()
        return Ran(int(stop.value.code or 0), *capsys.readouterr())

    return go


def test_audit_says_that_a_model_obeys(toys: Path) -> None:
    ran = run("audit", "toys:Toy", "--expects", "causal()", "--length", "12", at=toys)
    assert ran.code == 0, ran.err
    assert ran.out.startswith("Toy obeys causal() (")


def test_audit_of_a_sick_model_is_code_1_with_a_page(toys: Path, here: Callable[..., Ran]) -> None:
    words = ("toys:sick", "--expects", "causal()", "-n", "8", "--probes", "leak, reach")
    ran = here("audit", *words, "--json", "--html", "report.html")
    assert ran.code == 1, ran.err
    found = json.loads(ran.out)
    assert not found["ok"]
    assert {one["probe"] for one in found["probes"]} == {"leak", "reach"}
    assert "Toy does not obey causal()" in (toys / "report.html").read_text()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["toys:Tyo", "--expects", "causal()"], "Did you mean Toy?"),
        (["toys"], "Write module:attribute, or hf:PATH."),
        (["hf:nowhere"], "nothing is downloaded"),
        (["toys:Toy"], "asks the config of a model of transformers"),
        (["toys:Toy", "--expects", "casual()"], "Did you mean causal?"),
        (["toys:Toy", "--expects", "causal()", "--length", "0"], "--length 0 is less than 1"),
        (["toys:Toy", "--expects", "padding(lengths=[9])", "-n", "4"], "Pass --length 9 or more"),
        (["toys:Toy", "--expects", "padding(lengths=[3, 4])", "-n", "4"], "Pass --pad-id"),
        (["toys:Toy", "--expects", "causal()", "--probes", "leek"], "no probe 'leek'"),
        (["toys:numbers", "--expects", "causal()"], "pass --vocabulary"),
        (["toys:Toy", "--expects", "causal", "--html", "no/x.html"], "no/x.html can't be written"),
    ],
)
def test_a_wrong_audit_is_one_sentence_and_code_2(
    here: Callable[..., Ran], words: list[str], says: str
) -> None:
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


def test_audit_and_trace_read_a_config_of_transformers(
    toys: Path, here: Callable[..., Ran]
) -> None:
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
    assert ran.out.startswith("LlamaForCausalLM obeys ")
    traced = json.loads(here("trace", "hf:tiny.json", "--json").out)
    assert len(traced["calls"]) == 1


def test_trace_prints_the_table(here: Callable[..., Ran]) -> None:
    ran = here("trace", "toys:Toy", "-n", "6")
    assert ran.code == 0, ran.err
    head, call = ran.out.splitlines()
    assert head.split()[:2] == ["layer", "kernel"]
    assert "is_causal" in call


def test_trace_of_a_model_that_raises_is_one_sentence(here: Callable[..., Ran]) -> None:
    ran = here("trace", "toys:Toy", "--vocabulary", "500", "-n", "99")
    assert ran.code == 2
    assert ran.err.startswith("maskwright: The model raises IndexError")


def test_audit_and_trace_have_examples() -> None:
    for verb in ("audit", "trace"):
        assert "Examples:" in run(verb, "--help").out
