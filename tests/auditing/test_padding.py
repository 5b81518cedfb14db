"""The side of padding: left or right, real tokens get the same, where a model can be asked."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it
from torch import nn

import maskwright as mw
from tests._helpers.tiny_architectures import ARCHITECTURES

DIM, T = 8, 12
REAL = (T, 7, 9)
RIGHT = torch.arange(T) < torch.tensor(REAL)[:, None]


class Reader(nn.Module):
    """Causal attention in two layers, under a mask of padding, with learned positions."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.places = nn.Embedding(50, DIM), nn.Embedding(T + 8, DIM)
        self.parts = nn.ModuleList(nn.Linear(DIM, 3 * DIM) for _ in range(2))

    def seen(self, keep: torch.Tensor) -> torch.Tensor:
        past = torch.ones(keep.shape[1], keep.shape[1], dtype=torch.bool).tril()
        own = torch.eye(keep.shape[1], dtype=torch.bool)
        return (past & keep[:, None] | own)[:, None]

    def attend(self, ids: torch.Tensor, keep: torch.Tensor, positions: Any) -> torch.Tensor:
        x = self.words(ids) + self.places(positions)
        for part in self.parts:
            q, k, v = (each[:, None] for each in part(x).chunk(3, -1))
            x = x + self.mix(q, k, v, self.seen(keep))[:, 0]
        return x

    def mix(self, *args: torch.Tensor) -> torch.Tensor:
        return F.scaled_dot_product_attention(*args)


class Counting(Reader):
    """Positions by the mask."""

    def forward(self, ids: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        return self.attend(ids, keep, (keep.cumsum(1) - 1).clip(0))


class FromTheStart(Reader):
    """Positions from the start of the row, and no way to say others."""

    def forward(self, ids: torch.Tensor, keep: torch.Tensor) -> torch.Tensor:
        return self.attend(ids, keep, torch.arange(ids.shape[1]))


class Told(Reader):
    """Positions as they are given, else from the start of the row."""

    def forward(self, ids: torch.Tensor, keep: torch.Tensor, position_ids: Any = None) -> Any:
        own = torch.arange(ids.shape[1])
        return self.attend(ids, keep, own if position_ids is None else position_ids)


class IgnoresPositions(Reader):
    """Positions from the start of the row, whatever is given."""

    def forward(self, ids: torch.Tensor, keep: torch.Tensor, position_ids: Any = None) -> Any:
        own = ids if position_ids is None else position_ids
        return self.attend(ids, keep, torch.arange(own.shape[1]))


class FromTwo(Reader):
    """Positions begin at 2, as RoBERTa's do, when they are not given; and it can't be padded left."""

    def forward(self, ids: torch.Tensor, keep: torch.Tensor, position_ids: Any = None) -> Any:
        own = 2 + torch.arange(ids.shape[1])
        return self.attend(ids, keep, own if position_ids is None else position_ids)


class ByLengths(Counting):
    """Masks the last positions instead of the padding."""

    def seen(self, keep: torch.Tensor) -> torch.Tensor:
        count = keep.sum(1, keepdim=True)
        return super().seen(torch.arange(keep.shape[1]) < count)


class Strict(Counting):
    """Padding rows are fully masked and become NaN, and so does every output that uses them as values."""

    def seen(self, keep: torch.Tensor) -> torch.Tensor:
        past = torch.ones(keep.shape[1], keep.shape[1], dtype=torch.bool).tril()
        return (past & keep[:, None])[:, None]

    def mix(self, q: torch.Tensor, k: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        v, seen = rest
        return (q @ k.mT).masked_fill(~seen, -torch.inf).softmax(-1) @ v


def inputs_with(keep: torch.Tensor) -> dict[str, Any]:
    ids = torch.randint(1, 50, keep.shape, generator=torch.Generator().manual_seed(1))
    return {"ids": ids.masked_fill(~keep, 0), "keep": keep}


def audit(model: Any, keep: torch.Tensor = RIGHT, **more: Any) -> tuple[mw.AuditReport, Any]:
    given = inputs_with(keep) | more
    expects = mw.causal() & mw.padding(keep=keep.numpy())
    report = mw.audit(model.eval(), given, expects=expects, probes="padding")
    return report, report.answers[0]


@pytest.mark.parametrize("keep", [RIGHT, RIGHT.flip(1)], ids=["right", "left"])
def test_positions_by_mask_are_healthy_on_both_sides(keep: torch.Tensor) -> None:
    report, answer = audit(Counting(), keep)
    assert report.ok, report
    assert "other side" in str(answer.tried)
    assert not answer.notes


def test_given_positions_that_are_ignored_are_found() -> None:
    report, _ = audit(IgnoresPositions())
    assert report.cause == "positions-shifted"
    assert report.findings[0].message.startswith("padding on the left: position ")
    told, answer = audit(Told())
    assert told.ok, told
    assert [note.code for note in answer.notes] == ["audit.padding.needs_positions"]


def test_positions_that_are_given_go_along_with_their_tokens() -> None:
    left = RIGHT.flip(1)
    for keep in (RIGHT, left):
        own = (keep.cumsum(1) - 1).clip(0)
        report, answer = audit(Told(), keep, position_ids=own)
        assert report.ok, report
        assert "other side" in str(answer.tried)
        assert not answer.notes
    report, _ = audit(IgnoresPositions(), RIGHT, position_ids=(RIGHT.cumsum(1) - 1).clip(0))
    assert report.cause == "positions-shifted"


def test_positions_from_start_are_fault_where_left_is_padded() -> None:
    report, _ = audit(FromTheStart(), RIGHT.flip(1))
    assert report.cause == "positions-shifted"


def test_model_without_position_argument_gets_note() -> None:
    report, answer = audit(FromTheStart())
    assert report.ok, report
    assert "accepts no position_ids" in str(answer.notes[0])


def test_custom_positions_get_note() -> None:
    report, answer = audit(FromTwo())
    assert report.ok, report
    assert answer.notes[0].code == "audit.padding.other_positions"


def test_padding_that_is_hidden_on_right_only_is_found() -> None:
    report, _ = audit(ByLengths())
    assert report.findings[0].message.startswith("padding on the left")
    assert report.cause == "padding-visible"
    assert report.findings[0].used is not None


def test_padding_that_becomes_nan_on_left_is_found() -> None:
    report, _ = audit(Strict())
    assert report.findings[0].message.startswith("padding on the left")
    assert report.cause == "empty-row-nan"


def test_chunks_do_not_move_along() -> None:
    model = Counting()
    chunked = mw.causal() & mw.chunks(4)
    seen = torch.from_numpy(chunked.on(T).dense()[0, 0])
    model.seen = lambda keep: (seen & keep[:, None] | torch.eye(T, dtype=torch.bool))[:, None]
    expects = chunked & mw.padding(keep=RIGHT.numpy())
    report = mw.audit(model.eval(), inputs_with(RIGHT), expects=expects, probes="padding")
    assert report.ok, report
    assert "other side" not in str(report.answers[0].tried)


def test_source_of_decoder_has_sides_too() -> None:
    found = {}
    for name in ("t5", "bart"):
        report = mw.audit(ARCHITECTURES[name].build("eager"), probes="padding")
        assert report.ok, report
        assert "other side" in str(report.answers[0].tried)
        found[name] = report.answers[0].notes
    assert not found["t5"]  # whose positions are distances
    assert "pad on the right" in str(found["bart"][0])
