"""Healthy models of many architectures, each small enough to be audited in a second."""

from __future__ import annotations

from typing import Any

import torch
import transformers

WINDOW = 8  # less than the sequences are long
TINY: dict[str, Any] = {
    "vocab_size": 100,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED: dict[str, Any] = {**TINY, "num_key_value_heads": 2, "head_dim": 8}
SLIDING: dict[str, Any] = {**GROUPED, "sliding_window": WINDOW}
MIXED: dict[str, Any] = {**SLIDING, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS: dict[str, Any] = {"num_local_experts": 4, "num_experts_per_tok": 2}
MANY: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
ENDS: dict[str, Any] = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
SHORT: dict[str, Any] = {"vocab_size": 100, "n_embd": 32, "n_layer": 2, "n_head": 4, **ENDS}
T5: dict[str, Any] = {
    "vocab_size": 100,
    "d_model": 32,
    "d_kv": 8,
    "d_ff": 48,
    "num_layers": 2,
    "num_heads": 4,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "decoder_start_token_id": 0,
}
SEQ2SEQ: dict[str, Any] = {
    "vocab_size": 100,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "max_position_embeddings": 128,
    **ENDS,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
}

BOTH = ("eager", "sdpa")
EAGER = ("eager",)

# By name: the model's class, its config's, what makes it small, and the attention that it has.
ARCHITECTURES: dict[str, tuple[str, str, dict[str, Any], tuple[str, ...]]] = {
    # rotary positions
    "llama": ("LlamaForCausalLM", "LlamaConfig", GROUPED, BOTH),
    "mistral": ("MistralForCausalLM", "MistralConfig", SLIDING, BOTH),
    "ministral": ("MinistralForCausalLM", "MinistralConfig", MIXED, BOTH),
    "mixtral": ("MixtralForCausalLM", "MixtralConfig", {**SLIDING, **EXPERTS}, BOTH),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", GROUPED, BOTH),
    "qwen2 sliding": (
        "Qwen2ForCausalLM",
        "Qwen2Config",
        {**SLIDING, "use_sliding_window": True, "max_window_layers": 1},
        BOTH,
    ),
    "qwen2 moe": (
        "Qwen2MoeForCausalLM",
        "Qwen2MoeConfig",
        {**GROUPED, **MANY, "shared_expert_intermediate_size": 16},
        BOTH,
    ),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", GROUPED, BOTH),
    "qwen3 moe": ("Qwen3MoeForCausalLM", "Qwen3MoeConfig", {**GROUPED, **MANY}, BOTH),
    "gemma": ("GemmaForCausalLM", "GemmaConfig", GROUPED, BOTH),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", SLIDING, BOTH),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", MIXED, BOTH),
    "phi": ("PhiForCausalLM", "PhiConfig", TINY, BOTH),
    "phi3": ("Phi3ForCausalLM", "Phi3Config", SLIDING, BOTH),
    "phimoe": ("PhimoeForCausalLM", "PhimoeConfig", {**SLIDING, **EXPERTS}, BOTH),
    "stablelm": ("StableLmForCausalLM", "StableLmConfig", GROUPED, BOTH),
    "cohere": ("CohereForCausalLM", "CohereConfig", GROUPED, BOTH),
    "cohere2": ("Cohere2ForCausalLM", "Cohere2Config", MIXED, BOTH),
    "olmo": ("OlmoForCausalLM", "OlmoConfig", GROUPED, BOTH),
    "olmo2": ("Olmo2ForCausalLM", "Olmo2Config", GROUPED, BOTH),
    "olmo3": ("Olmo3ForCausalLM", "Olmo3Config", MIXED, BOTH),
    "olmoe": ("OlmoeForCausalLM", "OlmoeConfig", {**GROUPED, **MANY}, BOTH),
    "starcoder2": ("Starcoder2ForCausalLM", "Starcoder2Config", SLIDING, BOTH),
    "gpt neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", TINY, BOTH),
    "gptj": ("GPTJForCausalLM", "GPTJConfig", {**SHORT, "rotary_dim": 4}, EAGER),
    "codegen": ("CodeGenForCausalLM", "CodeGenConfig", {**SHORT, "rotary_dim": 4}, EAGER),
    "persimmon": ("PersimmonForCausalLM", "PersimmonConfig", TINY, BOTH),
    "granite": ("GraniteForCausalLM", "GraniteConfig", GROUPED, BOTH),
    "granite moe": ("GraniteMoeForCausalLM", "GraniteMoeConfig", {**GROUPED, **EXPERTS}, BOTH),
    "helium": ("HeliumForCausalLM", "HeliumConfig", GROUPED, BOTH),
    "smollm3": (
        "SmolLM3ForCausalLM",
        "SmolLM3Config",
        {**SLIDING, "use_sliding_window": True, "no_rope_layers": [1, 0]},
        BOTH,
    ),
    "glm": ("GlmForCausalLM", "GlmConfig", GROUPED, BOTH),
    "glm4": ("Glm4ForCausalLM", "Glm4Config", GROUPED, BOTH),
    "nemotron": ("NemotronForCausalLM", "NemotronConfig", GROUPED, BOTH),
    "arcee": ("ArceeForCausalLM", "ArceeConfig", GROUPED, BOTH),
    "ernie 4.5": ("Ernie4_5ForCausalLM", "Ernie4_5Config", GROUPED, BOTH),
    "exaone4": ("Exaone4ForCausalLM", "Exaone4Config", MIXED, BOTH),
    "seed oss": ("SeedOssForCausalLM", "SeedOssConfig", GROUPED, BOTH),
    "diffllama": ("DiffLlamaForCausalLM", "DiffLlamaConfig", GROUPED, BOTH),
    "deepseek v3": (
        "DeepseekV3ForCausalLM",
        "DeepseekV3Config",
        {**TINY, "num_key_value_heads": 4, "moe_intermediate_size": 16, "n_routed_experts": 4}
        | {"num_experts_per_tok": 2, "n_group": 1, "topk_group": 1, "q_lora_rank": 16}
        | {"kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
        | {"first_k_dense_replace": 1},
        BOTH,
    ),
    "llama4": (
        "Llama4ForCausalLM",
        "Llama4TextConfig",
        {**GROUPED, **EXPERTS, "num_experts_per_tok": 1, "intermediate_size_mlp": 48}
        | {"attention_chunk_size": WINDOW, "no_rope_layers": [1, 0]},
        BOTH,
    ),
    "gpt oss": ("GptOssForCausalLM", "GptOssConfig", {**MIXED, **EXPERTS}, EAGER),
    # distances added to scores
    "bloom": ("BloomForCausalLM", "BloomConfig", {**TINY, "n_layer": 2, "n_head": 4}, EAGER),
    "mpt": (
        "MptForCausalLM",
        "MptConfig",
        {"vocab_size": 100, "d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 128, **ENDS},
        EAGER,
    ),
    "falcon": (
        "FalconForCausalLM",
        "FalconConfig",
        {**TINY, "new_decoder_architecture": False},
        BOTH,
    ),
    "falcon alibi": ("FalconForCausalLM", "FalconConfig", {**TINY, "alibi": True}, BOTH),
    # learned positions
    "gpt2": ("GPT2LMHeadModel", "GPT2Config", SHORT, BOTH),
    "gpt bigcode": ("GPTBigCodeForCausalLM", "GPTBigCodeConfig", SHORT, BOTH),
    "opt": (
        "OPTForCausalLM",
        "OPTConfig",
        {**TINY, "ffn_dim": 48, "word_embed_proj_dim": 32},
        BOTH,
    ),
    "gpt neo": (
        "GPTNeoForCausalLM",
        "GPTNeoConfig",
        {"vocab_size": 100, "hidden_size": 32, "num_layers": 2, "num_heads": 4, **ENDS}
        | {"attention_types": [[["global", "local"], 1]], "window_size": WINDOW}
        | {"max_position_embeddings": 128},
        EAGER,
    ),
    "xglm": (
        "XGLMForCausalLM",
        "XGLMConfig",
        {"vocab_size": 100, "d_model": 32, "ffn_dim": 48, "num_layers": 2, "attention_heads": 4}
        | {**ENDS, "decoder_start_token_id": 2, "max_position_embeddings": 128},
        BOTH,
    ),
    "biogpt": ("BioGptForCausalLM", "BioGptConfig", TINY, BOTH),
    "bert decoder": ("BertLMHeadModel", "BertConfig", {**TINY, "is_decoder": True}, BOTH),
    # encoders
    "bert": ("BertForMaskedLM", "BertConfig", TINY, BOTH),
    "bert model": ("BertModel", "BertConfig", TINY, BOTH),
    "roberta": ("RobertaForMaskedLM", "RobertaConfig", {**TINY, "pad_token_id": 1}, BOTH),
    "roberta prelayernorm": (
        "RobertaPreLayerNormForMaskedLM",
        "RobertaPreLayerNormConfig",
        {**TINY, "pad_token_id": 1},
        BOTH,
    ),
    "xlm roberta": ("XLMRobertaForMaskedLM", "XLMRobertaConfig", {**TINY, "pad_token_id": 1}, BOTH),
    "camembert": ("CamembertForMaskedLM", "CamembertConfig", {**TINY, "pad_token_id": 1}, BOTH),
    "data2vec text": (
        "Data2VecTextForMaskedLM",
        "Data2VecTextConfig",
        {**TINY, "pad_token_id": 1},
        BOTH,
    ),
    "electra": ("ElectraForMaskedLM", "ElectraConfig", {**TINY, "embedding_size": 32}, BOTH),
    "ernie": ("ErnieForMaskedLM", "ErnieConfig", TINY, BOTH),
    "albert": ("AlbertForMaskedLM", "AlbertConfig", {**TINY, "embedding_size": 16}, BOTH),
    "distilbert": (
        "DistilBertForMaskedLM",
        "DistilBertConfig",
        {"vocab_size": 100, "dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4}
        | {"max_position_embeddings": 128, "pad_token_id": 0},
        BOTH,
    ),
    "mpnet": ("MPNetForMaskedLM", "MPNetConfig", {**TINY, "pad_token_id": 1}, EAGER),
    "convbert": ("ConvBertForMaskedLM", "ConvBertConfig", {**TINY, "embedding_size": 32}, EAGER),
    "roformer": ("RoFormerForMaskedLM", "RoFormerConfig", {**TINY, "embedding_size": 32}, EAGER),
    "squeezebert": (
        "SqueezeBertForMaskedLM",
        "SqueezeBertConfig",
        {**TINY, "embedding_size": 32},
        EAGER,
    ),
    "rembert": (
        "RemBertForMaskedLM",
        "RemBertConfig",
        {**TINY, "input_embedding_size": 16, "output_embedding_size": 16},
        EAGER,
    ),
    "mobilebert": (
        "MobileBertForMaskedLM",
        "MobileBertConfig",
        {**TINY, "embedding_size": 32, "intra_bottleneck_size": 32},
        BOTH,
    ),
    "esm": (
        "EsmForMaskedLM",
        "EsmConfig",
        {**TINY, "mask_token_id": 3, "position_embedding_type": "rotary"},
        BOTH,
    ),
    "megatron bert": ("MegatronBertForMaskedLM", "MegatronBertConfig", TINY, EAGER),
    "deberta": (
        "DebertaForMaskedLM",
        "DebertaConfig",
        {**TINY, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
        EAGER,
    ),
    "deberta v2": (
        "DebertaV2ForMaskedLM",
        "DebertaV2Config",
        {**TINY, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]},
        EAGER,
    ),
    "modernbert": (
        "ModernBertForMaskedLM",
        "ModernBertConfig",
        {**TINY, "local_attention": WINDOW, "global_attn_every_n_layers": 2}
        | {"cls_token_id": 1, "sep_token_id": 2},
        BOTH,
    ),
    "modernbert decoder": (
        "ModernBertDecoderForCausalLM",
        "ModernBertDecoderConfig",
        {**TINY, "local_attention": WINDOW, "global_attn_every_n_layers": 2}
        | {"cls_token_id": 1, "sep_token_id": 2},
        BOTH,
    ),
    "nomic bert": ("NomicBertForMaskedLM", "NomicBertConfig", TINY, BOTH),
    "eurobert": ("EuroBertForMaskedLM", "EuroBertConfig", {**GROUPED, "mask_token_id": 3}, BOTH),
    "jina embeddings": ("JinaEmbeddingsV3ForMaskedLM", "JinaEmbeddingsV3Config", TINY, BOTH),
    "gemma3 bidirectional": (
        "Gemma3TextModel",
        "Gemma3TextConfig",
        {**MIXED, "use_bidirectional_attention": True},
        BOTH,
    ),
    "t5 encoder": ("T5EncoderModel", "T5Config", T5, BOTH),
    # encoders with decoders
    "t5": ("T5ForConditionalGeneration", "T5Config", T5, BOTH),
    "mt5": ("MT5ForConditionalGeneration", "MT5Config", T5, BOTH),
    "umt5": ("UMT5ForConditionalGeneration", "UMT5Config", T5, BOTH),
    "longt5": ("LongT5ForConditionalGeneration", "LongT5Config", {**T5, "local_radius": 3}, EAGER),
    "switch": (
        "SwitchTransformersForConditionalGeneration",
        "SwitchTransformersConfig",
        {**T5, "num_experts": 4, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1},
        EAGER,
    ),
    "bart": ("BartForConditionalGeneration", "BartConfig", SEQ2SEQ, BOTH),
    "mbart": ("MBartForConditionalGeneration", "MBartConfig", SEQ2SEQ, BOTH),
    "pegasus": ("PegasusForConditionalGeneration", "PegasusConfig", SEQ2SEQ, BOTH),
    "pegasus x": (
        "PegasusXForConditionalGeneration",
        "PegasusXConfig",
        {**SEQ2SEQ, "block_size": 8, "num_global_tokens": 2},
        EAGER,
    ),
    "marian": ("MarianMTModel", "MarianConfig", SEQ2SEQ, BOTH),
    "blenderbot": ("BlenderbotForConditionalGeneration", "BlenderbotConfig", SEQ2SEQ, BOTH),
    "blenderbot small": (
        "BlenderbotSmallForConditionalGeneration",
        "BlenderbotSmallConfig",
        SEQ2SEQ,
        BOTH,
    ),
    "m2m100": ("M2M100ForConditionalGeneration", "M2M100Config", SEQ2SEQ, BOTH),
    "nllb moe": (
        "NllbMoeForConditionalGeneration",
        "NllbMoeConfig",
        {**SEQ2SEQ, "num_experts": 4, "encoder_sparse_step": 2, "decoder_sparse_step": 2},
        BOTH,
    ),
    "plbart": ("PLBartForConditionalGeneration", "PLBartConfig", SEQ2SEQ, BOTH),
    "mvp": ("MvpForConditionalGeneration", "MvpConfig", SEQ2SEQ, EAGER),
    "fsmt": (
        "FSMTForConditionalGeneration",
        "FSMTConfig",
        {**SEQ2SEQ, "src_vocab_size": 100, "tgt_vocab_size": 100, "langs": ["en", "de"]},
        EAGER,
    ),
    "led": (
        "LEDForConditionalGeneration",
        "LEDConfig",
        {
            **SEQ2SEQ,
            "attention_window": 8,
            "max_encoder_position_embeddings": 128,
            "max_decoder_position_embeddings": 128,
        },
        EAGER,
    ),
    "prophetnet": (
        "ProphetNetForConditionalGeneration",
        "ProphetNetConfig",
        {
            "vocab_size": 100,
            "hidden_size": 32,
            "encoder_ffn_dim": 48,
            "decoder_ffn_dim": 48,
            "num_encoder_layers": 2,
            "num_decoder_layers": 2,
            "num_encoder_attention_heads": 4,
            "num_decoder_attention_heads": 4,
            "max_position_embeddings": 128,
            **ENDS,
        },
        EAGER,
    ),
}


def build(name: str, attention: str) -> Any:
    """A model of an architecture, with the weights that it is given when training begins."""
    model, config, sizes, _ = ARCHITECTURES[name]
    torch.manual_seed(0)
    made = getattr(transformers, config)(**sizes)
    made._attn_implementation = attention
    return getattr(transformers, model)(made).eval()
