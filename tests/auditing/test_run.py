"""The audit: expectations, probes, what it restores, and unusual models."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import maskwright as mw
from maskwright.auditing.probes import Status

T, DIM = 12, 8


class Attention(nn.Module):
    """One layer of attention with a boolean mask, with a residual."""

    def __init__(self, mask: torch.Tensor | None) -> None:
        super().__init__()
        self.mask = mask
        self.parts = nn.Linear(DIM, 3 * DIM)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part[:, None] for part in self.parts(x).chunk(3, -1))
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=self.mask)
        return x + mixed[:, 0]


def model_of(*masks: mw.Mask | None) -> nn.Sequential:
    """Layers with these masks, on floats."""
    torch.manual_seed(0)
    seen = [None if m is None else torch.from_numpy(m.on(T).dense()[0, 0]) for m in masks]
    return nn.Sequential(*map(Attention, seen)).eval()


def floats(batch: int = 2) -> torch.Tensor:
    return torch.randn(batch, T, DIM, generator=torch.Generator().manual_seed(1))


def probes_that_failed(report: mw.AuditReport) -> set[str]:
    return {finding.probe for finding in report.findings}


# ── what is expected ──────────────────────────────────────────────────────────────────────────


def test_window_reaches_further_over_more_layers() -> None:
    two = model_of(mw.window(back=2), mw.window(back=2))
    assert mw.audit(two, floats(), expects=mw.window(back=2)).ok
    # The same model, held to what a single layer of it may see:
    report = mw.audit(two, floats(), expects=mw.window(back=2), layers=1)
    assert probes_that_failed(report) >= {"leak", "gradient"}
    far = report.findings[0]
    assert far.output is not None
    assert far.input is not None
    assert 2 < far.output - far.input <= 4


def test_one_layer_that_is_wider_is_found_by_name() -> None:
    report = mw.audit(
        model_of(mw.window(back=2), mw.window(back=3), mw.window(back=2)),
        floats(),
        expects=mw.window(back=2),
    )
    assert (report.cause, report.layer) == ("window-off-by-one", "1")
    assert report.findings[0].used == "window(back=3)"


def test_over_masking_is_found_where_nothing_leaks() -> None:
    report = mw.audit(model_of(mw.window(back=3)), floats(), expects="causal")
    assert probes_that_failed(report) == {"reach"}
    # Two layers reach as far as they should only where one of them lets them:
    deep = model_of(mw.window(back=3), mw.window(back=3))
    report = mw.audit(deep, floats(), expects=mw.window(back=4))
    assert (report.cause, probes_that_failed(report)) == ("window-off-by-one", {"reach"})


def test_expects_may_be_text_or_name() -> None:
    model = model_of(mw.causal())
    for expects in ("causal", "causal()", "window(back=None)", mw.causal()):
        assert mw.audit(model, floats(), expects=expects, probes="leak").ok
    assert mw.audit(model_of(None), floats(), expects="bidirectional").ok


def test_masks_per_layer_are_list_or_dict_by_module() -> None:
    model = model_of(mw.causal(), mw.window(back=2))
    assert mw.audit(model, floats(), expects=["causal", mw.window(back=2)]).ok
    assert mw.audit(model, floats(), expects={"0": mw.causal(), "1": "window(back=2)"}).ok
    report = mw.audit(model, floats(), expects=[mw.window(back=2), mw.window(back=2)])
    assert report.layer == "0"
    with pytest.raises(mw.ArgumentError, match=r"no mask for the layer '1'"):
        mw.audit(model, floats(), expects={"0": mw.causal()})
    with pytest.raises(mw.ArgumentError, match="no attention call was recorded"):
        mw.audit(nn.Sequential(nn.Linear(DIM, DIM)), floats(), expects={"0": mw.causal()})


def test_without_expectation_masks_are_proposed() -> None:
    report = mw.audit(model_of(mw.causal(), mw.window(back=2)), floats(), probes=("leak", "batch"))
    proposed = dict(report.proposed)
    assert proposed == {"0": mw.causal(), "1": mw.window(back=2), "outputs": mw.causal()}
    assert report.status is Status.NOT_TESTED
    assert "behaves like" in report.verdict
    of_function = mw.audit(lambda x: x.flip(1).cumsum(1).flip(1), floats(), probes="batch")
    assert dict(of_function.proposed)["outputs"] == mw.causal().T
    raises = mw.audit(nn.Linear(2, 2), floats())
    assert raises.cause == "raises"


def test_two_inputs_have_masks_of_their_own() -> None:
    class Pair(nn.Module):
        def __init__(self, keep: torch.Tensor | None) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.keep, self.past, self.mix = keep, Attention(None), nn.Linear(DIM, DIM)
            self.past.mask = torch.ones(T, T, dtype=torch.bool).tril()

        def forward(self, src: torch.Tensor, tgt: torch.Tensor) -> torch.Tensor:
            x = self.past(tgt)
            seen = None if self.keep is None else self.keep[:, None]
            scores = nn.functional.scaled_dot_product_attention
            return x + scores(self.mix(x), src, src, attn_mask=seen)

    keep = torch.arange(7) < torch.tensor([[7], [4]])
    source = torch.randn(2, 7, DIM)
    inputs = {"src": source, "tgt": floats()}
    expects = {"src": mw.padding(keep=keep), "tgt": mw.causal()}
    assert mw.audit(Pair(keep), inputs, expects=expects, probes=("leak", "reach")).ok
    report = mw.audit(Pair(None), inputs, expects=expects, probes=("leak", "reach"))
    assert report.cause == "padding-visible"
    both = mw.audit(Pair(None), tuple(inputs.values()), expects="encoder-decoder", probes="leak")
    assert both.ok


# ── what is asked ─────────────────────────────────────────────────────────────────────────────


def test_mask_may_be_input_and_is_not_cut() -> None:
    """Such a model has a frozen config too, whose dropout is 0 only while it is watched."""
    from maskwright.models.seq2seq import Seq2Seq, Seq2SeqConfig

    model = Seq2Seq(Seq2SeqConfig(50, 60, n_embd=16, n_head=2, n_layer=1, dropout=0.25))
    source, target = torch.randint(3, 50, (2, 7)), torch.randint(3, 60, (2, 5))
    real = mw.padding(lengths=[4, 7])
    inputs = {"src": source, "tgt": target, "src_padding": real}
    report = mw.audit(model, inputs, expects={"src": real, "tgt": "causal"})
    assert report.ok, str(report)
    assert "an input is a `Mask`" in str(report)
    assert "training without dropout" in str(report)
    assert model.config.dropout == 0.25


def test_leak_through_rounding_size_gap_is_still_leak() -> None:
    class Faint(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + 3e-4 * x.mean(1, keepdim=True)

    report = mw.audit(Faint(), floats(), expects=mw.window(back=0), probes="leak")
    assert probes_that_failed(report) == {"leak"}


def test_rounding_is_not_leak() -> None:
    class Sorting(nn.Module):
        """Adds up the features in another order when the last token is large, as experts may."""

        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.mix = nn.Linear(64, 64)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            order = torch.arange(64)
            if float(x[0, -1].abs().sum()) < 60:
                order = order.flip(0)
            return x[..., order] @ self.mix.weight[:, order].T + self.mix.bias

    report = mw.audit(Sorting(), torch.randn(2, T, 64), expects=mw.window(back=0), probes="leak")
    assert report.ok, report


def test_gradients_and_changes_agree() -> None:
    model = model_of(mw.window(back=2), mw.causal())
    changed = mw.influence(model, floats()).moved
    backward = mw.influence(model, floats(), by="gradient").moved
    np.testing.assert_array_equal(changed, backward)
    np.testing.assert_array_equal(changed[0], np.tril(np.ones((T, T), bool)))


def test_gradient_may_leak_where_no_value_does() -> None:
    class Straight(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            later = x.flip(1).cumsum(1).flip(1)
            return x + later - later.detach()

    report = mw.audit(Straight(), floats(), expects="causal", probes=("leak", "gradient"))
    assert probes_that_failed(report) == {"gradient"}


def test_pieces_are_run_with_cache() -> None:
    class Running(nn.Module):
        def __init__(self, forgets: bool) -> None:
            super().__init__()
            self.forgets = forgets

        def forward(self, x: torch.Tensor, cache: Any = None) -> tuple[torch.Tensor, Any]:
            before = 0.0 if cache is None or self.forgets else cache
            total = x.cumsum(1) + before
            return total, total[:, -1:]

    def step(model: Any, piece: Any, state: Any) -> tuple[Any, Any]:
        return model(piece, cache=state)

    options: dict[str, Any] = {"expects": "causal", "step": step, "probes": "steps"}
    assert mw.audit(Running(False), floats(), **options).ok
    report = mw.audit(Running(True), floats(), **options)
    assert report.cause == "step-differs"
    assert "token by token" in report.findings[0].message


def test_other_paths_are_compared() -> None:
    model = model_of(mw.causal())

    def shifted(model: Any, x: torch.Tensor) -> torch.Tensor:
        return model(x.roll(1, 1))

    given: dict[str, Any] = {"expects": "causal", "probes": "paths"}
    assert mw.audit(model, floats(), paths={"same": lambda m, x: m(x)}, **given).ok
    report = mw.audit(model, floats(), paths={"shifted": shifted}, **given)
    assert "shifted" in report.findings[0].message


def test_pooled_output_depends_on_no_padding() -> None:
    keep = torch.arange(T) < torch.tensor([[T], [5]])

    def mean(x: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        return (x * keep[..., None]).sum(1) / keep.sum(1, keepdim=True)

    inputs = {"x": floats(), "keep": keep}
    expects = mw.padding(keep=keep)
    assert mw.audit(mean, inputs, expects=expects).ok
    report = mw.audit(lambda x, keep: x.mean(1), inputs, expects=expects)
    assert not report.ok


def test_pooled_output_of_one_row() -> None:
    near = model_of(mw.window(back=2), mw.window(back=2))
    for row in (0, T - 1):
        assert mw.audit(lambda x, i=row: near(x)[:, i], floats(), expects=mw.window(back=2)).ok
    wide = model_of(None)
    assert mw.audit(lambda x: wide(x)[:, 0], floats(), expects="bidirectional").ok
    report = mw.audit(lambda x: x[:, 0] + 0 * wide(x)[:, 0], floats(), expects="bidirectional")
    assert probes_that_failed(report) == {"reach"}


def test_one_number_for_each_position_is_output_of_positions() -> None:
    square = torch.randn(2, T, T, generator=torch.Generator().manual_seed(1))
    for x in (floats(), square):
        assert mw.audit(lambda x: x.cumsum(1).mean(-1), x, expects="causal").ok
        report = mw.audit(lambda x: x.flip(1).cumsum(1).flip(1).mean(-1), x, expects="causal")
        assert "leak" in probes_that_failed(report)
    assert mw.audit(lambda x: x.mean(1), square, expects="bidirectional").ok


def test_chunks_end_where_later_keys_are_masked() -> None:
    def step(model: Any, piece: Any, state: Any) -> tuple[Any, Any]:
        before = piece if state is None else torch.cat((state, piece), 1)
        seen = nn.functional.pad(before, (0, 0, 0, T - before.shape[1]))
        return model(seen)[:, before.shape[1] - piece.shape[1] : before.shape[1]], before

    prefixed = mw.causal() | mw.prefix(7)
    options: dict[str, Any] = {"step": step, "probes": "steps"}
    assert mw.audit(model_of(prefixed), floats(), expects=prefixed, **options).ok
    no_steps = mw.audit(model_of(None), floats(), expects="bidirectional", **options)
    assert (no_steps.status, no_steps.ok) == (Status.NOT_APPLICABLE, False)
    assert not mw.audit(model_of(None), floats(), expects="causal", **options).ok


@pytest.mark.parametrize("forgets", [False, True])
def test_noise_in_training_is_not_finding_and_hides_none(forgets: bool) -> None:
    class Jittered(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.masked, self.bare = model_of(mw.causal()), model_of(None)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            noisy = x * (1 + 0.01 * torch.randn_like(x)) if self.training else x
            return (self.bare if forgets and self.training else self.masked)(noisy)

    report = mw.audit(Jittered(), floats(), expects="causal", probes="paths")
    assert report.ok != forgets, str(report)


# ── what is left as it was ────────────────────────────────────────────────────────────────────


class Counting(nn.Module):
    """Has a buffer that every pass changes, dropout, and a gradient that is kept."""

    def __init__(self, raises: bool = False) -> None:
        super().__init__()
        self.register_buffer("passes", torch.zeros(1))
        self.mix, self.drop, self.raises = nn.Linear(DIM, DIM), nn.Dropout(0.5), raises
        self.mix.weight.grad = torch.ones_like(self.mix.weight)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.passes += 1
        if self.raises:
            raise RuntimeError("out of paper")
        return self.drop(self.mix(x)).cumsum(1)


@pytest.mark.parametrize("raises", [False, True])
def test_model_is_afterwards_unchanged(raises: bool) -> None:
    model = Counting(raises).train()
    model.drop.eval()
    before = torch.random.get_rng_state()
    report = mw.audit(model, floats(), expects="causal")
    assert report.ok is not raises
    assert float(model.passes) == 0
    assert (model.training, model.mix.training, model.drop.training) == (True, True, False)
    assert bool((model.mix.weight.grad == 1).all())
    assert model.drop.p == 0.5
    assert torch.equal(torch.random.get_rng_state(), before)
    assert not any(
        hooks
        for part in model.modules()
        for hooks in (part._forward_hooks, part._forward_pre_hooks, part._backward_hooks)
    )


# ── models that are odd ───────────────────────────────────────────────────────────────────────


def test_model_that_raises_is_finding() -> None:
    report = mw.audit(Counting(raises=True), floats(), expects="causal")
    assert report.cause == "raises"
    assert "out of paper" in report.findings[0].message


def test_model_that_is_not_deterministic_is_finding() -> None:
    count = iter(range(1000))
    report = mw.audit(lambda x: x + next(count), floats(), expects="causal")
    assert "not deterministic" in report.findings[0].message


def test_model_that_ignores_input_is_finding() -> None:
    model = model_of(mw.causal())
    model[0].parts.requires_grad_(False).weight.zero_()
    fixed = torch.ones(2, T, DIM)
    report = mw.audit(lambda x: model(fixed) + 0 * x, floats(), expects="causal")
    assert report.cause == "ignores-input"


def test_model_that_gives_nan_is_finding() -> None:
    report = mw.audit(lambda x: x / 0 * 0, floats(), expects="causal")
    assert report.cause == "not-finite"


REFUSED = {
    "no model": (lambda: mw.audit(3, floats(), expects="causal"), "Pass a function or module"),
    "no tensor": (lambda: mw.audit(len, "abc", expects="causal"), "Pass a tensor, a tuple"),
    "no positions": (lambda: mw.audit(len, torch.ones(3), expects="causal"), "no input is ids"),
    "no output": (lambda: mw.audit(lambda x: 3, floats(), expects="causal"), "Pass output="),
    "other length": (
        lambda: mw.audit(lambda x: x[:, :5], floats(), expects="causal"),
        "5 positions, and the input 12",
    ),
    "no mask": (lambda: mw.audit(len, floats(), expects=3), "Pass a mask, a dict of masks"),
    "no atom": (lambda: mw.audit(len, floats(), expects="casual()"), "Did you mean causal"),
    "no such input": (
        lambda: mw.audit(len, {"x": floats()}, expects={"y": mw.causal()}),
        "the inputs are x",
    ),
    "no such probe": (
        lambda: mw.audit(len, floats(), expects="causal", probes="leek"),
        "Did you mean 'leak'",
    ),
    "one input": (
        lambda: mw.audit(len, (floats(),), expects="encoder-decoder"),
        "needs two inputs",
    ),
    "no inputs": (lambda: mw.audit(nn.Linear(2, 2), expects="causal"), "inputs may be omitted"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_call_is_rejected_with_one_message(name: str) -> None:
    call, words = REFUSED[name]
    with pytest.raises(mw.MaskError, match=words):
        call()


# ── what is said ──────────────────────────────────────────────────────────────────────────────


def test_report_is_text_json_and_error() -> None:
    good = mw.audit(model_of(mw.causal()), floats(), expects="causal")
    good.assert_ok()
    assert "respects causal()" in str(good)
    bad = mw.audit(model_of(None), floats(), expects="causal")
    with pytest.raises(mw.AuditError, match="does not respect"):
        bad.assert_ok()
    with pytest.raises(mw.TruthError, match=r"report\.ok"):
        bool(bad)
    told = json.loads(bad.to_json())
    assert (told["ok"], told["cause"], told["layer"]) == (False, "future-visible", "0")
    assert {probe["probe"] for probe in told["probes"]} >= {"leak", "reach", "gradient"}
    assert "mw.influence" in told["findings"][0]["reproduce"]
    assert bad.to_html().startswith("<!doctype html>")


def test_reproduce_code_of_leak_runs() -> None:
    report = mw.audit(model_of(None), floats(), expects="causal", probes="leak")
    lines = report.findings[0].reproduce
    scope = {"model": model_of(None), "inputs": floats()}
    exec(lines.replace("print(", "size = ("), scope)
    assert scope["size"] > 0


def test_a_failed_probe_without_a_complete_comparison_is_described_by_its_failure() -> None:
    def reads_the_next(x: torch.Tensor) -> torch.Tensor:
        return x + torch.roll(x, -1, 1)

    report = mw.audit(reads_the_next, torch.randn(2, 6, 4), expects="causal")
    failed = [result for result in report.answers if result.failures]
    assert {"leak", "gradient", "prefix"} <= {result.probe for result in failed}
    assert all(result.describe() for result in failed)
