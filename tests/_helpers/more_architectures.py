"""More architectures of transformers, from one table of sizes, and models of speech and images."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import transformers
from torch import nn

import maskwright as mw
from tests._helpers.tiny_architectures import BOTH, EAGER, Sizes

LENGTH = 24
SIZES: Sizes = {
    # of all models; a config takes those that it has
    "vocab_size": 100,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 2,
    "forced_eos_token_id": None,
    "dropout": 0.0,
    "hidden_size": 32,
    "d_model": 32,
    "n_embd": 32,
    "emb_dim": 32,
    "dim": 32,
    "embedding_size": 16,
    "input_embedding_size": 16,
    "output_embedding_size": 16,
    "intermediate_size": 48,
    "d_ff": 48,
    "n_inner": 48,
    "ffn_dim": 48,
    "ffn_hidden_size": 48,
    "encoder_ffn_dim": 48,
    "decoder_ffn_dim": 48,
    "d_inner": 48,
    "num_hidden_layers": 2,
    "num_layers": 2,
    "n_layer": 2,
    "n_layers": 2,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "num_decoder_layers": 2,
    "num_encoder_layers": 2,
    "num_attention_heads": 4,
    "num_heads": 4,
    "n_head": 4,
    "n_heads": 4,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "num_key_value_heads": 2,
    "num_encoder_attention_heads": 4,
    "num_decoder_attention_heads": 4,
    "head_dim": 8,
    "d_kv": 8,
    "kv_channels": 8,
    "type_vocab_size": 2,
    "max_position_embeddings": 128,
    "n_positions": 128,
    "sliding_window": 8,
    "max_encoder_position_embeddings": 128,
    "max_decoder_position_embeddings": 128,
    "attention_window": 8,
    "local_radius": 3,
    "block_size": 8,
    # experts
    "num_local_experts": 4,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_num_experts": 4,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
    "moe_k": 2,
    "moe_topk": 2,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "n_shared_experts": 1,
    "shared_intermediate_size": 16,
    "expert_ffn_hidden_size": 16,
    # latent attention, states and linear attention
    "q_lora_rank": 16,
    "kv_lora_rank": 16,
    "qk_rope_head_dim": 8,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "index_head_dim": 8,
    "index_n_heads": 16,
    "index_topk": 6,
    "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_d_state": 8,
    "mamba_n_groups": 1,
    "mamba_expand": 2,
    "state_size": 8,
    "mamba_d_ssm": 64,
    "num_linear_heads": 4,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    # images and speech
    "image_size": 8,
    "patch_size": 4,
    "num_channels": 3,
    "projection_dim": 16,
    "num_mel_bins": 12,
    "feature_projection_input_dim": 12,
    "input_feat_per_channel": 12,
}


class Sized(NamedTuple):
    """An architecture: the classes of a model and its config, other sizes, its attention."""

    model: str
    config: str
    other: Sizes = {}  # noqa: RUF012 - not changed
    attention: tuple[str, ...] = BOTH

    def sizes(self) -> Sizes:
        """The sizes that the config has."""
        known = {*getattr(transformers, self.config)().to_dict()}
        return {name: size for name, size in SIZES.items() if name in known} | self.other

    def build(self, attention: str) -> Any:
        """The model, with the weights that training would begin with."""
        torch.manual_seed(0)
        config = getattr(transformers, self.config)(**self.sizes())
        config._attn_implementation = attention
        return getattr(transformers, self.model)(config).eval()


# Models in these tables for which the audit has findings, and why these are right
EXCEPTIONS: dict[str, str] = {
    "wav2vec2 conformer": "convolutions over hidden states include padding: frames depend on its amount",
    "data2vec audio": "the stack of positional convolutions includes padding from its second layer on",
    "cpmant": "its attention_mask is a dummy argument: padding is visible",
    "vit mae": "patches are shuffled at random, also with mask_ratio=0",
}

DECODER: Sizes = {"is_decoder": True}
LATENT: Sizes = {"num_key_value_heads": 4, "head_dim": 8}
HYBRID: Sizes = {"layer_types": ["linear_attention", "full_attention"]}

MORE: dict[str, Sized] = {
    # decoders
    "afmoe": Sized("AfmoeForCausalLM", "AfmoeConfig"),
    "apertus": Sized("ApertusForCausalLM", "ApertusConfig"),
    "arcee": Sized("ArceeForCausalLM", "ArceeConfig"),
    "aria text": Sized("AriaTextForCausalLM", "AriaTextConfig"),
    "beam": Sized("BeamForCausalLM", "BeamConfig"),
    "bigbird pegasus": Sized("BigBirdPegasusForCausalLM", "BigBirdPegasusConfig", attention=EAGER),
    "bitnet": Sized("BitNetForCausalLM", "BitNetConfig"),
    "blenderbot small": Sized("BlenderbotSmallForCausalLM", "BlenderbotSmallConfig"),
    "cohere2 moe": Sized("Cohere2MoeForCausalLM", "Cohere2MoeConfig"),
    "cwm": Sized("CwmForCausalLM", "CwmConfig"),
    "doge": Sized("DogeForCausalLM", "DogeConfig"),
    "dots1": Sized("Dots1ForCausalLM", "Dots1Config"),
    "emu3": Sized("Emu3ForCausalLM", "Emu3TextConfig"),
    "ernie4 5": Sized("Ernie4_5ForCausalLM", "Ernie4_5Config"),
    "ernie4 5 moe": Sized("Ernie4_5_MoeForCausalLM", "Ernie4_5_MoeConfig"),
    "exaone moe": Sized("ExaoneMoeForCausalLM", "ExaoneMoeConfig"),
    "falcon h1": Sized("FalconH1ForCausalLM", "FalconH1Config"),
    "falcon mamba": Sized("FalconMambaForCausalLM", "FalconMambaConfig", attention=EAGER),
    "flex olmo": Sized("FlexOlmoForCausalLM", "FlexOlmoConfig"),
    "flint": Sized("FlintForCausalLM", "FlintConfig", attention=EAGER),
    "gemma4 unified text": Sized("Gemma4UnifiedForCausalLM", "Gemma4UnifiedTextConfig"),
    "glm4": Sized("Glm4ForCausalLM", "Glm4Config"),
    "glm4 moe": Sized("Glm4MoeForCausalLM", "Glm4MoeConfig"),
    "gpt neox japanese": Sized(
        "GPTNeoXJapaneseForCausalLM", "GPTNeoXJapaneseConfig", attention=EAGER
    ),
    "granite swa": Sized("GraniteSWAForCausalLM", "GraniteSWAConfig", attention=EAGER),
    "granitemoe swa": Sized("GraniteMoeSWAForCausalLM", "GraniteMoeSWAConfig", attention=EAGER),
    "granitemoeshared": Sized("GraniteMoeSharedForCausalLM", "GraniteMoeSharedConfig"),
    "hrm text": Sized("HrmTextForCausalLM", "HrmTextConfig"),
    "hunyuan v1 dense": Sized("HunYuanDenseV1ForCausalLM", "HunYuanDenseV1Config"),
    "hunyuan v1 moe": Sized("HunYuanMoEV1ForCausalLM", "HunYuanMoEV1Config"),
    "hy v3": Sized("HYV3ForCausalLM", "HYV3Config"),
    "hyperclovax": Sized("HyperCLOVAXForCausalLM", "HyperCLOVAXConfig"),
    "inkling text": Sized("InklingForCausalLM", "InklingTextConfig"),
    "jais2": Sized("Jais2ForCausalLM", "Jais2Config"),
    "jetmoe": Sized("JetMoeForCausalLM", "JetMoeConfig"),
    "kolibri1": Sized("Kolibri1ForCausalLM", "Kolibri1Config"),
    "laguna": Sized("LagunaForCausalLM", "LagunaConfig"),
    "llama4": Sized("Llama4ForCausalLM", "Llama4TextConfig"),
    "mellum": Sized("MellumForCausalLM", "MellumConfig"),
    "mimo v2 flash": Sized("MiMoV2FlashForCausalLM", "MiMoV2FlashConfig", attention=EAGER),
    "minimax m2": Sized("MiniMaxM2ForCausalLM", "MiniMaxM2Config"),
    "minimax m3 vl text": Sized("MiniMaxM3VLForCausalLM", "MiniMaxM3VLTextConfig"),
    "ministral": Sized("MinistralForCausalLM", "MinistralConfig"),
    "ministral3": Sized("Ministral3ForCausalLM", "Ministral3Config"),
    "mllama": Sized("MllamaForCausalLM", "MllamaTextConfig"),
    "mvp": Sized("MvpForCausalLM", "MvpConfig", attention=EAGER),
    "nanochat": Sized("NanoChatForCausalLM", "NanoChatConfig"),
    "nemotron": Sized("NemotronForCausalLM", "NemotronConfig"),
    "nemotron h": Sized(
        "NemotronHForCausalLM",
        "NemotronHConfig",
        {"mamba_num_heads": 4, "mamba_head_dim": 16, "n_groups": 1, "ssm_state_size": 8}
        | {
            "chunk_size": 16,
            "moe_intermediate_size": 32,
            "moe_shared_expert_intermediate_size": 32,
        },
    ),
    "olmo hybrid": Sized("OlmoHybridForCausalLM", "OlmoHybridConfig"),
    "plbart": Sized("PLBartForCausalLM", "PLBartConfig"),
    "seed oss": Sized("SeedOssForCausalLM", "SeedOssConfig"),
    "solar open": Sized("SolarOpenForCausalLM", "SolarOpenConfig"),
    "trocr": Sized("TrOCRForCausalLM", "TrOCRConfig", attention=EAGER),
    "vaultgemma": Sized("VaultGemmaForCausalLM", "VaultGemmaConfig", attention=EAGER),
    "whisper": Sized("WhisperForCausalLM", "WhisperConfig"),
    "xlm": Sized("XLMWithLMHeadModel", "XLMConfig", attention=EAGER),
    "axk1": Sized("AXK1ForCausalLM", "AXK1Config", LATENT),
    "axk2": Sized("AXK2ForCausalLM", "AXK2Config", LATENT),
    "deepseek v2": Sized("DeepseekV2ForCausalLM", "DeepseekV2Config", LATENT),
    "deepseek v3.2": Sized("DeepseekV32ForCausalLM", "DeepseekV32Config", LATENT),
    "glm4 moe lite": Sized("Glm4MoeLiteForCausalLM", "Glm4MoeLiteConfig", LATENT),
    "glm moe dsa": Sized("GlmMoeDsaForCausalLM", "GlmMoeDsaConfig", LATENT),
    "longcat flash": Sized("LongcatFlashForCausalLM", "LongcatFlashConfig", LATENT),
    "minicpm3": Sized("MiniCPM3ForCausalLM", "MiniCPM3Config", LATENT),
    "youtu": Sized("YoutuForCausalLM", "YoutuConfig", LATENT),
    "qwen3.5": Sized("Qwen3_5ForCausalLM", "Qwen3_5TextConfig", HYBRID),
    "qwen3.5 moe": Sized("Qwen3_5MoeForCausalLM", "Qwen3_5MoeTextConfig", HYBRID),
    "bert generation": Sized("BertGenerationDecoder", "BertGenerationConfig", DECODER),
    "data2vec text": Sized("Data2VecTextForCausalLM", "Data2VecTextConfig", DECODER),
    "megatron bert decoder": Sized("MegatronBertForCausalLM", "MegatronBertConfig", DECODER, EAGER),
    "rembert decoder": Sized("RemBertForCausalLM", "RemBertConfig", DECODER, EAGER),
    "roberta prelayernorm decoder": Sized(
        "RobertaPreLayerNormForCausalLM", "RobertaPreLayerNormConfig", DECODER
    ),
    "xlm roberta xl decoder": Sized("XLMRobertaXLForCausalLM", "XLMRobertaXLConfig", DECODER),
    "big bird decoder": Sized(
        "BigBirdForCausalLM", "BigBirdConfig", {**DECODER, "attention_type": "original_full"}, EAGER
    ),
    "lfm2 moe": Sized(
        "Lfm2MoeForCausalLM", "Lfm2MoeConfig", {"layer_types": ["conv", "full_attention"]}
    ),
    "granite moe hybrid": Sized(
        "GraniteMoeHybridForCausalLM",
        "GraniteMoeHybridConfig",
        {"layer_types": ["mamba", "attention"]},
    ),
    "mamba2": Sized(
        "Mamba2ForCausalLM", "Mamba2Config", {"num_heads": 8, "head_dim": 8, "n_groups": 1}, EAGER
    ),
    "zamba2": Sized(
        "Zamba2ForCausalLM",
        "Zamba2Config",
        {
            "layers_block_type": ["mamba", "hybrid"],
            "n_mamba_heads": 8,
            "mamba_headdim": 8,
            "mamba_ngroups": 1,
        },
    ),
    "gemma4 text": Sized(
        "Gemma4ForCausalLM",
        "Gemma4TextConfig",
        {"vocab_size_per_layer_input": 100, "hidden_size_per_layer_input": 8},
    ),
    "cpmant": Sized(
        "CpmAntForCausalLM",
        "CpmAntConfig",
        {
            "dim_head": 8,
            "dim_ff": 48,
            "prompt_length": 4,
            "prompt_types": 4,
            "position_bias_max_distance": 64,
        },
        EAGER,
    ),
    # encoders
    "big bird": Sized(
        "BigBirdForMaskedLM", "BigBirdConfig", {"attention_type": "original_full"}, EAGER
    ),
    "data2vec text encoder": Sized("Data2VecTextForMaskedLM", "Data2VecTextConfig"),
    "esmc": Sized("EsmcForMaskedLM", "EsmcConfig", {"num_key_value_heads": 4}),
    "gte": Sized("GteForMaskedLM", "GteConfig"),
    "ibert": Sized("IBertForMaskedLM", "IBertConfig", attention=EAGER),
    "jina embeddings v3": Sized("JinaEmbeddingsV3ForMaskedLM", "JinaEmbeddingsV3Config"),
    "longformer": Sized(
        "LongformerForMaskedLM", "LongformerConfig", {"attention_window": 4}, EAGER
    ),
    "luke": Sized(
        "LukeForMaskedLM", "LukeConfig", {"entity_vocab_size": 20, "entity_emb_size": 8}, EAGER
    ),
    "megatron bert": Sized("MegatronBertForMaskedLM", "MegatronBertConfig", attention=EAGER),
    "rembert": Sized("RemBertForMaskedLM", "RemBertConfig", attention=EAGER),
    "roberta prelayernorm": Sized("RobertaPreLayerNormForMaskedLM", "RobertaPreLayerNormConfig"),
    "squeezebert": Sized(
        "SqueezeBertForMaskedLM", "SqueezeBertConfig", {"embedding_size": 32}, EAGER
    ),
    "tapas": Sized(
        "TapasForMaskedLM", "TapasConfig", {"type_vocab_sizes": [3, 8, 8, 2, 8, 8, 4]}, EAGER
    ),
    "xlm roberta xl": Sized("XLMRobertaXLForMaskedLM", "XLMRobertaXLConfig"),
    "mra": Sized("MraForMaskedLM", "MraConfig", attention=EAGER),
    "xlm encoder": Sized("XLMModel", "XLMConfig", attention=EAGER),
    "splinter": Sized("SplinterModel", "SplinterConfig", attention=EAGER),
    "dpr": Sized("DPRContextEncoder", "DPRConfig", attention=EAGER),
    "visual bert": Sized("VisualBertModel", "VisualBertConfig", attention=EAGER),
    # text encoders of image and audio models
    "clip text": Sized("CLIPTextModel", "CLIPTextConfig"),
    "siglip text": Sized("SiglipTextModel", "SiglipTextConfig"),
    "siglip2 text": Sized("Siglip2TextModel", "Siglip2TextConfig"),
    "chinese clip text": Sized("ChineseCLIPTextModel", "ChineseCLIPTextConfig"),
    "clap text": Sized("ClapTextModel", "ClapTextConfig", attention=EAGER),
    "blip text": Sized(
        "BlipTextModel", "BlipTextConfig", {"encoder_hidden_size": 32, "is_decoder": False}, EAGER
    ),
    "groupvit text": Sized("GroupViTTextModel", "GroupViTTextConfig", attention=EAGER),
    "owlvit text": Sized("OwlViTTextModel", "OwlViTTextConfig", attention=EAGER),
    "owlv2 text": Sized("Owlv2TextModel", "Owlv2TextConfig", attention=EAGER),
    "xclip text": Sized("XCLIPTextModel", "XCLIPTextConfig"),
    "flava text": Sized("FlavaTextModel", "FlavaTextConfig", attention=EAGER),
    "aimv2 text": Sized("Aimv2TextModel", "Aimv2TextConfig", attention=EAGER),
    "metaclip2 text": Sized("MetaClip2TextModel", "MetaClip2TextConfig"),
    # encoders with decoders
    "blenderbot small seq2seq": Sized(
        "BlenderbotSmallForConditionalGeneration", "BlenderbotSmallConfig"
    ),
    "mvp seq2seq": Sized("MvpForConditionalGeneration", "MvpConfig", attention=EAGER),
    "plbart seq2seq": Sized("PLBartForConditionalGeneration", "PLBartConfig"),
    "pegasus x": Sized(
        "PegasusXForConditionalGeneration",
        "PegasusXConfig",
        {"block_size": 8, "num_global_tokens": 4},
        EAGER,
    ),
    "led": Sized("LEDForConditionalGeneration", "LEDConfig", {"attention_window": 4}, EAGER),
    "umt5": Sized("UMT5ForConditionalGeneration", "UMT5Config", attention=EAGER),
    "bigbird pegasus seq2seq": Sized(
        "BigBirdPegasusForConditionalGeneration",
        "BigBirdPegasusConfig",
        {"attention_type": "original_full"},
        EAGER,
    ),
}


# ── speech and images ─────────────────────────────────────────────────────────────────────────


class Part(nn.Module):
    """The encoder of a speech model, of hidden states and a padding mask."""

    def __init__(self, encoder: nn.Module) -> None:
        super().__init__()
        self.encoder = encoder

    def forward(self, hidden_states: torch.Tensor, attention_mask: torch.Tensor) -> torch.Tensor:
        """The first output."""
        return self.encoder(hidden_states, attention_mask=attention_mask.bool())[0]


def features(width: int) -> dict[str, torch.Tensor]:
    """Two sequences of features, the second one padded."""
    generator = torch.Generator().manual_seed(0)
    keep = torch.ones(2, LENGTH, dtype=torch.long)
    keep[1, -7:] = 0
    return {
        "hidden_states": torch.randn(2, LENGTH, width, generator=generator),
        "attention_mask": keep,
    }


def pixels(size: int = 8) -> dict[str, torch.Tensor]:
    """Two images."""
    generator = torch.Generator().manual_seed(0)
    return {"pixel_values": torch.randn(2, 3, size, size, generator=generator)}


class Floats(NamedTuple):
    """A model of floats: its name, its inputs, what is expected, and how to build it."""

    sized: Sized
    inputs: dict[str, torch.Tensor]
    expects: Any
    encoder: str = ""  # the part that is audited

    def build(self, attention: str) -> nn.Module:
        """The model, or its encoder."""
        model = self.sized.build(attention)
        return Part(model.get_submodule(self.encoder)).eval() if self.encoder else model


PADDED = mw.padding(lengths=[LENGTH, LENGTH - 7])
CONV: Sizes = {
    "conv_dim": (8, 8),
    "conv_stride": (5, 2),
    "conv_kernel": (10, 3),
    "num_feat_extract_layers": 2,
}
CONV |= {"num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2, "layerdrop": 0.0}


def speech(
    model: str, config: str, other: Sizes = CONV, attention: tuple[str, ...] = BOTH
) -> Floats:
    """The encoder of a speech model."""
    return Floats(Sized(model, config, other, attention), features(32), PADDED, "encoder")


def image(
    model: str, config: str, other: Sizes | None = None, attention: tuple[str, ...] = BOTH
) -> Floats:
    """A model of images: its outputs may depend on every channel of their image, and on no other image."""
    sized = Sized(model, config, other or {}, attention)
    return Floats(sized, pixels(), {"pixel_values": mw.everything()})


FLOATS: dict[str, Floats] = {
    "wav2vec2": speech("Wav2Vec2Model", "Wav2Vec2Config"),
    "hubert": speech("HubertModel", "HubertConfig"),
    "unispeech": speech("UniSpeechModel", "UniSpeechConfig"),
    "unispeech sat": speech("UniSpeechSatModel", "UniSpeechSatConfig"),
    "wavlm": speech("WavLMModel", "WavLMConfig", attention=EAGER),
    "wav2vec2 conformer": speech(
        "Wav2Vec2ConformerModel", "Wav2Vec2ConformerConfig", attention=EAGER
    ),
    "data2vec audio": speech(
        "Data2VecAudioModel",
        "Data2VecAudioConfig",
        {**CONV, "num_conv_pos_embeddings": 3, "conv_pos_kernel_size": 5},
    ),
    "wav2vec2 bert": speech("Wav2Vec2BertModel", "Wav2Vec2BertConfig", attention=EAGER),
    "vit": image("ViTModel", "ViTConfig"),
    "deit": image("DeiTModel", "DeiTConfig"),
    "beit": image("BeitModel", "BeitConfig"),
    "dinov2": image("Dinov2Model", "Dinov2Config"),
    "dinov2 with registers": image("Dinov2WithRegistersModel", "Dinov2WithRegistersConfig"),
    "dinov3 vit": image("DINOv3ViTModel", "DINOv3ViTConfig"),
    "clip vision": image("CLIPVisionModel", "CLIPVisionConfig"),
    "siglip vision": image("SiglipVisionModel", "SiglipVisionConfig"),
    "ijepa": image("IJepaModel", "IJepaConfig"),
    "vit msn": image("ViTMSNModel", "ViTMSNConfig"),
    "data2vec vision": image("Data2VecVisionModel", "Data2VecVisionConfig"),
    "aimv2 vision": image("Aimv2VisionModel", "Aimv2VisionConfig"),
    "chinese clip vision": image("ChineseCLIPVisionModel", "ChineseCLIPVisionConfig"),
    "metaclip2 vision": image("MetaClip2VisionModel", "MetaClip2VisionConfig"),
    "mlcd": image("MLCDVisionModel", "MLCDVisionConfig"),
    "yolos": image("YolosModel", "YolosConfig", {"image_size": [8, 8], "num_detection_tokens": 3}),
    "vit mae": image("ViTMAEModel", "ViTMAEConfig", {"mask_ratio": 0.0}),
}
