"""An encoder-decoder: which of its three attentions takes which mask, and who makes it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import maskwright as mw
from maskwright.models.bert import Bert, BertConfig
from maskwright.models.gpt import GPT, GPTConfig
from maskwright.models.seq2seq import Seq2Seq, Seq2SeqConfig

WORDS = 12
REAL_SOURCE, REAL_TARGET = mw.padding(lengths=[3, 5]), mw.padding(lengths=[4, 2])


def translator(mask: mw.Mask | None = None) -> Seq2Seq:
    torch.manual_seed(0)
    size = Seq2SeqConfig(WORDS, WORDS, block_size=8, n_embd=16, n_head=2, n_layer=2)
    return Seq2Seq(size, mask).double().eval().requires_grad_(False)


def sentences() -> tuple[Tensor, Tensor]:
    """Two sources of 3 and 5 words in 5 places, and two targets of 4 and 2 words in 4."""
    chance = torch.Generator().manual_seed(1)
    source, target = (torch.randint(3, WORDS, (2, n), generator=chance) for n in (5, 4))
    source[0, 3:], target[1, 2:] = 0, 0
    return source, target


def replaced(ids: Tensor, place: int) -> Tensor:
    """The same sentences with another word in one place."""
    other = ids.clone()
    other[:, place] = (other[:, place] + 1) % WORDS
    return other


def moved(before: Tensor, after: Tensor) -> list[list[bool]]:
    """Which outputs, by sentence and place, are no longer what they were."""
    found: list[list[bool]] = ((before - after).abs().amax(-1) > 1e-12).tolist()
    return found


def test_b4_traced_masks() -> None:
    """Encoder: the source's padding. Decoder: causal and its padding. Cross: the source's again.

    Cross-attention has a rectangle: its queries are target words, and its keys are source words.
    """
    trace = mw.trace(translator(), *sentences(), REAL_SOURCE, REAL_TARGET)
    assert {call.layer: call.mask for call in trace} == {
        "encoder.blocks.0.attn": REAL_SOURCE,
        "encoder.blocks.1.attn": REAL_SOURCE,
        "decoder.blocks.0.attn": mw.causal() & REAL_TARGET,
        "decoder.blocks.0.cross_attn": REAL_SOURCE,
        "decoder.blocks.1.attn": mw.causal() & REAL_TARGET,
        "decoder.blocks.1.cross_attn": REAL_SOURCE,
    }
    assert [call.visible.shape[2:] for call in trace if call.cross] == [(4, 5), (4, 5)]


def test_b4_outputs_depend_on_real_source_and_past() -> None:
    """The same without looking inside: put in another word, and see which outputs move.

    A source word moves all outputs of its sentence, or none if it is filler. A target word moves
    the outputs from its own place on, or only its own if it is filler: that one reads it as input.
    """
    model, (source, target) = translator(), sentences()
    before = model(source, target, REAL_SOURCE, REAL_TARGET)

    for place in range(5):
        after = model(replaced(source, place), target, REAL_SOURCE, REAL_TARGET)
        assert moved(before, after) == [[place < 3] * 4, [place < 5] * 4]

    for place in range(4):
        after = model(source, replaced(target, place), REAL_SOURCE, REAL_TARGET)
        later = [query >= place for query in range(4)]
        itself = [query == place for query in range(4)]
        assert moved(before, after) == [later, later if place < 2 else itself]


def test_b4_audit() -> None:
    source, target = sentences()
    given = {"src": source, "tgt": target, "src_padding": REAL_SOURCE}
    expects, probes = {"src": REAL_SOURCE, "tgt": mw.causal()}, ["leak", "reach", "gradient"]
    mw.audit(translator().float(), given, expects=expects, probes=probes).assert_ok()

    cheat = mw.audit(translator(mw.everything()).float(), given, expects=expects, probes=probes)
    assert {finding.probe for finding in cheat.findings} >= {"leak"}
    assert cheat.layer == "decoder.blocks.0.attn"


def test_b4_source_mask_in_encoder_and_cross_attention() -> None:
    """Leave it out of the encoder, and filler is mixed into real words, which cross then reads.

    Leave it out of cross-attention, and the decoder reads the filler itself. One does not stand in
    for the other.
    """
    model, (source, target) = translator(), sentences()

    def outputs(ids: Tensor, encoder: mw.Mask | None, cross: mw.Mask | None) -> Tensor:
        return model.decode(target, model.encode(ids, encoder), cross)

    filler = replaced(source, 4)  # filler in the first sentence, a real word in the second
    for encoder, cross, leaks in (
        (REAL_SOURCE, REAL_SOURCE, False),
        (None, REAL_SOURCE, True),
        (REAL_SOURCE, None, True),
    ):
        before, after = (outputs(ids, encoder, cross) for ids in (source, filler))
        assert moved(before, after)[0] == [leaks] * 4


def test_b5_model_makes_its_causal_mask() -> None:
    """Nobody hands a lower triangle to a decoder: it depends on nothing but how many words there are.

    The padding can't be made so. Which words are real is known to those who have the sentences.
    """
    torch.manual_seed(0)
    model = GPT(GPTConfig(WORDS, block_size=8, n_embd=16, n_head=2, n_layer=2))
    for length in range(1, 9):
        first, second = torch.randint(WORDS, (2, 1, length))
        triangle = torch.ones(length, length).tril().bool().numpy()
        for ids in (first, second):
            for call in mw.trace(model, ids):
                assert (call.visible[0, 0] == triangle).all()


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_b5_caller_passes_padding(kind: str) -> None:
    """With it, filler has no say, and a sentence means what it means alone."""
    torch.manual_seed(0)
    size = {"vocab_size": WORDS, "block_size": 8, "n_embd": 16, "n_head": 2, "n_layer": 2}
    model = Bert(BertConfig(**size)) if kind == "encoder" else GPT(GPTConfig(**size))
    model = model.double().requires_grad_(False)
    ids = sentences()[0]

    own = REAL_SOURCE if kind == "encoder" else mw.causal() & REAL_SOURCE
    assert [call.mask for call in mw.trace(model, ids, REAL_SOURCE)] == [own, own]

    together = model(ids, REAL_SOURCE)
    torch.testing.assert_close(together[:1, :3], model(ids[:1, :3]))
    torch.testing.assert_close(together[1:], model(ids[1:]))


def test_b5_causal_mask_covers_right_padding_only() -> None:
    """Filler behind a sentence lies in its future, so that a decoder never looks at it anyway.

    In front of it, it lies in the past, and needs a padding mask, with positions that start after it.
    """
    torch.manual_seed(0)
    model = GPT(GPTConfig(WORDS, block_size=8, n_embd=16, n_head=2, n_layer=2)).double()
    model.requires_grad_(False)
    alone, filler = torch.randint(1, WORDS, (1, 3)), torch.zeros(1, 2, dtype=torch.long)
    wanted = model(alone)

    torch.testing.assert_close(model(torch.cat([alone, filler], 1))[:, :3], wanted)

    in_front = torch.cat([filler, alone], 1)
    positions = torch.tensor([[0, 0, 0, 1, 2]])
    told = model(in_front, mw.padding(keep=[[0, 0, 1, 1, 1]]), positions=positions)
    torch.testing.assert_close(told[:, 2:], wanted)
    untold = model(in_front, positions=positions)
    assert not torch.allclose(untold[:, 2:], wanted)
