"""Model types of transformers that cannot run on another attention implementation, and why.

The tests compare the list with the modules of all model types of the installed release, and the sweep
(`python -m tests.integrations.sweep`) with models that run.
"""

from __future__ import annotations

from typing import Final

from maskwright.errors import Unsupported

_OWN_ATTENTION: Final = "computes its own attention and does not use the attention interface"
_ADDITIVE_MASK: Final = "adds a float mask to the scores, whatever attn_implementation is"
_OWN_TABLE: Final = "selects its attention from its own table, which has no entry for it"
_PART_WITH_OWN_TABLE: Final = (
    "has a vision encoder that selects its attention from its own table, which has no entry for it"
)
_SELECTS_KEYS: Final = (
    "selects keys in every layer, and passes them as indices to other implementations"
)
_SELECTS_BLOCKS: Final = (
    "selects blocks of keys in its layers, and passes them as indices to other implementations"
)

# The models that select their attention from a table of their own, and the modules of these tables.
OWN_TABLES: Final = {
    "bark": "bark.modeling_bark",
    "data2vec-vision": "data2vec.modeling_data2vec_vision",
    "deepseek_ocr2_sam_vision_model": "deepseek_ocr2.modeling_deepseek_ocr2",
    "falcon": "falcon.modeling_falcon",
    "git": "git.modeling_git",
    "gpt_neo": "gpt_neo.modeling_gpt_neo",
    "gptj": "gptj.modeling_gptj",
    "sam_hq_vision_model": "sam_hq.modeling_sam_hq",
    "sam_vision_model": "sam.modeling_sam",
    "superglue": "superglue.modeling_superglue",
    "unlimited_ocr_sam_vision_model": "unlimited_ocr.modeling_unlimited_ocr",
}

# Model types that cannot run on another attention, and why. A part of a model has a type of its own.
# fmt: off
UNSUPPORTED_MODELS: Final[dict[str, str]] = {
    **dict.fromkeys(
        (
            "big_bird", "blip", "blip_text_model", "bloom", "canine", "clvp_decoder",
            "clvp_encoder", "codegen", "convbert", "flava", "flava_text_model", "gpt_neox_japanese",
            "groupvit", "groupvit_text_model", "ibert", "imagegpt", "led", "longformer",
            "megatron-bert", "mpnet", "mpt", "mvp", "nystromformer", "rembert", "roformer", "tapas",
            "trocr", "vilt", "visual_bert", "xglm",
        ),
        _ADDITIVE_MASK,
    ),
    **dict.fromkeys(
        (
            "autoformer", "blip_vision_model", "bros", "clvp", "cpmant", "cvt", "dab-detr",
            "deberta", "deberta-v2", "dinat", "donut-swin", "fastspeech2_conformer",
            "fastspeech2_conformer_with_hifigan", "flaubert", "flava_image_model",
            "flava_multimodal_model", "fsmt", "funnel", "glpn", "got_ocr2_vision",
            "granite_speech_encoder", "granite_speech_plus_encoder", "grounding-dino",
            "groupvit_vision_model", "hiera", "layoutlmv2", "layoutlmv3", "levit", "lilt", "luke",
            "lxmert", "mask2former", "maskformer-swin", "mgp-str", "mm-grounding-dino", "mobilevit",
            "mobilevitv2", "mra", "omdet-turbo", "oneformer", "openai-gpt", "perceiver",
            "prophetnet", "pvt", "pvt_v2", "reformer", "rwkv", "seggpt", "sew-d", "slanet",
            "slanext", "slanext_vision", "speecht5", "squeezebert", "swiftformer", "swin2sr",
            "swinv2", "table-transformer", "timesformer", "tvp", "vitdet", "vits", "wavlm", "xlm",
            "xlnet", "yoso", "zoedepth",
        ),
        _OWN_ATTENTION,
    ),
    **dict.fromkeys(OWN_TABLES, _OWN_TABLE),
    **dict.fromkeys(
        ("deepseek_ocr2", "deepseek_vl_hybrid", "sam", "sam_hq", "unlimited_ocr"),
        _PART_WITH_OWN_TABLE,
    ),
    **dict.fromkeys(
        (
            "axk2", "deepseek_v32", "glm_moe_dsa", "hy_v4", "mistral_large4", "mistral_large4_text",
        ),
        _SELECTS_KEYS,
    ),
    **dict.fromkeys(
        (
            "minimax_m3_vl", "minimax_m3_vl_text",
        ),
        _SELECTS_BLOCKS,
    ),
    "bridgetower": "marks layers of its images as causal, but only eager attends to all keys",
    "deepseek_v4": "appends the bias of compressed keys to its mask as numbers",
}
# fmt: on


def unsupported_model(model_type: str) -> Unsupported:
    """The error for a model type of `UNSUPPORTED_MODELS`.

    >>> unsupported_model("bloom")
    Unsupported('attn_implementation="maskwright": bloom adds a float mask to the scores, whatever \
attn_implementation is. Load the model with attn_implementation="eager".')
    """
    reason = UNSUPPORTED_MODELS.get(model_type, _OWN_TABLE)
    return Unsupported(
        f'attn_implementation="maskwright": {model_type} {reason}. '
        'Load the model with attn_implementation="eager".'
    )
