"""A pointer into the source: chances that add up, words that can be copied, and none from padding."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch

import maskwright as mw
from maskwright.models.gpt2_pair import to_gpt2_pair
from maskwright.models.onnx import export_onnx
from maskwright.models.pointer import Pointer
from maskwright.models.seq2seq import Seq2Seq, Seq2SeqConfig

if TYPE_CHECKING:
    from pathlib import Path

WORDS = 30


def copying(**changes: object) -> Seq2Seq:
    torch.manual_seed(0)
    settings = {"context": 16, "width": 16, "heads": 2, "layers": 1, "copies": True, **changes}
    return Seq2Seq(Seq2SeqConfig(WORDS, WORDS, **settings)).double().eval()  # type: ignore[arg-type]


def given() -> tuple[torch.Tensor, torch.Tensor, mw.Mask]:
    source = torch.randint(3, WORDS, (2, 7), generator=torch.Generator().manual_seed(1))
    target = torch.randint(3, WORDS, (2, 5), generator=torch.Generator().manual_seed(2))
    return source, target, mw.padding(lengths=[4, 7])


def test_an_open_gate_says_only_words_of_the_source_and_a_shut_one_any() -> None:
    torch.manual_seed(0)
    pointer = Pointer(8)
    source, seen = torch.tensor([[5, 6, 5, 9]]), torch.tensor([[True, True, True, False]])
    x, memory, logits = torch.randn(1, 2, 8), torch.randn(1, 4, 8), torch.randn(1, 2, 12)
    with torch.no_grad():
        pointer.gate.weight.zero_()
        pointer.gate.bias.fill_(40.0)
        open_ = pointer(x, memory, source, seen, logits).exp()
        pointer.gate.bias.fill_(-40.0)
        shut = pointer(x, memory, source, seen, logits).exp()
    torch.testing.assert_close(open_[..., [5, 6]].sum(-1), torch.ones(1, 2))
    torch.testing.assert_close(shut, logits.softmax(-1))


def test_chances_add_up_to_one_under_padding() -> None:
    source, target, real = given()
    found = copying()(source, target, real)
    torch.testing.assert_close(found.exp().sum(-1), torch.ones(2, 5, dtype=torch.float64))


def test_the_masks_are_obeyed() -> None:
    source, target, real = given()
    inputs = {"source": source, "target": target, "source_padding": real}
    expects = {"source": real, "target": mw.causal()}
    model = copying()
    with torch.no_grad():
        model.pointer.gate.bias.fill_(2.0)  # type: ignore[union-attr]
    mw.audit(model, inputs, expects=expects, probes=("leak", "reach", "gradient")).assert_ok()


def test_one_pass_equals_steps_greedily_and_by_beams() -> None:
    source, _, real = given()
    model = copying()
    said = model.greedy(source, real, most=6)
    begun = torch.cat([torch.full((2, 1), model.config.begin), said], dim=1)
    with torch.no_grad():
        whole = model(source, begun[:, :-1], real).argmax(-1)
    ended = (said == model.config.end).cumsum(1) > (said == model.config.end).long()
    assert (whole[~ended] == said[~ended]).all()
    torch.testing.assert_close(model.beam(source, real, beams=1, most=6), said)
    alone = model.beam(source[1:], beams=3, most=6)[0].tolist()
    both = model.beam(source, real, beams=3, most=6)[1].tolist()
    assert both[: len(alone)] == alone


def test_it_learns_to_copy_what_it_never_saw_written() -> None:
    """Half of the words are never a target in training. Who can't copy, can't write them."""
    model = copying().float().train()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    chance = torch.Generator().manual_seed(0)

    def loss(low: int, high: int) -> torch.Tensor:
        source = torch.randint(low, high, (32, 1), generator=chance)
        logits = model(source, torch.full((32, 1), model.config.begin))
        return torch.nn.functional.cross_entropy(logits[:, 0], source[:, 0])

    for _ in range(60):
        optimizer.zero_grad()
        loss(3, 16).backward()
        optimizer.step()
    assert float(loss(16, WORDS).detach()) < 0.5


def test_what_can_not_copy_is_told(tmp_path: Path) -> None:
    with pytest.raises(mw.ArgumentError, match="Give both the same vocabulary"):
        Seq2Seq(Seq2SeqConfig(20, 30, copies=True))
    with pytest.raises(mw.ArgumentError, match="Make it with copies=False"):
        export_onnx(copying().float(), tmp_path / "model.onnx")
    with pytest.raises(mw.ArgumentError, match="Make it with copies=False"):
        to_gpt2_pair(copying())
