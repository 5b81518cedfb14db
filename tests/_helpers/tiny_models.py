"""The architectures that the integrations are tested with, derived from `tiny_architectures`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import transformers

from tests._helpers.tiny_architectures import (
    ARCHITECTURES,
    EXPERTS,
    GROUPED,
    LATENT,
    MANY,
    MIXED,
    NEAR,
    PAIR,
    ROUTED,
    SWITCH,
    T5,
)

VOCABULARY = 40
WINDOW = 5  # smaller than the sequences of the tests
WINDOW_SIZES = {"sliding_window": WINDOW, "attention_chunk_size": WINDOW}
SEQ2SEQ = {**PAIR, "vocab_size": VOCABULARY, "eos_token_id": 39, "decoder_start_token_id": 1}


@dataclass(frozen=True)
class Tiny:
    """An architecture of transformers with a small config."""

    name: str  # its model type
    model: str
    config: str
    sizes: dict[str, Any] = field(repr=False)
    kind: str = "decoder"  # or encoder, seq2seq, audio
    packs: bool = True  # detects packed documents by positions that restart
    caches: tuple[str, ...] = ("dynamic", "static")  # that it generates with
    scale: float = 4.0  # of the initial weights, which are too small to show a wrong mask

    def build(self, attention: str = "eager") -> Any:
        torch.manual_seed(0)
        config = getattr(transformers, self.config)(**self.sizes)
        config._attn_implementation = attention
        model = getattr(transformers, self.model)(config).eval()
        with torch.no_grad():
            for weight in model.parameters():
                if weight.ndim > 1:
                    weight.mul_(self.scale)
        return model


def tiny(name: str, base: str | None = None, **options: Any) -> Tiny:
    """A model of `ARCHITECTURES` with the vocabulary and window of these tests."""
    known = ARCHITECTURES[base or name.replace("_", " ")]
    about = {key: options.pop(key) for key in ("kind", "packs", "scale") if key in options}
    sizes = {**known.sizes, "vocab_size": VOCABULARY, "eos_token_id": None, **options}
    sizes |= {key: size for key, size in WINDOW_SIZES.items() if key in known.sizes}
    return Tiny(name, known.model, known.config, sizes, **about)


DECODERS = (
    *map(tiny, ("llama", "mistral", "mixtral", "gemma3", "qwen2", "qwen3", "phi3", "granite")),
    *map(tiny, ("olmo2", "gpt_neox", "gpt2", "llama4")),
    tiny("gemma2", attn_logit_softcapping=2.0),
    tiny("opt", packs=False),
    tiny("gpt_oss", packs=False, rope_parameters={"rope_type": "default", "rope_theta": 10_000.0}),
)
WHISPER = {**SEQ2SEQ, "num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 64} | {
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
}
OTHERS = (
    tiny("bert", kind="encoder"),
    tiny("modernbert", kind="encoder", eos_token_id=2, local_attention=2 * WINDOW),
    tiny("bart", kind="seq2seq", eos_token_id=39, decoder_start_token_id=1),
    tiny("marian", kind="seq2seq", eos_token_id=39, decoder_start_token_id=1),
    tiny("t5", kind="seq2seq", eos_token_id=39, scale=1.0),
    Tiny("whisper", "WhisperForConditionalGeneration", "WhisperConfig", WHISPER, kind="audio"),
)
# Models that pass softcap, sinks (s_aux) or position_bias to the attention interface.
IDS = {"vocab_size": VOCABULARY, "eos_token_id": None, "pad_token_id": 0, "bos_token_id": 1}
CAPPED = {**NEAR, **IDS, "sliding_window": WINDOW, "attn_logit_softcapping": 2.0}
SINKS = {**MIXED, **IDS, "sliding_window": WINDOW}
DEFAULT_ROPE = {"rope_type": "default", "rope_theta": 10_000.0}
RELATIVE = {**T5, "vocab_size": VOCABULARY, "eos_token_id": 39}
INKLING = (
    {**GROUPED, **IDS, **ROUTED, "sliding_window_size": WINDOW, "d_rel": 4, "rel_extent": 16}
    | {"swa_num_attention_heads": 4, "swa_num_key_value_heads": 2, "swa_head_dim": 8}
    | {"local_layer_ids": [0], "mlp_layer_types": ["dense", "sparse"]}
    | {"n_shared_experts": 1}
)


def relative(name: str, model: str, **sizes: Any) -> Tiny:
    """A model of the T5 family."""
    names = (f"{model}ForConditionalGeneration", f"{model}Config")
    return Tiny(name, *names, {**RELATIVE, **sizes}, kind="seq2seq", scale=1.0)


SCORES = (
    Tiny("vaultgemma", "VaultGemmaForCausalLM", "VaultGemmaConfig", CAPPED),
    Tiny(
        "t5gemma",
        "T5GemmaForConditionalGeneration",
        "T5GemmaConfig",
        {
            "encoder": {**CAPPED, "eos_token_id": 39},
            "decoder": {**CAPPED, "eos_token_id": 39},
            "vocab_size": VOCABULARY,
        },
        kind="seq2seq",
    ),
    Tiny("granite_swa", "GraniteSWAForCausalLM", "GraniteSWAConfig", SINKS, packs=False),
    Tiny(
        "granitemoe_swa",
        "GraniteMoeSWAForCausalLM",
        "GraniteMoeSWAConfig",
        {**SINKS, **EXPERTS},
        packs=False,
    ),
    Tiny(
        "flint",
        "FlintForCausalLM",
        "FlintConfig",
        {**SINKS, **MANY, "shared_expert_intermediate_size": 16},
        packs=False,
    ),
    Tiny(
        "mimo_v2_flash",
        "MiMoV2FlashForCausalLM",
        "MiMoV2FlashConfig",
        {**SINKS, **ROUTED, "v_head_dim": 8, "mlp_layer_types": ["dense", "sparse"]},
        packs=False,
    ),
    Tiny(
        "openai_privacy_filter",
        "OpenAIPrivacyFilterForTokenClassification",
        "OpenAIPrivacyFilterConfig",
        {**NEAR, **IDS, **EXPERTS, "sliding_window": WINDOW, "rope_parameters": DEFAULT_ROPE},
        kind="encoder",
    ),
    Tiny(
        "deepseek_v4",
        "DeepseekV4ForCausalLM",
        "DeepseekV4Config",
        {**GROUPED, **IDS, **ROUTED, "sliding_window": WINDOW},
        packs=False,
        # Its own layer types have no static cache: "eager" fails with one too, with a KeyError.
        caches=("dynamic",),
    ),
    Tiny(
        "inkling",
        "InklingForCausalLM",
        "InklingTextConfig",
        INKLING,
        packs=False,
        caches=("dynamic",),  # "eager" fails with a static cache
    ),
    relative("mt5", "MT5"),
    relative("umt5", "UMT5"),
    relative("longt5", "LongT5", local_radius=3),
    relative(
        "switch_transformers",
        "SwitchTransformers",
        **{**SWITCH, **RELATIVE},
        router_jitter_noise=0.0,
    ),
)
ALL = (*DECODERS, *OTHERS, *SCORES)

# Models without support for other attention functions, by their model type.
DEEPSEEK = {**LATENT, "index_n_heads": 2, "index_head_dim": 16, "index_topk": 4}
NO_OTHER = (
    *map(tiny, ("bloom", "codegen", "falcon", "gpt_neo", "gptj", "mpt")),
    tiny("deberta-v2", "deberta v2", kind="encoder"),
    Tiny("deepseek_v32", "DeepseekV32ForCausalLM", "DeepseekV32Config", DEEPSEEK),
    Tiny("hy_v4", "HYV4ForCausalLM", "HYV4Config", {**DEEPSEEK, "head_dim": 16}),
    tiny("xlnet", kind="encoder"),
)
