"""A probe passes only if it could have failed: planted leaks of any strength, in every dtype."""

from __future__ import annotations

from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch import nn

import maskwright as mw
from maskwright.auditing import some
from maskwright.auditing.measure import MARGIN, Plan, read_budget
from maskwright.auditing.model_under_test import (
    cast_while_running,
    in_float32,
    make_model_under_test,
)
from maskwright.auditing.probes import Status

T, DIM, VOCAB = 9, 8, 20
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
LEAKS = ("future", "one pair", "weak fill", "padding", "other sequence")
EPSILON = torch.finfo(torch.float32).eps


class Leaky(nn.Module):
    """Causal attention under a padding mask, with a leak of some strength; 0 is none."""

    def __init__(self, leak: str, strength: float, layers: int, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.leak, self.strength = leak, strength
        self.embedding = nn.Embedding(VOCAB, DIM)
        self.parts = nn.ModuleList(nn.Linear(DIM, 3 * DIM) for _ in range(layers))
        self.head = nn.Linear(DIM, DIM)

    def forward(self, ids: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        length = ids.shape[1]
        seen = torch.ones(length, length, dtype=torch.bool).tril() & keep[:, None]
        seen = seen | torch.eye(length, dtype=torch.bool)
        fill = torch.finfo(x.dtype).min
        if self.leak == "weak fill" and self.strength:
            fill = max(fill, 4 * torch.tensor(self.strength).log().item())
        for part in self.parts:
            q, k, v = part(x).chunk(3, -1)
            scores = (q @ k.mT / DIM**0.5).masked_fill(~seen, fill)
            x = x + scores.softmax(-1) @ v
        if self.leak == "future":
            x = x + self.strength * x.flip(1).cumsum(1).flip(1)
        elif self.leak == "one pair":
            x = torch.cat((x[:, :3], x[:, 3:4] + self.strength * x[:, 6:7], x[:, 4:]), 1)
        elif self.leak == "padding":
            x = x + self.strength * (x * ~keep[..., None]).sum(1, keepdim=True)
        elif self.leak == "other sequence":
            x = x + self.strength * x.flip(0)
        return self.head(x)


def inputs() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(1, VOCAB, (2, T), generator=generator)
    return {"ids": ids, "keep": torch.arange(T) < torch.tensor([[T], [T - 2]])}


def expected() -> mw.Mask:
    return mw.causal() & mw.padding(lengths=[T, T - 2])


def leaked(model: nn.Module) -> float:
    """How far masked positions move outputs in float32, of outputs of size 1, by hand."""
    model = model.float()
    given = inputs()
    allowed = expected().on(T, batch=2).dense()[:, 0]
    worst = 0.0

    def run(b: int, j: int, scale: float) -> torch.Tensor:
        def change(_: Any, __: Any, out: torch.Tensor) -> torch.Tensor:
            out = out.clone()
            out[b, j] += scale
            return out

        with model.embedding.register_forward_hook(change), torch.no_grad():
            return model(**given)

    with torch.no_grad():
        before = model(**given)
    for b in range(2):
        for j in range(T):
            moved = (run(b, j, 3.0) - before).abs().amax(-1)
            masked = torch.ones(2, T, dtype=torch.bool)
            masked[b] = torch.from_numpy(~allowed[b, :, j])
            masked[b, j] = False
            masked &= given["keep"]
            if b != 0 and bool((moved[0] > 0).any()):
                worst = max(worst, float(moved[0].max()))
            worst = max(worst, float(moved[masked].max()) if bool(masked.any()) else 0.0)
    return worst / float(before.abs().max())


PROBES = ("leak", "padding", "batch")


@given(
    leak=st.sampled_from(LEAKS),
    exponent=st.floats(-7, 0.5),
    dtype=st.sampled_from(DTYPES),
    layers=st.integers(1, 2),
    seed=st.integers(0, 20),
)
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_planted_leak_is_found_or_probe_does_not_pass(
    leak: str, exponent: float, dtype: torch.dtype, layers: int, seed: int
) -> None:
    model = Leaky(leak, 10.0**exponent, layers, seed).to(dtype).eval()
    report = mw.audit(model, inputs(), expects=expected(), probes=PROBES)
    by_probe = {result.probe: result.status for result in report.answers}
    assert next(model.parameters()).dtype == dtype
    if leaked(model) > 16 * EPSILON:
        own = {"padding": "padding", "other sequence": "batch"}.get(leak, "leak")
        assert by_probe[own] is not Status.PASSED, report
        assert not report.ok


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layers", [1, 2])
def test_same_model_without_leak_passes(dtype: torch.dtype, layers: int) -> None:
    for leak in LEAKS:
        model = Leaky(leak, 0.0, layers, 3).to(dtype).eval()
        report = mw.audit(model, inputs(), expects=expected(), probes=(*PROBES, "prefix", "dtype"))
        assert report.ok, report


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("leak", LEAKS)
def test_function_in_half_precision_does_not_pass_with_leak(dtype: Any, leak: str) -> None:
    """It cannot be copied to float32, so that weak leaks are hidden by rounding."""
    for exponent in (-2, -1, 0):
        model = Leaky(leak, 10.0**exponent, 1, 2).to(dtype).eval()
        report = mw.audit(
            lambda ids, keep, m=model: m(ids, keep), inputs(), expects=expected(), probes=PROBES
        )
        assert not report.ok or leaked(model) < 0.02, report


def test_noisy_model_is_not_tested_or_own_finding() -> None:
    class Noisy(nn.Module):
        def __init__(self, size: float) -> None:
            super().__init__()
            self.size, self.generator = size, torch.Generator().manual_seed(0)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            noise = torch.randn(x.shape, generator=self.generator)
            return 1e-3 * x.cumsum(1) + x.mean() * 0 + 10 + self.size * noise

    x = torch.randn(2, T, DIM)
    report = mw.audit(Noisy(1e-3), x, expects="causal", probes=("leak", "batch"))
    assert report.status is Status.NOT_TESTED, report
    assert report.exit_code == 3
    assert "noise too high" in str(report)
    with pytest.raises(mw.AuditError):
        report.assert_ok()
    report = mw.audit(Noisy(1.0), x, expects="causal")
    assert report.cause == "not-deterministic"
    assert report.exit_code == 1


def test_model_that_ignores_positions_does_not_pass_leak() -> None:
    report = mw.audit(
        lambda x: torch.ones_like(x), torch.randn(2, T, DIM), expects="causal", probes="leak"
    )
    assert report.status is Status.NOT_TESTED, report


def test_comparison_that_raises_or_has_other_shape_is_no_pass() -> None:
    def fixed(x: torch.Tensor) -> torch.Tensor:
        if x.shape[0] != 2:
            raise RuntimeError("two sequences only")
        return x.cumsum(1)

    x = torch.randn(2, T, DIM)
    report = mw.audit(fixed, x, expects="causal", probes="batch")
    assert report.status is Status.NOT_RUN
    assert report.exit_code == 3
    other = {"shorter": lambda model, x: model(x)[:, :3]}
    report = mw.audit(lambda x: x.cumsum(1), x, expects="causal", probes="paths", paths=other)
    assert report.status is Status.NOT_RUN
    assert "could not run" in str(report)


def test_no_probe_is_no_pass() -> None:
    report = mw.audit(lambda x: x.cumsum(1), torch.randn(2, T, DIM), expects="causal", probes=())
    assert report.status is Status.NOT_APPLICABLE
    assert not report.ok


# ── half precision ────────────────────────────────────────────────────────────────────────────


class Blocks(nn.Module):
    """Layers in a list, a tied head, and a mask in the dtype of the embeddings."""

    def __init__(self, leaks: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.leaks = leaks
        self.embedding = nn.Embedding(VOCAB, DIM)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(DIM, 2, 16, 0.0, batch_first=True) for _ in range(2)
        )

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.embedding(ids)
        size = ids.shape[1]
        mask = torch.full((size, size), -torch.inf, dtype=x.dtype).triu(1)
        for n, layer in enumerate(self.layers):
            x = layer(x, src_mask=torch.zeros_like(mask) if self.leaks and n else mask)
        return x @ self.embedding.weight.to(x.dtype).T


@pytest.mark.parametrize("leaks", [False, True])
@pytest.mark.parametrize("by_layer", [False, True])
def test_half_model_runs_in_float32_without_copy(leaks: bool, by_layer: bool) -> None:
    model = Blocks(leaks).bfloat16().eval()
    ids = torch.randint(1, VOCAB, (2, T))
    tested = make_model_under_test(model, ids)
    other = cast_while_running(tested, torch.float32, by_layer)
    assert other is not None
    found = other.run()
    wanted = Blocks(leaks).bfloat16().float().eval()(ids)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert {w.dtype for w in model.parameters()} == {torch.bfloat16}


@pytest.mark.parametrize("leaks", [False, True])
def test_half_model_is_audited_layer_by_layer_without_memory(
    leaks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("maskwright.auditing.model_under_test.free_memory", lambda _: 0.0)
    model = Blocks(leaks).bfloat16().eval()
    ids = torch.randint(1, VOCAB, (2, T))
    other = in_float32(make_model_under_test(model, ids))
    assert other is not None
    assert other.by_layer
    report = mw.audit(model, ids, expects="causal", probes=("leak", "gradient", "batch"))
    assert report.ok is not leaks, report
    if leaks:
        assert (report.cause, report.layer) == ("missing-in-layer", "layers.1.self_attn")


def test_mask_that_half_precision_loses_is_found() -> None:
    """The model itself is in half precision: its masks are compared with those in float32."""

    class Lost(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.embedding = nn.Embedding(VOCAB, DIM)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.embedding(ids)
            seen = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
            seen = seen | (x.dtype == torch.bfloat16)
            q = x[:, None]
            return x + nn.functional.scaled_dot_product_attention(q, q, q, seen)[:, 0]

    ids = torch.randint(1, VOCAB, (2, T))
    assert mw.audit(Lost(), ids, expects="causal", probes=("leak", "batch")).ok
    report = mw.audit(Lost().bfloat16(), ids, expects="causal", probes=("leak", "dtype"))
    assert {finding.probe for finding in report.findings} == {"dtype"}


# ── expectations and plans ────────────────────────────────────────────────────────────────────


def test_layer_that_chooses_keys_need_not_reach() -> None:
    class Choosing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.mix = nn.Linear(DIM, DIM)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores = self.mix(x) @ x.mT
            past = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
            scores = scores.masked_fill(~past, -torch.inf)
            best = scores >= scores.topk(2, -1).values[..., -1:]
            return x + scores.masked_fill(~(best & past), -torch.inf).softmax(-1) @ x

    x = torch.randn(2, T, DIM, generator=torch.Generator().manual_seed(0))
    probes = ("leak", "reach")
    assert not mw.audit(Choosing(), x, expects="causal", probes=probes).ok
    for expects in (some("causal()"), some(mw.causal()), "some(causal())", [some("causal()")]):
        assert mw.audit(Choosing(), x, expects=expects, probes=probes).ok
    report = mw.audit(Choosing(), x, expects=some(mw.window(back=1)), probes=probes)
    assert report.status is Status.FAILED


def test_budget_is_read_and_obeyed() -> None:
    assert [read_budget(x) for x in ("90s", "2min", "1h", 5, None)] == [90, 120, 3600, 5, None]
    for wrong in ("soon", 0, -1, True, "2 days", float("inf")):
        with pytest.raises(mw.ArgumentError, match="budget"):
            read_budget(wrong)
    seen = []
    report = mw.audit(
        lambda x: x.cumsum(1),
        torch.randn(2, T, DIM),
        expects="causal",
        budget=1e-9,
        progress=seen.append,
    )
    assert report.status is Status.NOT_TESTED
    assert "the time is used up" in str(report)
    assert [one.done for one in seen] == list(range(len(seen)))
    assert all(one.seconds_left <= 1 for one in seen)


def test_expensive_model_gets_fewer_passes() -> None:
    assert Plan(seconds_per_pass=0.01).thorough
    plan = Plan(seconds_per_pass=10.0)
    assert not plan.thorough
    assert plan.count(64, 12) == 12
    assert MARGIN > 1


# ── the copy in float64 ───────────────────────────────────────────────────────────────────────


class RoundsByLength(nn.Module):
    """Rounds otherwise at another length; in float64, longer inputs give `wrong` outputs."""

    def __init__(self, wrong: float, leaks: bool = False) -> None:
        super().__init__()
        self.wrong, self.leaks = wrong, leaks
        self.weight = nn.Parameter(torch.ones(DIM))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = (self.weight * x).cumsum(1)
        if x.shape[1] <= T:
            return out
        if self.leaks:
            return out + 1e-6 * x.sum(1, keepdim=True)
        return out * self.wrong if x.dtype == torch.float64 else out * (1 + 2e-7)


@pytest.mark.parametrize("wrong", [1.0, 3.0, float("nan")])
def test_copy_that_behaves_otherwise_confirms_nothing(wrong: float) -> None:
    x = torch.randn(2, T, DIM, generator=torch.Generator().manual_seed(0))
    assert mw.audit(RoundsByLength(wrong), x, expects="causal", probes="prefix").ok
    report = mw.audit(RoundsByLength(wrong, leaks=True), x, expects="causal", probes="prefix")
    assert report.status is Status.FAILED, report
