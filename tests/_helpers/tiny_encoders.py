"""Models with inputs other than text that pass softcap or position_bias to the attention interface."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import transformers
from transformers.models.seamless_m4t.modeling_seamless_m4t import SeamlessM4TSpeechEncoder
from transformers.models.seamless_m4t_v2.modeling_seamless_m4t_v2 import SeamlessM4Tv2SpeechEncoder

from tests._helpers.tiny_models import RELATIVE, VOCABULARY

LAYERS = {"num_hidden_layers": 2, "num_attention_heads": 4}
SIZES = {"hidden_size": 32, "intermediate_size": 48, **LAYERS}
STACK = {"hidden_size": 32, "d_kv": 8, "d_ff": 48}
SOUND = {"conv_depthwise_kernel_size": 3, "mask_time_prob": 0.0}
CONV = (
    {"conv_dim": (16,), "conv_stride": (5,), "conv_kernel": (10,)}
    | {"num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
    | {"position_embeddings_type": "relative"}
)
REACH = {"left_max_position_embeddings": 8, "right_max_position_embeddings": 4}
KEYED = {"feature_projection_input_dim": 16, "position_embeddings_type": "relative_key", **REACH}
SPEECH = (
    {"hidden_size": 32, "feature_projection_input_dim": 16, "speech_encoder_layers": 2}
    | {"speech_encoder_attention_heads": 4, "speech_encoder_intermediate_size": 48}
    | {"conv_depthwise_kernel_size": 3, "num_adapter_layers": 1}
)
FRAMES = (
    {"image_size": 32, "patch_size": 16, "num_frames": 2, "tubelet_size": [1, 16, 16]}
    | {"num_spatial_layers": 1, "num_temporal_layers": 1, "num_auxiliary_layers": 1}
    | {"attn_logit_softcapping": 2.0}
)
PATCHES = {
    "text_config": {**STACK, "vocab_size": VOCABULARY, "num_layers": 2, "num_heads": 4},
    "vision_config": {**STACK, **LAYERS, "patch_embed_hidden_size": 12, "seq_len": 16},
}
PAGE = {"image_size": 32, "patch_size": 16, "max_2d_position_embeddings": 64}


class TinyEncoder(NamedTuple):
    """A model with a small config and its inputs."""

    name: str  # its model type
    model: Any
    config: Any
    sizes: dict[str, Any]
    inputs: dict[str, torch.Tensor]

    def build(self) -> Any:
        torch.manual_seed(0)
        return self.model(self.config(**self.sizes)).eval()


def numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1))


def ids(length: int) -> torch.Tensor:
    return torch.randint(3, 38, (2, length), generator=torch.Generator().manual_seed(1))


def patches() -> torch.Tensor:
    """12 patches of 12 numbers, each after its row and column."""
    n = torch.arange(12.0)[:, None]
    return torch.cat([n // 4 + 1, n % 4 + 1, numbers(12, 12)], dim=1).expand(2, -1, -1)


ENCODERS = (
    TinyEncoder(
        "wav2vec2-conformer",
        transformers.Wav2Vec2ConformerModel,
        transformers.Wav2Vec2ConformerConfig,
        {**SIZES, **SOUND, **CONV},
        {"input_values": numbers(2, 100)},
    ),
    TinyEncoder(
        "wav2vec2-bert",
        transformers.Wav2Vec2BertModel,
        transformers.Wav2Vec2BertConfig,
        {**SIZES, **SOUND, **KEYED},
        {"input_features": numbers(2, 20, 16)},
    ),
    TinyEncoder(
        "seamless_m4t",
        SeamlessM4TSpeechEncoder,
        transformers.SeamlessM4TConfig,
        SPEECH,
        {"input_features": numbers(2, 20, 16)},
    ),
    TinyEncoder(
        "seamless_m4t_v2",
        SeamlessM4Tv2SpeechEncoder,
        transformers.SeamlessM4Tv2Config,
        {**SPEECH, **REACH},
        {"input_features": numbers(2, 70, 16)},  # its own mask tensor is read from 64 rows on
    ),
    TinyEncoder(
        "videoprism",
        transformers.VideoPrismVisionModel,
        transformers.VideoPrismVisionConfig,
        {**SIZES, **FRAMES},
        {"pixel_values_videos": numbers(1, 2, 3, 32, 32)},
    ),
    TinyEncoder(
        "pix2struct",
        transformers.Pix2StructForConditionalGeneration,
        transformers.Pix2StructConfig,
        PATCHES,
        {"flattened_patches": patches(), "decoder_input_ids": ids(9)},
    ),
    TinyEncoder(
        "pop2piano",
        transformers.Pop2PianoForConditionalGeneration,
        transformers.Pop2PianoConfig,
        RELATIVE,
        {"inputs_embeds": numbers(2, 12, 32), "decoder_input_ids": ids(9)},
    ),
    TinyEncoder(
        "udop",
        transformers.UdopForConditionalGeneration,
        transformers.UdopConfig,
        {**RELATIVE, **PAGE},
        {
            "input_ids": ids(12),
            "bbox": numbers(2, 12, 4).sigmoid(),
            "decoder_input_ids": ids(9).flip(0),
        },
    ),
)
