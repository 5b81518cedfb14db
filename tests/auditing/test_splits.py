"""Steps with a cache, of decoders that have an encoder: only what is the decoder's goes in pieces."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import maskwright as mw
from maskwright.auditing.huggingface import make_inputs
from maskwright.auditing.model_under_test import make_model_under_test
from tests._helpers.tiny_architectures import ARCHITECTURES

DIM, T = 8, 12


def equal_lengths(model: Any) -> dict[str, torch.Tensor]:
    """A source that is as long as the target, with padding in it."""
    given = make_inputs(model)
    more = torch.full((2, 24 - given["decoder_input_ids"].shape[1]), 7)
    given["decoder_input_ids"] = torch.cat((given["decoder_input_ids"], more), 1)
    return given


@pytest.mark.parametrize("name", ["bart", "t5"])
def test_decoder_is_run_with_cache(name: str) -> None:
    model = ARCHITECTURES[name].build("sdpa")
    for inputs in (make_inputs(model), equal_lengths(model)):
        report = mw.audit(model, inputs, probes="steps")
        assert report.ok, report
        assert "token by token" in str(report.answers[0].tried)
    masked = equal_lengths(model) | {"decoder_attention_mask": torch.ones(2, 24, dtype=torch.long)}
    report = mw.audit(model, masked, probes="steps")
    assert report.ok, report


def test_positions_that_do_not_go_on_in_decoder_are_found() -> None:
    model = ARCHITECTURES["bart"].build("sdpa")
    places = model.model.decoder.embed_positions
    right = type(places).forward
    places.forward = lambda ids, *_, **__: right(places, ids, 0)
    report = mw.audit(model, equal_lengths(model), probes="steps")
    assert report.cause == "step-differs"
    assert "position 1 differs" in report.findings[0].message


def test_cross_cache_that_is_overwritten_is_found() -> None:
    model = ARCHITECTURES["bart"].build("eager")
    cross = model.model.decoder.layers[1].encoder_attn
    right = type(cross).forward

    def forgetful(*args: Any, **given: Any) -> Any:
        cache = given.get("past_key_values")
        if cache is not None and cache.get_seq_length() > 1:
            given["key_value_states"] = torch.zeros_like(given["key_value_states"])
            cache.is_updated[cross.layer_idx] = False
        return right(cross, *args, **given)

    cross.forward = forgetful
    report = mw.audit(model, probes="steps")
    assert not report.ok
    assert mw.audit(model, probes="leak").ok


class Pair(nn.Module):
    """Adds the mean of the source to a running sum of the target."""

    def forward(self, src: Any, tgt: Any, src_keep: Any, cache: Any = None) -> Any:
        own = (src * src_keep[..., None]).sum(1, keepdim=True)
        total = tgt.cumsum(1) + (0.0 if cache is None else cache)
        return total + own, total[:, -1:]


def test_source_of_pair_is_never_cut() -> None:
    keep = torch.arange(T) < torch.tensor([[T], [5]])
    inputs = {"src": torch.randn(2, T, DIM), "tgt": torch.randn(2, T, DIM), "src_keep": keep}
    met = []

    def step(model: Any, piece: Any, state: Any) -> tuple[Any, Any]:
        met.append({key: x.shape[1] for key, x in piece.items()})
        return model(**piece, cache=state)

    options: dict[str, Any] = {
        "expects": {"src": mw.padding(keep=keep.numpy()), "tgt": mw.causal()},
        "step": step,
        "probes": "steps",
    }
    assert mw.audit(Pair(), inputs, **options).ok
    assert {(piece["src"], piece["src_keep"]) for piece in met} == {(T, T)}
    assert {piece["tgt"] for piece in met} >= {1, T // 3}

    def forgets(model: Any, piece: Any, state: Any) -> tuple[Any, Any]:
        return step(model, piece, None)

    assert mw.audit(Pair(), inputs, **options | {"step": forgets}).cause == "step-differs"


def test_mask_inputs_are_assigned_by_name() -> None:
    ids, keep = torch.ones(2, T, dtype=torch.long), torch.ones(2, T)

    def axes(names: tuple[str, str], *masks: str) -> list[list[bool]]:
        given = dict.fromkeys(names, ids) | dict.fromkeys(masks, keep)
        subject = make_model_under_test(len, given, names=names)
        return [[bool(subject.position_axes(m, keep, name, T)) for name in names] for m in masks]

    both = ("input_ids", "decoder_input_ids")
    assert axes(both, "attention_mask", "decoder_attention_mask") == [[True, False], [False, True]]
    assert axes(("src", "tgt"), "src_mask", "tgtmask") == [[True, False], [False, True]]
    assert axes(("source_ids", "target_ids"), "source_keep", "keep") == [
        [True, False],
        [True, True],
    ]


def test_encoder_as_long_as_decoder_is_not_taken_for_it() -> None:
    model = ARCHITECTURES["bart"].build("sdpa")
    inputs = equal_lengths(model)
    report = mw.audit(model, inputs)
    assert report.ok, report
    own = model.model.encoder.layers[1].self_attn
    right = type(own).forward
    own.forward = lambda *args, **given: right(own, *args, **given | {"attention_mask": None})
    report = mw.audit(model, inputs, probes=("leak", "padding"))
    assert (report.cause, report.layer) == ("missing-in-layer", "model.encoder.layers.1.self_attn")
