"""The list of unsupported transformers models, and a sample of the sweep over all model types."""

from __future__ import annotations

import pytest
from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from maskwright.integrations.transformers import UNSUPPORTED_MODELS
from tests._helpers.sampling import subset_of_cases
from tests.integrations.sweep import BUGS, own_attention, run_limited

# Families of modules with their own attention layers that run all the same
DELEGATING = {
    "fastspeech2_conformer_hifigan": "has no attention",
    "flava_image_codebook": "has no attention",
    "got_ocr2": "its language model is a family of its own",
    "granite_speech": "its language model is a family of its own",
    "granite_speech_plus": "its language model is a family of its own",
    "shieldgemma2": "its model is a family of its own",
    "speecht5_hifigan": "has no attention",
}
RUN = (
    *("llama", "cohere2", "opt", "deepseek_v3", "bert", "bart", "whisper", "t5gemma2"),
    *("lasr_encoder", "clip", "llava", "blip_2_qformer"),
)
REFUSED = ("bloom", "falcon", "led", "visual_bert", "deepseek_v32", "minimax_m3_vl_text", "git")
REFUSED += ("bridgetower", "deepseek_v4", "sam_vision_model")


def test_models_with_their_own_attention_are_listed() -> None:
    families = set(own_attention())
    assert len(families) > 100
    assert families - UNSUPPORTED_MODELS.keys() == DELEGATING.keys()


def test_listed_models_are_model_types() -> None:
    assert UNSUPPORTED_MODELS.keys() <= CONFIG_MAPPING_NAMES.keys()


@pytest.mark.parametrize("family", RUN)
def test_family_equals_eager(family: str) -> None:
    results = run_limited(family, 120.0)
    assert not [result for result in results if result.result in (*BUGS, "refused", "not used")]
    equal = {result.check for result in results if result.result == "equal"}
    assert {"forward", "gradient"} <= equal, results


@pytest.mark.parametrize("family", subset_of_cases([*REFUSED], 3))
def test_family_is_refused_in_one_sentence(family: str) -> None:
    results = run_limited(family, 120.0)
    refused = [result for result in results if result.result == "refused"]
    assert refused, results
    assert not [result for result in results if result.result in BUGS]
    assert family in UNSUPPORTED_MODELS
    assert all('attn_implementation="eager"' in result.reason for result in refused)
