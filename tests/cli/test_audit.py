"""`maskwright audit` and `trace`, and how they load models and make inputs."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

torch = pytest.importorskip("torch")

import maskwright as mw  # noqa: E402
from maskwright.cli.audit import load_model, make_inputs, run_trace  # noqa: E402
from tests.cli.conftest import RunCli, in_terminal, read_terminal  # noqa: E402

MODELS = Path(__file__).parents[1] / "_helpers/cli_models.py"
LLAMA = {"vocab_size": 40, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
LLAMA |= {"num_attention_heads": 2, "num_key_value_heads": 2, "max_position_embeddings": 64}


@pytest.fixture(autouse=True)
def toys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Modules in the current directory, and nowhere else."""
    shutil.copy(MODELS, tmp_path / "toys.py")
    (tmp_path / "no_import.py").write_text("import not_installed_anywhere")
    (tmp_path / "raising.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    yield
    for name in ("toys", "no_import", "raising"):
        sys.modules.pop(name, None)


def toy(name: str) -> Any:
    return load_model(f"toys:{name}").model


# ── commands ──────────────────────────────────────────────────────────────────────────────────


def test_audit_of_a_correct_model_is_code_0(cli: RunCli) -> None:
    ran = cli("audit", "toys:Toy", "--expects", "causal()", "--length", "12")
    assert ran.code == 0, ran.err
    assert ran.out.startswith("Toy respects causal() (")


def test_audit_of_a_leaky_model_is_code_1_with_a_page_and_the_verdict(
    cli: RunCli, tmp_path: Path
) -> None:
    words = ("toys:leaky", "--expects", "causal()", "-n", "8", "--probes", "leak, reach")
    ran = cli("audit", *words, "--format", "json")
    assert ran.code == 1, ran.err
    found = json.loads(ran.out)
    assert not found["ok"]
    assert {one["probe"] for one in found["probes"]} == {"leak", "reach"}
    ran = cli("audit", *words, "-o", "report.html", "--lang", "zh")
    assert ran.code == 1
    assert "不遵守" in ran.out
    assert "report.html" in ran.err
    verdict = ran.out.strip()
    assert "\n" not in verdict
    assert verdict.partition("（")[0] in (tmp_path / "report.html").read_text()


def test_audit_for_continuous_integration(cli: RunCli, tmp_path: Path) -> None:
    words = ("audit", "toys:leaky", "--expects", "causal()", "-n", "8", "--probes", "leak,reach")
    assert cli(*words, "-o", "report.json").code == 1
    assert cli(*words, "-o", "report.xml").code == 1
    suites = ElementTree.fromstring((tmp_path / "report.xml").read_text())
    assert [case.get("name") for case in suites[0]] == ["leak", "reach"]
    assert suites.get("failures") == "2"
    ran = cli(*words, "--baseline", "report.json", "-o", "audit.sarif")
    assert ran.code == 0, ran.err
    assert " 0 of them not in report.json" in ran.err
    [found] = json.loads((tmp_path / "audit.sarif").read_text())["runs"]
    assert {result["baselineState"] for result in found["results"]} == {"unchanged"}
    named = cli(*words, "--baseline", "report.json", "-o", "audit.sarif.json")
    assert named.code == 0, named.err
    assert (tmp_path / "audit.sarif.json").read_text() == (tmp_path / "audit.sarif").read_text()
    place = found["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]
    assert place["uri"] == "toys.py"


def test_baseline_fails_on_new_findings_only(cli: RunCli, tmp_path: Path) -> None:
    words = ("--expects", "causal()", "-n", "8", "--probes", "leak")
    assert cli("audit", "toys:Toy", *words, "-o", "healthy.json").code == 0
    ran = cli("audit", "toys:leaky", *words, "--baseline", "healthy.json")
    assert ran.code == 1
    assert "new: leak: " in ran.err
    assert cli("audit", "toys:Toy", *words, "--baseline", "healthy.json").code == 0
    (tmp_path / "broken.json").write_text("{}")
    ran = cli("audit", "toys:Toy", *words, "--baseline", "broken.json")
    assert ran.code == 2
    assert "broken.json is not a report" in ran.err


def test_audit_without_expected_mask_reports_what_the_model_behaves_like(cli: RunCli) -> None:
    ran = cli("audit", "toys:Toy", "-n", "8", "--probes", "leak", "--format", "json")
    assert ran.code == 3, ran.err
    assert not json.loads(ran.out)["ok"]
    assert "causal()" in ran.out


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("toys:Tyo --expects causal()", "Tyo Toy"),
        ("toys:Toy --expects casual()", "casual causal"),
        ("toys:Toy --expects padding(lengths=[9]) -n 4", "--length 4 9"),
        ("toys:Toy --expects causal() --probes leek", "leek"),
        ("toys:Toy --expects causal -o no/x.html", "no/x.html"),
        ("toys:Toy --expects causal -o x.png", "x.png .html"),
    ],
)
def test_a_wrong_audit_is_one_line_and_code_2(cli: RunCli, words: str, parts: str) -> None:
    ran = cli("audit", *words.split())
    assert ran.code == 2
    assert all(part in ran.err for part in parts.split())
    assert ran.err.startswith("maskwright: ")
    assert len(ran.err.splitlines()) == 1


def test_audit_and_trace_read_a_config_of_transformers(cli: RunCli, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], **LLAMA}
    (tmp_path / "tiny.json").write_text(json.dumps(config))
    ran = cli("audit", "hf:tiny.json", "--probes", "leak,padding", "-n", "12")
    assert ran.code == 0, ran.err
    assert ran.out.startswith("LlamaForCausalLM respects ")
    assert cli("audit", "hf:tiny.json", "--batch", "4").code == 2
    traced = json.loads(cli("trace", "hf:tiny.json", "--format", "json").out)
    assert len(traced["calls"]) == 1


def test_trace_prints_a_table_of_80_columns(cli: RunCli) -> None:
    ran = cli("trace", "toys:Toy", "-n", "6")
    assert ran.code == 0, ran.err
    head, call, *rest = ran.out.splitlines()
    assert head.split()[:2] == ["layer", "kernel"]
    assert "is_causal" in call
    assert "(2,6,8)" in " ".join([call, *rest])
    assert max(map(len, ran.out.splitlines())) <= 80


def test_trace_of_a_model_that_raises_is_one_line(cli: RunCli) -> None:
    ran = cli("trace", "toys:Toy", "--vocab-size", "500", "-n", "99")
    assert ran.code == 2
    assert "IndexError" in ran.err
    assert len(ran.err.splitlines()) == 1


def test_a_terminal_shows_that_the_command_runs(tmp_path: Path) -> None:
    process, terminal = in_terminal(tmp_path, "trace", "toys:Toy")
    assert "toys:Toy" in read_terminal(terminal)
    assert process.wait() == 0


# ── models ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["model", "Toy", "leaky", "Inner.model"])
def test_a_model_or_a_function_that_builds_one(name: str) -> None:
    model, inputs = load_model(f"toys:{name}")
    assert isinstance(model, torch.nn.Module)
    assert inputs is None


def test_a_target_may_provide_inputs_and_be_any_function() -> None:
    assert load_model("toys:pair").inputs.shape == (1, 3)
    assert load_model("toys:both").inputs["ids"].shape == (2, 5)
    assert toy("function")(3) == 3


def test_weights_depend_on_the_seed_only() -> None:
    one, same, other = (load_model("toys:leaky", seed).model.embedding.weight for seed in (3, 3, 4))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("toys", "module:attribute"),
        (":model", ":model"),
        ("toys:", "toys:"),
        ("not_there_at_all:model", "not_there_at_all"),
        ("toys.deeper:model", "toys.deeper"),
        ("no_import:model", "no_import raises ModuleNotFoundError"),
        ("raising:model", "raising raises ZeroDivisionError"),
        ("toys:modle", "toys has no modle.*model"),
        ("toys:Inner.zzz", "toys.Inner has no zzz"),
        ("toys:sized", "vocab_size"),
        ("toys:broken", "raises RuntimeError: no weights"),
        ("toys:three", "a tuple of 3"),
        ("toys:nothing", "None"),
        ("toys:number", "toys:number"),
        ("hf:not/there", "not/there"),
    ],
)
def test_a_target_that_is_no_model_is_refused(target: str, says: str) -> None:
    with pytest.raises(mw.ArgumentError, match=says):
        load_model(target)


def llama_config() -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.LlamaConfig(**LLAMA, architectures=["LlamaForCausalLM"])


def test_a_config_without_weights_gives_random_weights(tmp_path: Path) -> None:
    llama_config().save_pretrained(tmp_path / "config")
    by_directory = load_model(f"hf:{tmp_path / 'config'}").model
    by_file = load_model("hf:config/config.json").model
    assert type(by_directory).__name__ == "LlamaForCausalLM"
    assert not by_directory.training
    for one, other in zip(by_directory.parameters(), by_file.parameters(), strict=True):
        assert torch.equal(one, other)


def test_a_checkpoint_has_its_own_weights(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(99)
    model = transformers.LlamaForCausalLM(llama_config())
    model.save_pretrained(tmp_path / "saved")
    found = load_model("hf:saved").model
    assert torch.equal(found.model.embed_tokens.weight, model.model.embed_tokens.weight)


def test_the_auto_class_follows_the_architecture(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = llama_config()
    config.architectures = None
    config.save_pretrained(tmp_path / "bare")
    assert type(load_model("hf:bare").model).__name__ == "LlamaModel"
    sizes = {"vocab_size": 40, "d_model": 16, "d_kv": 8, "d_ff": 16, "num_layers": 1}
    t5 = transformers.T5Config(**sizes, num_heads=2, architectures=["T5ForConditionalGeneration"])
    t5.save_pretrained(tmp_path / "t5")
    model = load_model("hf:t5").model
    assert type(model).__name__ == "T5ForConditionalGeneration"
    assert set(make_inputs(model, "auto", length=9)) >= {"input_ids", "decoder_input_ids"}


@pytest.mark.parametrize("content", ['{"model_type": "no such kind"}', "{not json"])
def test_an_unknown_config_is_refused(tmp_path: Path, content: str) -> None:
    pytest.importorskip("transformers")
    (tmp_path / "odd.json").write_text(content)
    with pytest.raises(mw.ArgumentError, match=r"odd\.json"):
        load_model("hf:odd.json")


def test_without_transformers_the_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "config.json").write_text("{}")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(mw.MissingError, match=re.escape("pip install 'maskwright[transformers]'")):
        load_model("hf:config.json")


# ── inputs ────────────────────────────────────────────────────────────────────────────────────


def test_ids_fit_the_embedding() -> None:
    ids = make_inputs(toy("leaky"), "causal", length=50, batch=3)
    assert ids.shape == (3, 50)
    assert ids.min() >= 1
    assert ids.max() < 30
    assert torch.equal(ids, make_inputs(toy("leaky"), "causal", length=50, batch=3))
    assert int(make_inputs(toy("leaky"), "causal", length=50, vocab_size=5).max()) < 5
    assert make_inputs(toy("function"), "causal", vocab_size=9, length=3).shape == (2, 3)


def test_the_batch_size_is_that_of_the_mask() -> None:
    assert make_inputs(toy("leaky"), "causal()").shape == (2, 24)
    padded = make_inputs(toy("leaky"), "padding(lengths=[2, 3, 4])", length=4, pad_id=0)
    assert padded.shape == (3, 4)


def test_padding_is_where_the_mask_expects_it() -> None:
    ids = make_inputs(toy("leaky"), "causal() & padding(lengths=[2, 4])", length=4, pad_id=7)
    assert (ids == 7).tolist() == [[False, False, True, True], [False] * 4]
    given = make_inputs(toy("WithMask"), "padding(lengths=[2, 4])", length=4)
    assert given["attention_mask"].tolist() == [[1, 1, 0, 0], [1, 1, 1, 1]]
    assert given["tokens"].shape == (2, 4)


def test_two_inputs_for_an_encoder_and_a_decoder() -> None:
    source, target = make_inputs(toy("leaky"), "encoder-decoder", length=6)
    assert source.shape == target.shape == (2, 6)
    assert not torch.equal(source, target)


def test_inputs_of_a_transformers_model_follow_its_config() -> None:
    transformers = pytest.importorskip("transformers")
    model = transformers.LlamaForCausalLM(llama_config())
    assert make_inputs(model, "auto", length=12)["input_ids"].shape == (2, 12)
    given = make_inputs(model, "causal() & padding(lengths=[5, 9, 9])", length=9)
    assert given["input_ids"].shape == (3, 9)
    assert given["attention_mask"].sum(1).tolist() == [5, 9, 9]


@pytest.mark.parametrize(
    ("name", "given", "says"),
    [
        ("Numbers", {}, "first.weight"),
        ("function", {}, "nn.Embedding"),
        ("leaky", {"vocab_size": 2}, "--vocab-size 2"),
        ("leaky", {"expects": "padding(lengths=[1, 24])"}, "attention_mask.*--pad-id"),
    ],
)
def test_inputs_that_cannot_be_made_are_refused(
    name: str, given: dict[str, Any], says: str
) -> None:
    with pytest.raises(mw.ArgumentError, match=says):
        make_inputs(toy(name), **{"expects": "causal", **given})


def test_a_trace_takes_inputs_of_any_form() -> None:
    attend = torch.nn.functional.scaled_dot_product_attention
    x = torch.ones(1, 1, 3, 4)
    for inputs in ((x, x, x), [x, x, x], {"query": x, "key": x, "value": x}):
        assert len(run_trace(attend, inputs)) == 1
    with pytest.raises(mw.ArgumentError, match="TypeError"):
        run_trace(attend, x)
