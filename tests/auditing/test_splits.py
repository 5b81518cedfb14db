"""Steps with a cache, of decoders that have an encoder, and the sizes of batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import maskwright as mw
from maskwright.auditing.huggingface import make_inputs
from maskwright.auditing.measure import make_meter
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


# ── memory ────────────────────────────────────────────────────────────────────────────────────


class Counting(nn.Module):
    """Attention of many heads that records the shapes of its inputs; `leaks` plants a fault."""

    def __init__(self, causal: bool, leaks: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.causal, self.leaks = causal, leaks
        self.shapes: list[tuple[int, ...]] = []
        self.mix = nn.Linear(DIM, 3 * DIM)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.shapes.append(tuple(x.shape))
        q, k, v = (
            part.unflatten(-1, (DIM, 1)).transpose(1, 2) for part in self.mix(x).chunk(3, -1)
        )
        causal = self.causal and not (self.leaks and len(x) == DIM)  # batch taken for heads
        out = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return x + out.transpose(1, 2).flatten(2)


@pytest.mark.parametrize("causal", [True, False])
def test_larger_batches_are_bounded(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maskwright.auditing.probes.splits.MAX_POSITIONS", 40)
    model = Counting(causal)
    expects = "causal" if causal else "bidirectional"
    report = mw.audit(model, torch.randn(2, T, DIM), expects=expects, probes="batch")
    assert report.ok, report
    assert max(batch * length for batch, length, _ in model.shapes) <= 2 * 2 * T
    cut = (DIM, 2 * 2 * T // DIM, DIM)
    assert (cut in model.shapes) is causal
    assert causal or "too much memory" in str(report)


def test_longer_inputs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maskwright.auditing.probes.splits.MAX_POSITIONS", 600)
    model = Counting(True)
    report = mw.audit(model, torch.randn(5, T, DIM), expects="causal", probes="prefix")
    assert report.ok, report
    assert max(batch * length for batch, length, _ in model.shapes) <= 600
    assert {shape[:2] for shape in model.shapes} >= {(5, 64), (4, 128), (3, 160), (2, 256)}


def test_larger_batch_of_fewer_positions_finds_its_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in (4096, 40):
        monkeypatch.setattr("maskwright.auditing.probes.splits.MAX_POSITIONS", limit)
        model = Counting(True, leaks=True)
        report = mw.audit(model, torch.randn(2, T, DIM), expects="causal", probes="batch")
        assert "batch size 8" in report.findings[0].message, report


def test_copy_in_float64_is_made_by_layer_if_memory_is_short(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("maskwright.auditing.measure.free_memory", lambda _: 0.0)
    model = ARCHITECTURES["llama"].build("sdpa")
    tested = make_model_under_test(model, make_inputs(model))
    twin = make_meter(tested).float64
    assert twin is not None
    assert twin.tested.model is model
    assert twin.tested.by_layer
    assert {weight.dtype for weight in model.parameters()} == {torch.float32}
    assert mw.audit(model, probes=("padding", "steps")).ok
