"""Healthy models of many architectures, each small enough for an audit within one second."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import transformers

Sizes = dict[str, Any]
BOTH = ("eager", "sdpa")
EAGER = ("eager",)
WINDOW = 8  # less than the sequences are long


class Tiny(NamedTuple):
    """An architecture: the classes of a model and its config, what makes it small, its attention."""

    model: str
    config: str
    sizes: Sizes
    attention: tuple[str, ...] = BOTH

    def build(self, attention: str) -> Any:
        """The model, with the weights that training would begin with."""
        torch.manual_seed(0)
        config = getattr(transformers, self.config)(**self.sizes)
        config._attn_implementation = attention
        return getattr(transformers, self.model)(config).eval()


ENDS: Sizes = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
DEEP: Sizes = {"num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 128}
TINY: Sizes = {"vocab_size": 100, "hidden_size": 32, "intermediate_size": 48, **DEEP, **ENDS}
PAD_1: Sizes = {**TINY, "pad_token_id": 1, "bos_token_id": 0}
THIN: Sizes = {**TINY, "embedding_size": 16}
GROUPED: Sizes = {**TINY, "num_key_value_heads": 2, "head_dim": 8}
NEAR: Sizes = {**GROUPED, "sliding_window": WINDOW}
MIXED: Sizes = {**NEAR, "layer_types": ["sliding_attention", "full_attention"]}
EXPERTS: Sizes = {"num_local_experts": 4, "num_experts_per_tok": 2}
MANY: Sizes = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
ROUTED: Sizes = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
SHORT: Sizes = {"vocab_size": 100, "n_embd": 32, "n_layer": 2, "n_head": 4, **ENDS}
WIDE: Sizes = {"vocab_size": 100, "d_model": 32, **ENDS}
STACK: Sizes = {"d_kv": 8, "d_ff": 48, "num_layers": 2, "num_heads": 4}
T5: Sizes = {**WIDE, **STACK, "decoder_start_token_id": 0}
PAIR: Sizes = (
    {**WIDE, "encoder_layers": 2, "decoder_layers": 2, "decoder_start_token_id": 2}
    | {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "forced_eos_token_id": None}
    | {"encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "max_position_embeddings": 128}
)
LATENT: Sizes = (
    {**TINY, **ROUTED, "num_key_value_heads": 4, "n_group": 1, "topk_group": 1}
    | {"first_k_dense_replace": 1, "q_lora_rank": 16, "kv_lora_rank": 16}
    | {"qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
)
ONE: Sizes = {**EXPERTS, "num_experts_per_tok": 1, "intermediate_size_mlp": 48}
CHUNKED: Sizes = {**GROUPED, **ONE, "attention_chunk_size": WINDOW, "no_rope_layers": [1, 0]}
LOCAL: Sizes = {"attention_types": [[["global", "local"], 1]], "window_size": WINDOW}
GPT_NEO: Sizes = {"vocab_size": 100, "hidden_size": 32, "num_layers": 2, "num_heads": 4, **LOCAL}
XGLM: Sizes = {**WIDE, "ffn_dim": 48, "num_layers": 2, "attention_heads": 4}
EVERY: Sizes = {"local_attention": WINDOW, "global_attn_every_n_layers": 2}
MODERN: Sizes = {**TINY, **EVERY, "cls_token_id": 1, "sep_token_id": 2}
DISTIL: Sizes = {"vocab_size": 100, "dim": 32, "hidden_dim": 48, "n_layers": 2, "n_heads": 4}
RELATIVE: Sizes = {**TINY, "relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
XLM: Sizes = {"vocab_size": 100, "emb_dim": 32, "n_layers": 2, "n_heads": 4, "pad_token_id": 2}
SPARSE: Sizes = {"num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1}
SWITCH: Sizes = {**T5, **SPARSE, "num_decoder_layers": 2, "num_experts": 4}
NLLB: Sizes = {**PAIR, "num_experts": 4, "encoder_sparse_step": 2, "decoder_sparse_step": 2}
MAMBA: Sizes = {"vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 8}
SECOND: Sizes = {"attn_layer_period": 2, "attn_layer_offset": 1, "mamba_d_state": 8}
JAMBA: Sizes = {**GROUPED, **SECOND, **MANY, "use_mamba_kernels": False}
DELTA: Sizes = (
    {**GROUPED, **MANY, "layer_types": ["linear_attention", "full_attention"]}
    | {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8}
    | {"linear_value_head_dim": 8, "shared_expert_intermediate_size": 16}
)
KIMI: Sizes = (
    {**GROUPED, **EXPERTS, "moe_intermediate_size": 16, "n_group": 1, "topk_group": 1}
    | {"kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8}
    | {"layer_types": ["linear_attention", "full_attention"], "num_key_value_heads": 4}
    | {"linear_head_dim": 8, "linear_num_heads": 4}
)
PAGE: Sizes = {**TINY, "max_2d_position_embeddings": 64}
LILT: Sizes = {**PAGE, "hidden_size": 24, "channel_shrink_ratio": 2}
BLOCKS: Sizes = {"num_hidden_layers": 3, "block_types": ["recurrent", "recurrent", "attention"]}
RECURRENT: Sizes = {**GROUPED, **BLOCKS, "attention_window_size": WINDOW, "lru_width": 32}

ARCHITECTURES: dict[str, Tiny] = {
    # rotary positions
    "llama": Tiny("LlamaForCausalLM", "LlamaConfig", GROUPED),
    "llama, no pad id": Tiny("LlamaModel", "LlamaConfig", {**GROUPED, "pad_token_id": None}),
    "llama, all seen": Tiny("LlamaModel", "LlamaConfig", {**GROUPED, "is_causal": False}),
    "llama for answers": Tiny("LlamaForQuestionAnswering", "LlamaConfig", GROUPED),
    "llama for tokens": Tiny("LlamaForTokenClassification", "LlamaConfig", GROUPED),
    "mistral": Tiny("MistralForCausalLM", "MistralConfig", NEAR),
    "mistral for sequences": Tiny("MistralForSequenceClassification", "MistralConfig", NEAR),
    "mistral, all seen": Tiny("MistralModel", "MistralConfig", {**NEAR, "is_causal": False}),
    "mixtral": Tiny("MixtralForCausalLM", "MixtralConfig", {**NEAR, **EXPERTS}),
    "qwen2": Tiny("Qwen2ForCausalLM", "Qwen2Config", GROUPED),
    "qwen2 sliding": Tiny(
        "Qwen2ForCausalLM",
        "Qwen2Config",
        {**NEAR, "use_sliding_window": True, "max_window_layers": 1},
    ),
    "qwen2 moe": Tiny(
        "Qwen2MoeForCausalLM",
        "Qwen2MoeConfig",
        {**GROUPED, **MANY, "shared_expert_intermediate_size": 16},
    ),
    "qwen3": Tiny("Qwen3ForCausalLM", "Qwen3Config", GROUPED),
    "qwen3 moe": Tiny("Qwen3MoeForCausalLM", "Qwen3MoeConfig", {**GROUPED, **MANY}),
    "gemma": Tiny("GemmaForCausalLM", "GemmaConfig", GROUPED),
    "gemma2": Tiny("Gemma2ForCausalLM", "Gemma2Config", NEAR, EAGER),
    "gemma3": Tiny("Gemma3ForCausalLM", "Gemma3TextConfig", MIXED),
    "gemma3, all seen": Tiny(
        "Gemma3TextModel", "Gemma3TextConfig", {**MIXED, "use_bidirectional_attention": True}
    ),
    "phi": Tiny("PhiForCausalLM", "PhiConfig", TINY),
    "phi3": Tiny("Phi3ForCausalLM", "Phi3Config", NEAR),
    "phimoe": Tiny("PhimoeForCausalLM", "PhimoeConfig", {**NEAR, **EXPERTS}),
    "stablelm": Tiny("StableLmForCausalLM", "StableLmConfig", GROUPED),
    "cohere": Tiny("CohereForCausalLM", "CohereConfig", GROUPED),
    "cohere2": Tiny("Cohere2ForCausalLM", "Cohere2Config", MIXED),
    "olmo": Tiny("OlmoForCausalLM", "OlmoConfig", GROUPED),
    "olmo2": Tiny("Olmo2ForCausalLM", "Olmo2Config", GROUPED),
    "olmo3": Tiny("Olmo3ForCausalLM", "Olmo3Config", MIXED),
    "olmoe": Tiny("OlmoeForCausalLM", "OlmoeConfig", {**GROUPED, **MANY}),
    "starcoder2": Tiny("Starcoder2ForCausalLM", "Starcoder2Config", NEAR),
    "gpt neox": Tiny("GPTNeoXForCausalLM", "GPTNeoXConfig", TINY),
    "gptj": Tiny("GPTJForCausalLM", "GPTJConfig", {**SHORT, "rotary_dim": 4}, EAGER),
    "codegen": Tiny("CodeGenForCausalLM", "CodeGenConfig", {**SHORT, "rotary_dim": 4}, EAGER),
    "persimmon": Tiny("PersimmonForCausalLM", "PersimmonConfig", TINY),
    "granite": Tiny("GraniteForCausalLM", "GraniteConfig", GROUPED),
    "granite moe": Tiny("GraniteMoeForCausalLM", "GraniteMoeConfig", {**GROUPED, **EXPERTS}),
    "helium": Tiny("HeliumForCausalLM", "HeliumConfig", GROUPED),
    "smollm3": Tiny(
        "SmolLM3ForCausalLM",
        "SmolLM3Config",
        {**NEAR, "use_sliding_window": True, "no_rope_layers": [1, 0]},
    ),
    "glm": Tiny("GlmForCausalLM", "GlmConfig", GROUPED),
    "exaone4": Tiny("Exaone4ForCausalLM", "Exaone4Config", MIXED),
    "diffllama": Tiny("DiffLlamaForCausalLM", "DiffLlamaConfig", GROUPED),
    "deepseek v3": Tiny("DeepseekV3ForCausalLM", "DeepseekV3Config", LATENT),
    "llama4": Tiny("Llama4ForCausalLM", "Llama4TextConfig", CHUNKED),
    "gpt oss": Tiny("GptOssForCausalLM", "GptOssConfig", {**MIXED, **EXPERTS}, EAGER),
    # distances added to the scores
    "bloom": Tiny("BloomForCausalLM", "BloomConfig", {**TINY, "n_layer": 2, "n_head": 4}, EAGER),
    "bloom model": Tiny("BloomModel", "BloomConfig", {**TINY, "n_layer": 2, "n_head": 4}, EAGER),
    "mpt": Tiny(
        "MptForCausalLM",
        "MptConfig",
        {**WIDE, "n_layers": 2, "n_heads": 4, "max_seq_len": 128, "use_cache": True},
        EAGER,
    ),
    "falcon": Tiny("FalconForCausalLM", "FalconConfig", TINY),
    "falcon alibi": Tiny("FalconForCausalLM", "FalconConfig", {**TINY, "alibi": True}),
    # learned positions
    "gpt": Tiny("OpenAIGPTLMHeadModel", "OpenAIGPTConfig", SHORT, EAGER),
    "gpt2": Tiny("GPT2LMHeadModel", "GPT2Config", SHORT),
    "gpt bigcode": Tiny("GPTBigCodeForCausalLM", "GPTBigCodeConfig", SHORT),
    "opt": Tiny("OPTForCausalLM", "OPTConfig", {**TINY, "ffn_dim": 48, "word_embed_proj_dim": 32}),
    "gpt neo": Tiny("GPTNeoForCausalLM", "GPTNeoConfig", {**GPT_NEO, **ENDS}, EAGER),
    "xglm": Tiny("XGLMForCausalLM", "XGLMConfig", XGLM, EAGER),
    "ctrl": Tiny("CTRLLMHeadModel", "CTRLConfig", {**SHORT, "dff": 48}, EAGER),
    "biogpt": Tiny("BioGptForCausalLM", "BioGptConfig", TINY),
    "bert decoder": Tiny("BertLMHeadModel", "BertConfig", {**TINY, "is_decoder": True}),
    # layers without attention among those with it
    "mamba": Tiny("MambaForCausalLM", "MambaConfig", {**MAMBA, **ENDS}, EAGER),
    "jamba": Tiny("JambaForCausalLM", "JambaConfig", JAMBA),
    "lfm2": Tiny("Lfm2ForCausalLM", "Lfm2Config", {**GROUPED, "full_attn_idxs": [1]}),
    "qwen3 next": Tiny("Qwen3NextForCausalLM", "Qwen3NextConfig", DELTA),
    "kimi linear": Tiny("KimiLinearForCausalLM", "KimiLinearConfig", KIMI),
    "recurrent gemma": Tiny("RecurrentGemmaForCausalLM", "RecurrentGemmaConfig", RECURRENT, EAGER),
    # encoders
    "bert": Tiny("BertForMaskedLM", "BertConfig", TINY),
    "bert model": Tiny("BertModel", "BertConfig", TINY),
    "roberta": Tiny("RobertaForMaskedLM", "RobertaConfig", PAD_1),
    "xlm roberta": Tiny("XLMRobertaForMaskedLM", "XLMRobertaConfig", PAD_1),
    "camembert": Tiny("CamembertForMaskedLM", "CamembertConfig", PAD_1),
    "electra": Tiny("ElectraForMaskedLM", "ElectraConfig", THIN),
    "ernie": Tiny("ErnieForMaskedLM", "ErnieConfig", TINY),
    "albert": Tiny("AlbertForMaskedLM", "AlbertConfig", THIN),
    "distilbert": Tiny("DistilBertForMaskedLM", "DistilBertConfig", DISTIL),
    "mpnet": Tiny("MPNetForMaskedLM", "MPNetConfig", PAD_1, EAGER),
    "roformer": Tiny("RoFormerForMaskedLM", "RoFormerConfig", THIN, EAGER),
    "esm": Tiny("EsmForMaskedLM", "EsmConfig", {**TINY, "mask_token_id": 3}),
    "deberta": Tiny("DebertaForMaskedLM", "DebertaConfig", RELATIVE, EAGER),
    "deberta v2": Tiny("DebertaV2ForMaskedLM", "DebertaV2Config", RELATIVE, EAGER),
    "modernbert": Tiny("ModernBertForMaskedLM", "ModernBertConfig", MODERN),
    "modernbert decoder": Tiny("ModernBertDecoderForCausalLM", "ModernBertDecoderConfig", MODERN),
    "nomic bert": Tiny("NomicBertForMaskedLM", "NomicBertConfig", TINY),
    "eurobert": Tiny("EuroBertForMaskedLM", "EuroBertConfig", {**GROUPED, "mask_token_id": 3}),
    "flaubert": Tiny("FlaubertWithLMHeadModel", "FlaubertConfig", XLM, EAGER),
    "xlnet": Tiny(
        "XLNetLMHeadModel", "XLNetConfig", {**WIDE, "n_layer": 2, "n_head": 4, "d_inner": 48}, EAGER
    ),
    "fnet": Tiny("FNetForMaskedLM", "FNetConfig", TINY, EAGER),
    "t5 encoder": Tiny("T5EncoderModel", "T5Config", T5),
    # encoders of words on a page
    "layoutlm": Tiny("LayoutLMForMaskedLM", "LayoutLMConfig", PAGE),
    "lilt": Tiny("LiltForTokenClassification", "LiltConfig", LILT, EAGER),
    "bros": Tiny("BrosForTokenClassification", "BrosConfig", {**TINY, "hidden_size": 64}, EAGER),
    # encoders with decoders
    "t5": Tiny("T5ForConditionalGeneration", "T5Config", T5),
    "t5 for sequences": Tiny("T5ForSequenceClassification", "T5Config", T5),
    "mt5": Tiny("MT5ForConditionalGeneration", "MT5Config", T5),
    "switch": Tiny(
        "SwitchTransformersForConditionalGeneration", "SwitchTransformersConfig", SWITCH, EAGER
    ),
    "t5gemma": Tiny(
        "T5GemmaForConditionalGeneration",
        "T5GemmaConfig",
        {"encoder": NEAR, "decoder": NEAR, "vocab_size": 100},
        EAGER,
    ),
    "bart": Tiny("BartForConditionalGeneration", "BartConfig", PAIR),
    "bart for sequences": Tiny("BartForSequenceClassification", "BartConfig", PAIR),
    "mbart": Tiny("MBartForConditionalGeneration", "MBartConfig", PAIR),
    "pegasus": Tiny("PegasusForConditionalGeneration", "PegasusConfig", PAIR),
    "marian": Tiny("MarianMTModel", "MarianConfig", PAIR),
    "blenderbot": Tiny("BlenderbotForConditionalGeneration", "BlenderbotConfig", PAIR),
    "m2m100": Tiny("M2M100ForConditionalGeneration", "M2M100Config", PAIR),
    "nllb moe": Tiny("NllbMoeForConditionalGeneration", "NllbMoeConfig", NLLB, EAGER),
}

# Reformer's layers see chunks, or what hashes choose; their calls show neither as one mask.
REFORMER: Sizes = {
    **TINY,
    "attention_head_size": 8,
    "feed_forward_size": 48,
    "num_buckets": 2,
    "hash_seed": 0,
} | {"local_attn_chunk_length": 4, "lsh_attn_chunk_length": 4, "axial_pos_embds": False}
