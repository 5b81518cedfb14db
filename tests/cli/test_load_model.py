"""From the text on a command line to a model and its inputs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

import maskwright as mw  # noqa: E402
from maskwright.cli.load_model import load_model, make_inputs, run_trace  # noqa: E402

if TYPE_CHECKING:
    from pathlib import Path

TOYS = """
import torch
from torch import nn

class Words(nn.Module):
    def __init__(self, vocabulary=20):
        super().__init__()
        self.words = nn.Embedding(vocabulary, 4)
    def forward(self, ids):
        return self.words(ids).cumsum(1)

class Told(Words):
    def forward(self, tokens, attention_mask=None):
        return self.words(tokens)

class Numbers(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(3, 3)
        self.places = nn.Embedding(8, 3)

class Inner:
    model = Words()

model = Words()
pair = (model, torch.ones(1, 3, dtype=torch.long))

def build():
    return Words(30)

def both():
    return Words(), {"ids": torch.ones(2, 5, dtype=torch.long)}

def function():
    return lambda x: x

def sized(vocabulary, *more, depth=2):
    return Words(vocabulary)

def broken():
    raise RuntimeError("no weights")

def three():
    return 1, 2, 3

def nothing():
    return None

number = 7
"""


@pytest.fixture(autouse=True)
def toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module that lies in the current directory, and nowhere else."""
    (tmp_path / "toys_here.py").write_text(TOYS)
    (tmp_path / "broken_here.py").write_text("import not_installed_anywhere")
    (tmp_path / "raising_here.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    yield
    for name in ("toys_here", "broken_here", "raising_here"):
        sys.modules.pop(name, None)


# ── models ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["model", "Words", "build", "Inner.model"])
def test_a_model_or_what_builds_one(name: str) -> None:
    model, inputs = load_model(f"toys_here:{name}")
    assert isinstance(model, torch.nn.Module)
    assert inputs is None


def test_a_model_may_bring_its_inputs() -> None:
    assert load_model("toys_here:pair").inputs.shape == (1, 3)
    assert load_model("toys_here:both").inputs["ids"].shape == (2, 5)


def test_any_function_may_be_a_model() -> None:
    assert load_model("toys_here:function").model(3) == 3


def test_weights_are_the_same_each_time() -> None:
    one, other = (load_model("toys_here:build", seed=3).model for _ in range(2))
    assert torch.equal(one.words.weight, other.words.weight)
    assert not torch.equal(
        one.words.weight, load_model("toys_here:build", seed=4).model.words.weight
    )


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("toys_here", "is not a model. Expected module:attribute or hf:PATH."),
        (":model", "is not a model"),
        ("toys_here:", "is not a model"),
        ("not_there_at_all:model", "There is no module not_there_at_all"),
        ("toys_here.deeper:model", "There is no module|Importing toys_here.deeper raises"),
        ("broken_here:model", "Importing broken_here raises ModuleNotFoundError"),
        ("raising_here:model", "Importing raising_here raises ZeroDivisionError"),
        ("toys_here:modle", "toys_here has no modle. Did you mean model?"),
        ("toys_here:Inner.zzz", "toys_here.Inner has no zzz."),
        ("toys_here:sized", "toys_here:sized needs vocabulary."),
        ("toys_here:broken", "raises RuntimeError: no weights"),
        ("toys_here:three", "returns a tuple of 3"),
        ("toys_here:nothing", "returns None"),
        ("toys_here:number", "toys_here:number is"),
        ("hf:not/there", "There is no not/there. Pass a directory with a config.json"),
    ],
)
def test_what_names_no_model_is_refused(target: str, says: str) -> None:
    with pytest.raises(mw.ArgumentError, match=says.replace("(", r"\(").replace(")", r"\)")):
        load_model(target)


# ── transformers ──────────────────────────────────────────────────────────────────────────────

SMALL = {
    "vocab_size": 40,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def small_llama() -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.LlamaConfig(**SMALL, architectures=["LlamaForCausalLM"])


def test_a_config_alone_gets_random_weights(tmp_path: Path) -> None:
    small_llama().save_pretrained(tmp_path / "config")
    by_directory = load_model(f"hf:{tmp_path / 'config'}").model
    by_file = load_model("hf:config/config.json").model
    assert type(by_directory).__name__ == "LlamaForCausalLM"
    assert not by_directory.training
    for one, other in zip(by_directory.parameters(), by_file.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_checkpoint_has_its_own_weights(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(99)
    model = transformers.LlamaForCausalLM(small_llama())
    model.save_pretrained(tmp_path / "kept")
    found = load_model("hf:kept").model
    assert torch.equal(found.model.embed_tokens.weight, model.model.embed_tokens.weight)


def test_the_head_goes_by_the_architecture(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = small_llama()
    config.architectures = None
    config.save_pretrained(tmp_path / "bare")
    assert type(load_model("hf:bare").model).__name__ == "LlamaModel"
    t5 = transformers.T5Config(
        vocab_size=40,
        d_model=16,
        d_kv=8,
        d_ff=16,
        num_layers=1,
        num_heads=2,
        architectures=["T5ForConditionalGeneration"],
    )
    t5.save_pretrained(tmp_path / "t5")
    model = load_model("hf:t5").model
    assert type(model).__name__ == "T5ForConditionalGeneration"
    assert set(make_inputs(model, "auto", length=9)) >= {"input_ids", "decoder_input_ids"}


def test_what_transformers_can_not_load_is_one_sentence(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "odd.json").write_text('{"model_type": "no such kind"}')
    with pytest.raises(mw.ArgumentError, match=r"transformers cannot load odd\.json: "):
        load_model("hf:odd.json")


def test_without_transformers_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(mw.MissingError, match=r"pip install 'maskwright\[transformers\]'"):
        load_model("hf:config.json")


# ── inputs ────────────────────────────────────────────────────────────────────────────────────


def toy(name: str) -> Any:
    return load_model(f"toys_here:{name}").model


def test_ids_fit_the_embedding() -> None:
    ids = make_inputs(toy("build"), "causal", length=50, batch=3)
    assert ids.shape == (3, 50)
    assert ids.min() >= 1
    assert ids.max() < 30
    assert torch.equal(ids, make_inputs(toy("build"), "causal", length=50, batch=3))
    assert int(make_inputs(toy("build"), "causal", length=50, vocabulary=5).max()) < 5


def test_the_batch_is_the_masks_own() -> None:
    model = toy("build")
    assert make_inputs(model, "causal()").shape == (2, 24)
    assert make_inputs(model, "padding(lengths=[2, 3, 4])", length=4, pad_id=0).shape == (3, 4)


def test_padding_is_put_where_the_mask_expects_it() -> None:
    ids = make_inputs(toy("build"), "causal() & padding(lengths=[2, 4])", length=4, pad_id=7)
    assert (ids == 7).tolist() == [[False, False, True, True], [False] * 4]
    given = make_inputs(toy("Told"), "padding(lengths=[2, 4])", length=4)
    assert given["attention_mask"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    assert given["tokens"].shape == (2, 4)


def test_two_inputs_for_an_encoder_and_a_decoder() -> None:
    source, target = make_inputs(toy("build"), "encoder-decoder", length=6)
    assert source.shape == target.shape == (2, 6)
    assert not torch.equal(source, target)


def test_a_model_of_transformers_says_itself_what_it_takes() -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.LlamaForCausalLM(small_llama())
    assert make_inputs(model, "auto", length=12)["input_ids"].shape == (2, 12)
    given = make_inputs(model, "causal() & padding(lengths=[5, 9, 9])", length=9)
    assert given["input_ids"].shape == (3, 9)
    assert given["attention_mask"].sum(1).tolist() == [5, 9, 9]
    with pytest.raises(mw.ArgumentError, match="batch=4 cannot be combined"):
        make_inputs(model, "auto", batch=4)


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        ("Numbers", {}, "first weight, first.weight, is not an nn.Embedding's"),
        ("function", {}, "has no nn.Embedding"),
        ("build", {"vocabulary": 2}, "vocabulary=2 leaves 1 ids to draw from"),
        ("build", {"length": 0}, "length=0 is less than 1"),
        ("build", {"batch": 0}, "batch=0 is less than 1"),
        ("build", {"expects": "padding(lengths=[1, 24])"}, "has no attention_mask. Pass pad_id"),
    ],
)
def test_what_can_not_be_made_is_refused(name: str, given: dict[str, Any], says: str) -> None:
    with pytest.raises(mw.ArgumentError, match=says):
        make_inputs(toy(name), **{"expects": "causal", **given})


def test_ids_may_be_made_for_any_model_when_their_number_is_given() -> None:
    assert make_inputs(toy("function"), "causal", vocabulary=9, length=3).shape == (2, 3)


# ── tracing ───────────────────────────────────────────────────────────────────────────────────


def test_a_trace_takes_inputs_of_any_form() -> None:
    attend = torch.nn.functional.scaled_dot_product_attention
    x = torch.ones(1, 1, 3, 4)
    for inputs in ((x, x, x), [x, x, x], {"query": x, "key": x, "value": x}):
        assert len(run_trace(attend, inputs)) == 1
    with pytest.raises(mw.ArgumentError, match="The model raises TypeError"):
        run_trace(attend, x)
