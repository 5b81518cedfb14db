"""Models of transformers: no false positives, and the known faults are found."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

import maskwright as mw
from maskwright.auditing.huggingface import expected_masks, make_inputs
from maskwright.auditing.probes import PROBES
from tests._helpers.more_architectures import EXCEPTIONS, FLOATS, MORE, Sized
from tests._helpers.sampling import ALL, subset_of_cases
from tests._helpers.tiny_architectures import (
    ARCHITECTURES,
    EAGER,
    ENDS,
    EXPERTS,
    GROUPED,
    MIXED,
    PAIR,
    REFORMER,
    T5,
    THIN,
    TINY,
    Tiny,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from maskwright.auditing.report import AuditReport

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning"),
    pytest.mark.filterwarnings(
        "ignore:Support for mismatched key_padding_mask:UserWarning"
    ),  # WavLM
]
MAX_PASSES = 200
MAIN = ("leak", "reach", "padding", "batch", "steps")
WITHOUT_STEPS = ("jamba",)  # see TRUE_POSITIVES
CASES = [
    (name, kind)
    for n, name in enumerate(subset_of_cases([*ARCHITECTURES], 4))
    for m, kind in enumerate(ARCHITECTURES[name].attention)
    if ALL or m == n % len(ARCHITECTURES[name].attention)
]


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def check(report: AuditReport) -> None:
    assert report.ok, str(report)
    assert report.passes <= MAX_PASSES


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_healthy_model_is_ok(name: str, kind: str) -> None:
    """Some are asked all that there is to ask; compiling takes long."""
    probes = MAIN if CASES.index((name, kind)) % (3 if ALL else 16) else None
    if name in WITHOUT_STEPS:
        probes = [probe for probe in probes or PROBES if probe != "steps"]
    model = ARCHITECTURES[name].build(kind)
    report = mw.audit(model, expects="auto", probes=probes)
    check(report)
    if report.trace is not None and not model.config.is_encoder_decoder:
        compare(expected_masks(model, make_inputs(model)), report.trace, make_inputs(model))


def models() -> set[str]:
    """The model types that are audited."""
    configs = {one.config for one in (*ARCHITECTURES.values(), *MORE.values())}
    return configs | {one.sized.config for one in FLOATS.values()}


def test_number_of_architectures() -> None:
    assert len(models()) >= 150
    assert len(ARCHITECTURES) + len(MORE) + len(FLOATS) >= 200


def kinds_of(cases: dict[str, Any], every: int) -> list[tuple[str, str]]:
    """A subset of the names with one attention each; with MASKWRIGHT_ALL_CASES, all with all."""
    found = []
    healthy = [name for name in cases if name not in EXCEPTIONS]
    for n, name in enumerate(subset_of_cases(healthy, every)):
        one = cases[name]
        kinds = getattr(one, "sized", one).attention
        found += [(name, kind) for m, kind in enumerate(kinds) if ALL or m == n % len(kinds)]
    return found


@pytest.mark.parametrize(("name", "kind"), kinds_of(MORE, 12))
def test_more_healthy_models_are_ok(name: str, kind: str) -> None:
    check(mw.audit(MORE[name].build(kind), expects="auto", probes=MAIN))


@pytest.mark.parametrize(("name", "kind"), kinds_of(FLOATS, 6))
def test_healthy_models_of_speech_and_images_are_ok(name: str, kind: str) -> None:
    one = FLOATS[name]
    check(mw.audit(one.build(kind), one.inputs, expects=one.expects, probes=MAIN))


@pytest.mark.parametrize("name", EXCEPTIONS)
def test_exceptions_have_findings(name: str) -> None:
    one: Any = FLOATS.get(name) or MORE[name]
    inputs, expects = getattr(one, "inputs", None), getattr(one, "expects", "auto")
    model = one.build("eager")
    assert mw.audit(model, inputs, expects=expects, probes=MAIN).findings


def compare(expects: Any, calls: Sequence[mw.AttentionCall], inputs: dict[str, Any]) -> None:
    """What is expected of each layer is what its attention was seen to do."""
    masks = list(expects) if isinstance(expects, tuple) else [expects] * len(calls)
    batch, length = inputs["input_ids"].shape
    real = inputs.get("attention_mask", torch.ones(batch, length)).bool().numpy()[:, :, None]
    for call, mask in zip(calls, masks[-len(calls) :], strict=True):
        wanted = mask.on(length, batch=batch).dense().any(1)
        assert np.array_equal(call.visible.any(1) & real, wanted & real), call


LEFT = (
    *("llama", "mistral", "gemma3", "qwen3", "gpt neox", "gptj", "llama4", "gpt2", "bloom"),
    *("falcon alibi", "opt", "mixtral"),
)


@pytest.mark.parametrize("name", LEFT)
def test_padding_on_left_is_ok(name: str) -> None:
    tiny = ARCHITECTURES[name]
    model = tiny.build(tiny.attention[-1])
    inputs = {key: x.flip(1) for key, x in make_inputs(model).items()}
    if name != "bloom":  # which counts by the mask
        inputs["position_ids"] = (inputs["attention_mask"].cumsum(1) - 1).clip(0)
    check(mw.audit(model, inputs, expects="auto", probes=("padding", "batch", "leak")))


@pytest.mark.parametrize("name", ["llama", "mixtral", "marian", "modernbert decoder"])
def test_half_precision_is_ok(name: str) -> None:
    check(mw.audit(ARCHITECTURES[name].build("sdpa").bfloat16(), expects="auto", probes=MAIN))


def test_prefix_from_token_types() -> None:
    import transformers

    torch.manual_seed(0)
    seeing = {"model_type": "siglip_vision_model", "image_size": 8, "patch_size": 4}
    seeing |= {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4}
    reading = {"model_type": "gemma", **GROUPED}
    config = transformers.PaliGemmaConfig(
        text_config=reading, vision_config=seeing, image_token_id=99, projection_dim=32
    )
    model = transformers.PaliGemmaForConditionalGeneration(config).eval()
    inputs = make_inputs(model)
    inputs["token_type_ids"] = (torch.arange(24) >= 10).long().expand(2, -1).clone()
    real = mw.padding(keep=inputs["attention_mask"].bool().numpy())
    expects = (mw.causal() | mw.prefix(10)) & real
    check(mw.audit(model, inputs, expects=expects, probes=(*MAIN, "gradient")))


@pytest.mark.parametrize("decodes", [True, False])
def test_chunks_of_reformer_are_known(decodes: bool) -> None:
    sizes = {**REFORMER, "is_decoder": decodes, "attn_layers": ["local", "local"]}
    kind = "ReformerModelWithLMHead" if decodes else "ReformerForMaskedLM"
    model = Tiny(kind, "ReformerConfig", sizes, EAGER).build("eager")
    # An encoder's chunks are in a circle, in which the first sees the last: padding moves that.
    probes = ("leak", "reach", "batch", "padding")[: 4 if decodes else 3]
    check(mw.audit(model, probes=probes))
    report = mw.audit(model, expects="causal" if decodes else "bidirectional", probes="reach")
    assert not report.ok  # it does not reach that far


@pytest.mark.parametrize("decodes", [True, False])
def test_hashed_attention_need_not_reach_all(decodes: bool) -> None:
    sizes = {**REFORMER, "is_decoder": decodes, "attn_layers": ["local", "lsh"]}
    kind = "ReformerModelWithLMHead" if decodes else "ReformerForMaskedLM"
    model = Tiny(kind, "ReformerConfig", sizes, EAGER).build("eager")
    report = mw.audit(model, probes="reach")
    assert not any("does not depend" in finding.message for finding in report.findings), report
    assert "a subset of " in report.expects


def test_model_with_other_inputs_is_rejected() -> None:
    class Picky(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = ARCHITECTURES["llama"].build("sdpa")
            self.config = self.inner.config

        def get_input_embeddings(self) -> torch.nn.Module:
            return self.inner.get_input_embeddings()

        def forward(self, input_ids: Any, attention_mask: Any, weather: Any = None) -> Any:
            if weather is None:
                raise ValueError("there is no weather")
            return self.inner(input_ids, attention_mask)

    [finding] = mw.audit(Picky(), expects="causal").findings
    assert "inputs generated from its config: ValueError: there is no weather" in finding.message
    assert "pass inputs=" in finding.message
    given = make_inputs(Picky()) | {"weather": "fair"}
    assert mw.audit(Picky(), given, probes="leak").ok


def test_longer_inputs_need_few_passes() -> None:
    deep = Tiny("LlamaForCausalLM", "LlamaConfig", {**GROUPED, "num_hidden_layers": 4})
    model = deep.build("sdpa")
    check(mw.audit(model, make_inputs(model, 64), expects="auto"))
    sizes = {**TINY, "hidden_size": 16, "num_attention_heads": 1, "num_key_value_heads": 1}
    long = Tiny("LlamaForCausalLM", "LlamaConfig", {**sizes, "max_position_embeddings": 1024})
    model = long.build("sdpa")
    report = mw.audit(model, make_inputs(model, 1024), expects="auto", probes=("leak", "reach"))
    check(report)
    assert report.passes <= 150


# ── true positives ────────────────────────────────────────────────────────────────────────────

HALF_LINEAR: dict[str, Any] = {"layer_types": ["linear_attention", "full_attention"]}
STATES: dict[str, Any] = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_state": 8}
FSMT: dict[str, Any] = {"src_vocab_size": 100, "tgt_vocab_size": 100, "langs": ["en", "de"]}
PROPHET: dict[str, Any] = {
    **{f"num_{part}_layers": 2 for part in ("encoder", "decoder")},
    **{f"num_{part}_attention_heads": 4 for part in ("encoder", "decoder")},
    **{f"{part}_ffn_dim": 48 for part in ("encoder", "decoder")},
}
# name: attention, probe, model
TRUE_POSITIVES: dict[str, tuple[str, str, Tiny | Sized]] = {
    # A convolution runs beside attention, over padding too: other ids under a mask of 0 move the
    # logits of the last real tokens.
    "convbert": ("eager", "leak", Tiny("ConvBertForMaskedLM", "ConvBertConfig", THIN, EAGER)),
    # Every token is put together with its two neighbours, so the last real one knows of padding.
    "mobilebert": ("sdpa", "leak",
        Tiny("MobileBertForMaskedLM", "MobileBertConfig", {**THIN, "intra_bottleneck_size": 32})),
    # Its landmarks are means over stretches of positions, and padding is in them.
    "nystromformer": ("eager", "padding",
        Tiny("NystromformerForMaskedLM", "NystromformerConfig", TINY, EAGER)),
    # With use_cache, which is the default, no causal mask is made, though nothing is cached yet:
    # another last id in decoder_input_ids moves all logits. With use_cache=False it does not.
    "fsmt": ("eager", "leak",
        Tiny("FSMTForConditionalGeneration", "FSMTConfig", {**PAIR, **FSMT}, EAGER)),
    # The bias of relative positions is laid out as (batch, position, stream, head) and read as
    # (stream, batch, head, position): from the second layer on, a position gets the bias of
    # another. With weights six times as large, another decoder id 2 moves the logits of 0 and 1.
    "prophetnet": ("eager", "gradient",
        Tiny("ProphetNetForConditionalGeneration", "ProphetNetConfig",
            {**PROPHET, **ENDS, "vocab_size": 100, "hidden_size": 32}, EAGER)),
    # Tokens are sorted by their hashes over the whole sequence and then cut into chunks: a later one
    # moves what an earlier one is put beside. Another id 23 moves logits from 6 on.
    "reformer": ("eager", "leak",
        Tiny("ReformerModelWithLMHead", "ReformerConfig",
            {**REFORMER, "is_decoder": True, "attn_layers": ["lsh", "lsh"]}, EAGER)),
    # The fill is -1e10, which float16 rounds to -inf: blocks of padding alone give NaN, and then
    # the whole sequence does. model.half()(**inputs).logits is NaN for the one that is padded.
    "longt5": ("eager", "dtype",
        Tiny("LongT5ForConditionalGeneration", "LongT5Config", {**T5, "local_radius": 3}, EAGER)),
    # Positions are counted from 0 per call, whatever the cache holds: token by token, without
    # position_ids, gives something else from the second token on. With position_ids it does not.
    "bamba": ("sdpa", "steps",
        Tiny("BambaForCausalLM", "BambaConfig",
            {**GROUPED, **STATES, "attn_layer_indices": [1], "mamba_n_groups": 1})),
    # One token after another is right; several at once, behind a cache, have a mask of the wrong
    # size. Eager attention raises, and sdpa gives other numbers.
    "minimax": ("sdpa", "steps",
        Tiny("MiniMaxForCausalLM", "MiniMaxConfig", {**GROUPED, **EXPERTS, **HALF_LINEAR})),
    # Several tokens at once after a cache: the Mamba layers begin with an empty state. Logits of the
    # first two differ by 6e-6, those of tokens that are decoded one by one by 9e-8.
    "jamba": ("sdpa", "steps", ARCHITECTURES["jamba"]),
    # Without padding there is no mask, and sdpa's flag is off: another last id moves all outputs.
    "aimv2 text": ("sdpa", "batch", Sized("Aimv2TextModel", "Aimv2TextConfig")),
    # The mask stays causal, only sdpa's flag is off: a sequence alone sees all, in a batch with
    # padding it sees the past. Its hidden states differ between the two.
    "gemma, all seen": ("sdpa", "batch",
        Tiny("GemmaModel", "GemmaConfig", {**GROUPED, "use_bidirectional_attention": True})),
    # The root of a mean square is taken where that may be 0, as it is for padding's embedding:
    # the gradient there is NaN.
    "gemma3n": ("sdpa", "gradient",
        Tiny("Gemma3nForCausalLM", "Gemma3nTextConfig",
            {**MIXED, "vocab_size_per_layer_input": 100, "hidden_size_per_layer_input": 8}
            | {"num_kv_shared_layers": 0, "altup_num_inputs": 2, "laurel_rank": 4}
            | {"activation_sparsity_pattern": None})),
    # A head to generate with, on an encoder: without is_decoder=True the future is seen.
    "bert without is_decoder": ("sdpa", "leak", Tiny("BertLMHeadModel", "BertConfig", TINY)),
}  # fmt: skip


@pytest.mark.parametrize("name", TRUE_POSITIVES)
def test_true_positives(name: str) -> None:
    kind, probe, tiny = TRUE_POSITIVES[name]
    report = mw.audit(tiny.build(kind), expects="auto", probes=probe)
    assert report.findings, str(report)


# ── bugs of transformers 5.22.2: docs/audit.md reproduces each without maskwright ─────────────


def test_doge_with_flex_attention_has_no_causal_mask() -> None:
    model = MORE["doge"].build("sdpa")
    report = mw.audit(model, probes="paths")
    assert any("flex" in finding.message for finding in report.findings), report
    assert not mw.audit(model, probes=MAIN).findings


def test_moshi_ignores_its_window_in_one_pass() -> None:
    sizes = {"ffn_dim": 48, "sliding_window": 8}
    report = mw.audit(Sized("MoshiForCausalLM", "MoshiConfig", sizes).build("sdpa"), probes=MAIN)
    assert report.cause == "window-missing", report
    assert {"leak", "steps"} <= {finding.probe for finding in report.findings}


def test_depth_decoder_of_moshi_attends_to_the_future() -> None:
    import transformers
    from transformers.models.moshi.modeling_moshi import MoshiDepthDecoder

    sizes = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    depth = {**sizes, "ffn_dim": 48, "head_dim": 8, "input_size": 32, "num_codebooks": 8}
    config = transformers.MoshiConfig(
        **sizes, ffn_dim=48, audio_vocab_size=50, depth_decoder_config=depth
    ).depth_decoder_config
    config._attn_implementation = "eager"
    torch.manual_seed(0)
    model = MoshiDepthDecoder(config).eval()
    inputs = {"input_ids": torch.randint(3, 50, (2, 8)), "last_hidden_state": torch.randn(2, 8, 32)}
    report = mw.audit(model, inputs, expects="causal", probes="leak")
    assert report.cause == "future-visible", report
    inputs["attention_mask"] = torch.ones(2, 8, dtype=torch.long)
    assert not mw.audit(model, inputs, expects="causal", probes="leak").findings


def test_yoso_ignores_its_mask() -> None:
    model = Sized("YosoForMaskedLM", "YosoConfig", attention=EAGER).build("eager")
    report = mw.audit(model, probes=("leak", "padding"))
    assert {"leak", "padding"} <= {finding.probe for finding in report.findings}, report


def test_funnel_depends_on_amount_of_padding() -> None:
    sizes = {"block_sizes": [1, 1], "num_decoder_layers": 1, "d_head": 8}
    model = Sized("FunnelForMaskedLM", "FunnelConfig", sizes, EAGER).build("eager")
    report = mw.audit(model, probes=("padding",))
    assert {finding.probe for finding in report.findings} == {"padding"}, report
