from __future__ import annotations

import itertools

import pytest
import torch

import maskwright as mw
from maskwright.models.seq2seq import Seq2Seq, Seq2SeqConfig

TINY = Seq2SeqConfig(21, 6, context=16, width=24, heads=3, layers=2)


def model(seed: int = 0) -> Seq2Seq:
    torch.manual_seed(seed)
    made = Seq2Seq(TINY).double().eval()
    with torch.no_grad():
        for weight in made.parameters():
            weight.mul_(4.0)  # so that it has opinions
    return made


def given(batch: int = 3) -> tuple[torch.Tensor, mw.Mask]:
    source = torch.randint(3, 21, (batch, 7), generator=torch.Generator().manual_seed(2))
    return source, mw.padding(lengths=[4, 7, 5][:batch])


def test_the_three_masks() -> None:
    """The encoder sees the real source, the decoder its past, and in between the real source."""
    seq, (source, padding) = model(), given()
    target = torch.randint(3, 6, (3, 5))
    whole = seq(source, target, padding)
    spoilt = source.clone()
    spoilt[0, 4:] = 3
    torch.testing.assert_close(seq(spoilt, target, padding), whole)
    later = target.clone()
    later[:, 3:] = 3 + (later[:, 3:] - 2) % 3
    torch.testing.assert_close(seq(source, later, padding)[:, :3], whole[:, :3])
    touched = source.clone()
    touched[:, 1] = 3 + (touched[:, 1] - 2) % 18
    assert (seq(touched, target, padding) != whole).any(-1).all()


def test_one_pass_equals_steps_with_a_cache() -> None:
    seq, (source, padding) = model(), given()
    target = torch.randint(3, 6, (3, 6))
    memory, caches = seq.encode(source, padding), seq.new_caches()
    steps = [seq.decode(target[:, t : t + 1], memory, padding, caches=caches) for t in range(6)]
    torch.testing.assert_close(torch.cat(steps, dim=1), seq(source, target, padding))


def test_greedy_is_what_one_pass_says() -> None:
    seq, (source, padding) = model(), given()
    found = seq.greedy(source, padding, most=8)
    begun = torch.cat([torch.full((3, 1), TINY.begin), found], dim=1)
    said = seq(source, begun[:, :-1], padding).argmax(-1)
    for row, answer in zip(found, said, strict=True):
        ends = (row == TINY.end).nonzero()
        stop = int(ends[0]) + 1 if len(ends) else len(row)
        assert row[:stop].tolist() == answer[:stop].tolist()
        assert (row[stop:] == TINY.pad).all()


def test_one_beam_is_greedy() -> None:
    seq, (source, padding) = model(), given()
    assert torch.equal(
        seq.beam(source, padding, beams=1, most=8), seq.greedy(source, padding, most=8)
    )


@torch.no_grad()
def log_chance(seq: Seq2Seq, source: torch.Tensor, target: list[int]) -> float:
    begun = torch.tensor([[TINY.begin, *target]])
    chances = seq(source, begun[:, :-1]).log_softmax(-1)[0]
    return float(chances[torch.arange(len(target)), torch.tensor(target)].sum())


def sentences(most: int) -> list[list[int]]:
    """All of at most that length: they end with the end, or are cut."""
    words = [word for word in range(6) if word != TINY.end]
    cut = [list(s) for s in itertools.product(words, repeat=most)]
    ended = [[*s, TINY.end] for n in range(most) for s in itertools.product(words, repeat=n)]
    return cut + ended


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("power", [0.0, 1.0])
def test_enough_beams_find_the_best_sentence_of_all(seed: int, power: float) -> None:
    seq = model(seed)
    source = torch.randint(3, 21, (1, 5), generator=torch.Generator().manual_seed(seed))
    worth = {tuple(s): log_chance(seq, source, s) / len(s) ** power for s in sentences(3)}
    best = max(worth, key=worth.__getitem__)
    found = seq.beam(source, beams=6**3, most=3, length_power=power)[0].tolist()
    if TINY.end in found:
        found = found[: found.index(TINY.end) + 1]
    assert tuple(found) == best


def test_a_batch_of_beams_is_each_sentence_by_itself() -> None:
    seq, (source, padding) = model(1), given()
    together = seq.beam(source, padding, beams=3, most=8)
    for row, length in enumerate([4, 7, 5]):
        alone = seq.beam(source[row : row + 1, :length], beams=3, most=8)[0]
        stop = min(len(alone), together.shape[1])
        assert together[row, :stop].tolist() == alone[:stop].tolist()


def test_the_decoder_obeys_its_masks() -> None:
    torch.manual_seed(0)
    seq = Seq2Seq(TINY)
    source, _ = given(2)
    target = torch.randint(3, 6, (2, 9))
    report = mw.audit(
        lambda ids: seq(source, ids), target, expects="causal", probes=["leak", "reach"]
    )
    report.assert_ok()


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(mw.ArgumentError, match="17 tokens but the context is 16"):
        Seq2Seq(TINY).encode(torch.zeros(1, 17, dtype=torch.long))
    with pytest.raises(mw.ArgumentError, match="beams=0 follows nothing"):
        Seq2Seq(TINY).beam(torch.zeros(1, 3, dtype=torch.long), beams=0)
