"""The list of unsupported transformers models, and a sample of the sweep over all model types."""

from __future__ import annotations

import json

from transformers.models.auto.configuration_auto import CONFIG_MAPPING_NAMES

from maskwright.integrations.transformers import UNSUPPORTED_MODELS
from tests._helpers.run_python import run_python
from tests._helpers.sampling import subset_of_cases
from tests.integrations.sweep import BUGS, Result, own_attention

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


def swept(*names: str) -> dict[str, list[Result]]:
    """The results of these families, in a process that may fork."""
    done = run_python("from tests.integrations.sweep import main; main()", *names)
    assert done.stdout, done.stderr
    results = [Result(**json.loads(line)) for line in done.stdout.splitlines()]
    by_family = {name: [x for x in results if x.family == name] for name in names}
    assert all(by_family.values()), done.stderr
    assert not [result for result in results if result.result in BUGS]
    return by_family


def test_families_equal_eager() -> None:
    for results in swept(*RUN).values():
        assert not [result for result in results if result.result in ("refused", "not used")]
        equal = {result.check for result in results if result.result == "equal"}
        assert {"forward", "gradient"} <= equal, results


def test_families_are_refused_in_one_sentence() -> None:
    for family, results in swept(*subset_of_cases([*REFUSED], 3)).items():
        refused = [result for result in results if result.result == "refused"]
        assert refused, results
        assert family in UNSUPPORTED_MODELS
        assert all('attn_implementation="eager"' in result.reason for result in refused)
