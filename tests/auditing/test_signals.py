"""Speech and images: audits of models whose inputs are signals, healthy and with planted faults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch

import maskwright as mw
from tests._helpers.more_architectures import CONV, FLOATS, Sized

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

MAIN = ("leak", "reach", "padding", "batch", "steps")


def whisper(attention: str) -> tuple[Any, dict[str, torch.Tensor]]:
    """Whisper: features (batch, mel bins, frames), and the ids of the decoder."""
    sizes = {"max_source_positions": 15, "max_target_positions": 64, "encoder_layers": 2}
    sizes |= {"decoder_layers": 2, "encoder_attention_heads": 4, "decoder_attention_heads": 4}
    sizes |= {"encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "d_model": 32, "vocab_size": 100}
    ids = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    model = Sized("WhisperForConditionalGeneration", "WhisperConfig", sizes | ids).build(attention)
    source = torch.Generator().manual_seed(0)
    features = torch.randn(2, model.config.num_mel_bins, 30, generator=source)
    given = torch.randint(3, 100, (2, 12), generator=source)
    return model, {"input_features": features, "decoder_input_ids": given}


def wav2vec2(attention: str) -> tuple[Any, dict[str, torch.Tensor]]:
    """Wav2Vec2 with its convolutions: samples (batch, samples), without padding."""
    model = Sized("Wav2Vec2Model", "Wav2Vec2Config", CONV).build(attention)
    return model, {"input_values": torch.randn(2, 400, generator=torch.Generator().manual_seed(0))}


def add_other_sequences(module: nn.Module) -> None:
    """Plants a fault: the output of a module contains a part of the other sequences."""

    def mix(_: Any, __: Any, out: Any) -> Any:
        first = out if isinstance(out, torch.Tensor) else out[0]
        mixed = first + 0.1 * first.flip(0)
        return mixed if isinstance(out, torch.Tensor) else (mixed, *out[1:])

    module.register_forward_hook(mix)


@pytest.mark.parametrize("attention", ["eager", "sdpa"])
def test_whisper_is_ok(attention: str) -> None:
    model, inputs = whisper(attention)
    report = mw.audit(model, inputs, expects="auto", probes=MAIN)
    assert report.ok, report
    assert {r.probe for r in report.answers if r.status.value == "passed"} >= {"leak", "steps"}


def test_whisper_without_causal_mask_is_found() -> None:
    model, inputs = whisper("eager")
    for layer in model.model.decoder.layers:
        right = layer.self_attn.forward
        layer.self_attn.forward = lambda *args, right=right, **given: right(
            *args, **{**given, "attention_mask": None}
        )
    report = mw.audit(model, inputs, expects="auto", probes="leak")
    assert report.cause == "future-visible", report


def test_samples_of_wav2vec2() -> None:
    model, inputs = wav2vec2("sdpa")
    expects = {"input_values": mw.everything()}
    report = mw.audit(model, inputs, expects=expects, probes=("batch",))
    assert report.ok, report
    add_other_sequences(model.encoder.layers[1])
    report = mw.audit(model, inputs, expects=expects, probes=("batch",))
    assert report.cause == "mixes-sequences", report


@pytest.mark.parametrize("name", ["vit", "clip vision"])
def test_images_that_depend_on_others_are_found(name: str) -> None:
    one = FLOATS[name]
    assert mw.audit(one.build("sdpa"), one.inputs, expects=one.expects, probes=("batch",)).ok
    model = one.build("sdpa")
    layers = [
        part for path, part in model.named_modules() if path.endswith(("layers.0", "layer.0"))
    ]
    add_other_sequences(layers[0])
    report = mw.audit(model, one.inputs, expects=one.expects, probes=("batch",))
    assert {finding.probe for finding in report.findings} == {"batch"}, report


def clip() -> tuple[Any, dict[str, torch.Tensor], Callable[[Any], torch.Tensor]]:
    """CLIP: ids and images; the audited output is that of the text model."""
    import transformers

    torch.manual_seed(0)
    both = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    both |= {"num_attention_heads": 4, "projection_dim": 16}
    reading = {**both, "vocab_size": 100, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    config = transformers.CLIPConfig(
        text_config=reading, vision_config={**both, "image_size": 8, "patch_size": 4}
    )
    model = transformers.CLIPModel(config).eval()
    ids = torch.randint(3, 100, (2, 12))
    keep = torch.ones_like(ids)
    keep[1, 9:] = 0
    inputs = {
        "input_ids": ids * keep,
        "attention_mask": keep,
        "pixel_values": torch.randn(2, 3, 8, 8),
    }
    return model, inputs, lambda out: out.text_model_output.last_hidden_state


def test_text_of_clip_beside_images() -> None:
    model, inputs, output = clip()
    probes = ("leak", "reach", "padding")  # a batch size applies to texts and images alike
    report = mw.audit(model, inputs, expects="auto", output=output, probes=(*probes, "batch"))
    assert report.ok, report
    report = mw.audit(model, inputs, expects="bidirectional", output=output, probes="reach")
    assert not report.ok, report


@pytest.mark.parametrize("make", [wav2vec2, lambda kind: (FLOATS["vit"].build(kind), None)])
def test_signals_are_not_generated(make: Callable[[str], tuple[Any, Any]]) -> None:
    with pytest.raises(mw.ArgumentError, match="which the audit does not generate"):
        mw.audit(make("sdpa")[0])
