"""Models of many architectures, small enough to be built and run in a blink."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import transformers

VOCABULARY = 40
WINDOW = 5  # smaller than the sequences of the tests
TINY: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": None,
}
GROUPED: dict[str, Any] = {**TINY, "num_key_value_heads": 2, "head_dim": 8}
SEQ2SEQ: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 39,
    "decoder_start_token_id": 1,
    "forced_eos_token_id": None,
}
MOE: dict[str, Any] = {"num_local_experts": 2, "num_experts_per_tok": 1}


@dataclass(frozen=True)
class Tiny:
    """An architecture: its classes in transformers, and what makes it small."""

    name: str
    model: str
    config: str
    sizes: dict[str, Any] = field(repr=False)
    kind: str = "decoder"  # or encoder, seq2seq, audio
    packs: bool = True  # tells packed documents by positions that begin anew
    louder: float = 4.0  # weights as they come say so little that a wrong mask would hardly show

    def build(self, attention: str = "eager") -> Any:
        torch.manual_seed(0)
        config = getattr(transformers, self.config)(**self.sizes)
        config._attn_implementation = attention
        model = getattr(transformers, self.model)(config).eval()
        with torch.no_grad():
            for weight in model.parameters():
                if weight.ndim > 1:
                    weight.mul_(self.louder)
        return model


DECODERS = (
    Tiny("llama", "LlamaForCausalLM", "LlamaConfig", GROUPED),
    Tiny("mistral", "MistralForCausalLM", "MistralConfig", {**GROUPED, "sliding_window": WINDOW}),
    Tiny(
        "mixtral",
        "MixtralForCausalLM",
        "MixtralConfig",
        {**GROUPED, **MOE, "sliding_window": WINDOW},
    ),
    Tiny(
        "gemma2",
        "Gemma2ForCausalLM",
        "Gemma2Config",
        {**GROUPED, "sliding_window": WINDOW, "attn_logit_softcapping": 2.0},
    ),
    Tiny(
        "gemma3",
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {
            **GROUPED,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    Tiny("qwen2", "Qwen2ForCausalLM", "Qwen2Config", GROUPED),
    Tiny("qwen3", "Qwen3ForCausalLM", "Qwen3Config", GROUPED),
    Tiny("phi3", "Phi3ForCausalLM", "Phi3Config", {**GROUPED, "sliding_window": WINDOW}),
    Tiny("granite", "GraniteForCausalLM", "GraniteConfig", GROUPED),
    Tiny("olmo2", "Olmo2ForCausalLM", "Olmo2Config", GROUPED),
    Tiny("gpt_neox", "GPTNeoXForCausalLM", "GPTNeoXConfig", TINY),
    Tiny(
        "gpt2",
        "GPT2LMHeadModel",
        "GPT2Config",
        {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
        | {"bos_token_id": 1, "eos_token_id": None, "pad_token_id": 0},
    ),
    Tiny(
        "opt",
        "OPTForCausalLM",
        "OPTConfig",
        {**TINY, "ffn_dim": 32, "word_embed_proj_dim": 32},
        packs=False,
    ),
    Tiny(
        "llama4",
        "Llama4ForCausalLM",
        "Llama4TextConfig",
        {
            **GROUPED,
            **MOE,
            "intermediate_size_mlp": 32,
            "attention_chunk_size": WINDOW,
            "no_rope_layers": [1, 0],
        },
    ),
    Tiny(
        "gpt_oss",
        "GptOssForCausalLM",
        "GptOssConfig",
        {
            **GROUPED,
            **MOE,
            "sliding_window": WINDOW,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0},
        },
        packs=False,
    ),
)
OTHERS = (
    Tiny("bert", "BertForMaskedLM", "BertConfig", TINY, kind="encoder"),
    Tiny(
        "modernbert",
        "ModernBertForMaskedLM",
        "ModernBertConfig",
        {**TINY, "local_attention": 2 * WINDOW, "global_attn_every_n_layers": 2}
        | {"cls_token_id": 1, "sep_token_id": 2, "eos_token_id": 2},
        kind="encoder",
    ),
    Tiny("bart", "BartForConditionalGeneration", "BartConfig", SEQ2SEQ, kind="seq2seq"),
    Tiny("marian", "MarianMTModel", "MarianConfig", SEQ2SEQ, kind="seq2seq"),
    Tiny(
        "t5",
        "T5ForConditionalGeneration",
        "T5Config",
        {"vocab_size": VOCABULARY, "d_model": 32, "d_kv": 8, "d_ff": 32, "num_layers": 2}
        | {"num_heads": 4, "pad_token_id": 0, "eos_token_id": 39, "decoder_start_token_id": 0},
        kind="seq2seq",
        louder=1.0,
    ),
    Tiny(
        "whisper",
        "WhisperForConditionalGeneration",
        "WhisperConfig",
        {**SEQ2SEQ, "num_mel_bins": 8, "max_source_positions": 10, "max_target_positions": 64}
        | {"suppress_tokens": None, "begin_suppress_tokens": None},
        kind="audio",
    ),
)
ALL = (*DECODERS, *OTHERS)

# Those that can't run on another attention, by their model type.
NO_OTHER = (
    Tiny("bloom", "BloomForCausalLM", "BloomConfig", {**TINY, "n_layer": 2, "n_head": 4}),
    Tiny(
        "codegen",
        "CodeGenForCausalLM",
        "CodeGenConfig",
        {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4},
    ),
    Tiny("deberta-v2", "DebertaV2ForMaskedLM", "DebertaV2Config", TINY, kind="encoder"),
    Tiny(
        "deepseek_v32",
        "DeepseekV32ForCausalLM",
        "DeepseekV32Config",
        {**TINY, "num_key_value_heads": 4, "moe_intermediate_size": 16, "n_routed_experts": 4}
        | {"num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "q_lora_rank": 16}
        | {"kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
        | {"index_n_heads": 2, "index_head_dim": 16, "index_topk": 4},
    ),
    Tiny("falcon", "FalconForCausalLM", "FalconConfig", TINY),
    Tiny(
        "gpt_neo",
        "GPTNeoForCausalLM",
        "GPTNeoConfig",
        {"vocab_size": VOCABULARY, "hidden_size": 32, "num_layers": 2, "num_heads": 4}
        | {"attention_types": [[["global", "local"], 1]], "max_position_embeddings": 64},
    ),
    Tiny(
        "gptj",
        "GPTJForCausalLM",
        "GPTJConfig",
        {"vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "rotary_dim": 4},
    ),
    Tiny(
        "mpt",
        "MptForCausalLM",
        "MptConfig",
        {"vocab_size": VOCABULARY, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 64},
    ),
    Tiny(
        "xlnet",
        "XLNetLMHeadModel",
        "XLNetConfig",
        {"vocab_size": VOCABULARY, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 32},
        kind="encoder",
    ),
)
