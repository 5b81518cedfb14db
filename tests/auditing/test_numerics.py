"""NaN in what is hidden: told as a note, and never a finding."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it
from torch import nn

import maskwright as mw

DIM, T = 8, 12
KEEP = torch.arange(T) < torch.tensor([[T], [7]])
PAST = torch.ones(T, T, dtype=torch.bool).tril()

KEPT_OUT = "NaN at masked positions does not reach the outputs"


class Attention(nn.Module):
    """Attention under a mask, to words; padding's may be emptied first."""

    def __init__(self, clean: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.clean, self.words = clean, nn.Embedding(50, DIM)

    def forward(self, ids: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        if self.clean:
            x = x.masked_fill(~keep[..., None], 0.0)
        seen = (PAST & keep[:, None] | torch.eye(T, dtype=torch.bool))[:, None]
        return x + F.scaled_dot_product_attention(x[:, None], x[:, None], x[:, None], seen)[:, 0]


def notes_of(model: Any, inputs: Any, expects: Any) -> list[str]:
    report = mw.audit(model, inputs, expects=expects, probes="numbers")
    assert report.ok, report
    return [str(note) for note in report.answers[0].notes]


def test_nan_in_padding_is_reported() -> None:
    inputs = {"ids": torch.randint(1, 50, (2, T)), "keep": KEEP}
    expects = mw.causal() & mw.padding(keep=KEEP.numpy())
    assert notes_of(Attention(True), inputs, expects) == [KEPT_OUT]
    [note] = notes_of(Attention(False), inputs, expects)
    assert "reaches 7 of 7 outputs" in note  # of the sequence that has padding


def test_without_padding_it_is_put_into_future() -> None:
    x = torch.randn(2, T, DIM)
    assert notes_of(lambda x: x.cumsum(1), x, "causal") == [KEPT_OUT]
    [note] = notes_of(lambda x: PAST.float() @ x, x, "causal")
    assert "reaches" in note
    assert notes_of(lambda x: x + x.mean(1, keepdim=True), x, "bidirectional") == []


def test_ids_without_embedding_cannot_be_nan() -> None:
    ids = torch.randint(1, 50, (2, T))
    assert notes_of(lambda ids: ids.float().cumsum(1)[..., None], ids, "causal") == []


def test_model_that_rejects_nan_is_ok() -> None:
    def careful(x: torch.Tensor) -> torch.Tensor:
        if not bool(x.isfinite().all()):
            raise ValueError("not a number")
        return x.cumsum(1)

    [note] = notes_of(careful, torch.randn(2, T, DIM), "causal")
    assert "not tested" in note


def test_nan_does_not_stay_in_model_that_remembers() -> None:
    class Remembering(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("last", torch.zeros(DIM))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            found = x.cumsum(1) + 0 * self.last
            self.last.copy_(x[0, -1])
            return found

    report = mw.audit(
        Remembering(), torch.randn(2, T, DIM), expects="causal", probes=("numbers", "paths")
    )
    assert report.ok, report
    assert [str(note) for note in report.answers[0].notes] == [KEPT_OUT]
