"""Other ways to run the same model: compiled, and with each kind of attention that it offers."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it
from torch import nn

import maskwright as mw
from maskwright.auditing.probes import Status
from tests._helpers.tiny_architectures import ARCHITECTURES

DIM, T = 8, 12
SEEN = torch.ones(T, T, dtype=torch.bool).tril()


class Attention(nn.Module):
    """Causal attention, which may lose its mask while it is compiled."""

    def __init__(self, forgets: bool = False) -> None:
        super().__init__()
        self.forgets, self.parts = forgets, nn.Linear(DIM, 3 * DIM)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part[:, None] for part in self.parts(x).chunk(3, -1))
        lost = self.forgets and torch.compiler.is_compiling()
        return x + F.scaled_dot_product_attention(q, k, v, None if lost else SEEN)[:, 0]


def model_of(*forgets: bool) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*map(Attention, forgets)).eval()


def floats() -> torch.Tensor:
    return torch.randn(2, T, DIM, generator=torch.Generator().manual_seed(1))


def paths_of(model: Any, inputs: Any = None, **given: Any) -> tuple[mw.AuditReport, Any]:
    report = mw.audit(model, inputs, probes="paths", **given)
    return report, report.answers[0]


def test_compiled_model_gives_same() -> None:
    report, answer = paths_of(model_of(False, False), floats(), expects="causal")
    assert report.ok, report
    assert "compiled" in str(answer.tried)


def test_mask_that_is_lost_while_compiling_is_found_in_layer() -> None:
    report, _ = paths_of(model_of(False, True), floats(), expects="causal")
    assert report.findings[0].message.startswith("compiled: position 0 differs")
    assert (report.cause, report.layer) == ("missing-in-layer", "1")
    assert mw.audit(model_of(False, True), floats(), expects="causal", probes="leak").ok


def test_model_that_cannot_be_compiled_gets_note() -> None:
    class Refusing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if torch.compiler.is_compiling():
                raise RuntimeError("not while compiling")
            return x.cumsum(1)

    class Unread(nn.Module):
        @torch.compiler.disable
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.cumsum(1)

    for model in (Refusing(), Unread()):
        report, answer = paths_of(model, floats(), expects="causal")
        assert report.ok, report
        assert "compiled" not in str(answer.tried)
        not_run = [case for case in answer.cases if case.status is Status.NOT_RUN]
        assert [str(case.what) for case in not_run] == ["compiled"]
        assert "compiled: could not run" in str(report)


def test_function_is_not_compiled() -> None:
    report, answer = paths_of(lambda x: x.cumsum(1), floats(), expects="causal")
    assert (report.status, answer.tried, answer.notes) == (Status.NOT_APPLICABLE, None, [])


def test_failing_model_is_not_compiled() -> None:
    report = mw.audit(
        nn.Sequential(nn.Linear(DIM, DIM), nn.Flatten(1), nn.Linear(T * DIM, T * DIM))
        .append(nn.Unflatten(1, (T, DIM)))
        .eval(),
        floats(),
        expects="causal",
        probes=("leak", "paths"),
    )
    assert "leak" in {finding.probe for finding in report.findings}
    assert any("compiled: not tested" in str(note) for note in report.answers[1].notes)


def test_compiled_model_also_runs_eagerly() -> None:
    model = torch.compile(model_of(False), backend="eager")
    _, answer = paths_of(model, floats(), expects="causal")
    assert "not compiled" in str(answer.tried)
    model = torch.compile(model_of(True), backend="eager")
    report, _ = paths_of(model, floats(), expects="bidirectional")
    assert report.findings[0].message.startswith("not compiled: position 0 differs")
    torch.compiler.reset()


def test_compiling_leaves_nothing_behind() -> None:
    class Wordy(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if torch.compiler.is_compiling():
                warnings.warn("said while compiling", stacklevel=1)
            print(end="")  # which no graph can hold
            return x.cumsum(1)

    model = Wordy()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        report, answer = paths_of(model, floats(), expects="causal")
    assert report.ok, report
    assert "compiled" in str(answer.tried)
    assert not said
    counted = torch._dynamo.testing.CompileCounter()
    torch.compile(model_of(False), backend=counted)(floats())
    assert counted.frame_count == 1  # nothing that was compiled before is in the way
    torch.compiler.reset()


# ── kinds of attention in transformers ────────────────────────────────────────────────────────


def test_flex_attention_is_a_variant() -> None:
    model = ARCHITECTURES["mistral"].build("eager")
    report, answer = paths_of(model)
    assert report.ok, report
    assert {"sdpa attention", "flex attention"} <= set(str(answer.tried).split("; "))
    assert model.config._attn_implementation == "eager"


@pytest.mark.parametrize("name", ["stablelm", "gptj"])
def test_unsupported_variant_is_skipped(name: str) -> None:
    _, answer = paths_of(ARCHITECTURES[name].build("eager"))
    assert "flex attention" not in str(answer.tried)
    assert not answer.notes


def test_mask_that_flex_attention_loses_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.masking_utils import flex_attention_mask as right

    def without_padding(*args: Any, **given: Any) -> Any:
        given["attention_mask"] = None
        given["mask_function"] = lambda batch, head, q, k: k <= q + 1
        return right(*args, **given)

    masks = {**ALL_MASK_ATTENTION_FUNCTIONS._global_mapping, "flex_attention": without_padding}
    monkeypatch.setattr(type(ALL_MASK_ATTENTION_FUNCTIONS), "_global_mapping", masks)
    model = ARCHITECTURES["llama"].build("sdpa")
    report, _ = paths_of(model)
    assert report.findings[0].message.startswith("flex attention: position ")
    assert (report.cause, report.layer) == ("future-visible", "model.layers.0.self_attn")
    assert model.config._attn_implementation == "sdpa"
