"""The look-ahead mask in translation: one pass over a sentence is all of its steps at once."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

import maskwright as mw
from maskwright.models.seq2seq import Seq2Seq, Seq2SeqConfig

PAIRS = {
    "how are you": "cómo estás",
    "where are you": "dónde estás",
    "thank you": "gracias",
    "good night": "buenas noches",
}
PAD, BEGIN, END = 0, 1, 2
ENGLISH = ["<pad>", "<begin>", "<end>", *sorted({w for text in PAIRS for w in text.split()})]
SPANISH = ["<pad>", "<begin>", "<end>", *sorted({w for t in PAIRS.values() for w in t.split()})]
HOW = torch.tensor([[ENGLISH.index(word) for word in ("how", "are", "you")]])
COMO, ESTAS = SPANISH.index("cómo"), SPANISH.index("estás")


def fresh(mask: mw.Mask | None = None) -> Seq2Seq:
    torch.manual_seed(0)
    size = Seq2SeqConfig(len(ENGLISH), len(SPANISH), block_size=8, n_embd=16, n_head=2, n_layer=2)
    model = Seq2Seq(size, mask).double()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(5.0)  # new weights are small; larger ones learn four sentences sooner
    return model


def batch() -> tuple[Tensor, mw.Mask, Tensor, Tensor]:
    """The sources and their padding; the targets from <begin> on, and the same a word later."""
    sources = [[ENGLISH.index(word) for word in text.split()] for text in PAIRS]
    targets = [[SPANISH.index(word) for word in text.split()] for text in PAIRS.values()]
    source = mw.pad(sources, pad_id=PAD)
    given = mw.pad([[BEGIN, *target] for target in targets], pad_id=PAD)
    wanted = mw.pad([[*target, END] for target in targets], pad_id=PAD)
    ids = (torch.from_numpy(one.ids) for one in (source, given, wanted))
    first, second, third = ids
    return first, source.mask, second, third


@pytest.fixture(scope="module")
def learned() -> Seq2Seq:
    """A translator that has learned four sentences by heart, each in one pass."""
    model, (source, real, given, wanted) = fresh(), batch()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for _ in range(30):
        logits = model(source, given, real)
        loss = cross_entropy(logits.flatten(0, 1), wanted.flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval().requires_grad_(False)


def test_b9_step_by_step_predictions(learned: Seq2Seq) -> None:
    """Given nothing, the next word is "cómo"; given "cómo", "estás"; given both, the end."""
    for said, following in (([], COMO), ([COMO], ESTAS), ([COMO, ESTAS], END)):
        logits = learned(HOW, torch.tensor([[BEGIN, *said]]))
        assert int(logits[0, -1].argmax()) == following


def test_b9_one_pass_equals_steps(learned: Seq2Seq) -> None:
    """The whole target goes in at once, and every place answers as if nothing stood behind it."""
    target = torch.tensor([[BEGIN, COMO, ESTAS]])
    at_once = learned(HOW, target)
    assert at_once.argmax(-1).tolist() == [[COMO, ESTAS, END]]

    by_steps = [learned(HOW, target[:, :length])[:, -1] for length in (1, 2, 3)]
    torch.testing.assert_close(at_once, torch.stack(by_steps, dim=1))

    # With a cache every step reads one new word only, and that gives the same again.
    memory, caches = learned.encode(HOW), learned.new_kv_caches()
    new_words = [learned.decode(word, memory, kv_caches=caches) for word in target.split(1, dim=1)]
    torch.testing.assert_close(at_once, torch.cat(new_words, dim=1))


def test_b9_gradients_of_one_pass_equal_steps() -> None:
    """That is what the mask is for in training: one pass in place of three, with equal gradients."""
    target, wanted = torch.tensor([[BEGIN, COMO, ESTAS]]), torch.tensor([COMO, ESTAS, END])

    one = fresh()
    cross_entropy(one(HOW, target)[0], wanted).backward()

    three = fresh()
    for length in (1, 2, 3):
        last = three(HOW, target[:, :length])[0, -1]
        (cross_entropy(last, wanted[length - 1]) / 3).backward()

    for ours, theirs in zip(one.parameters(), three.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)


def test_b9_without_causal_mask_one_pass_differs() -> None:
    """If a place may look ahead, it answers differently once the words behind it are there.

    A model trained like that has read the answers, and has none to read when it translates.
    """
    target = torch.tensor([[BEGIN, COMO, ESTAS]])
    for mask, equal in ((mw.causal(), True), (mw.everything(), False)):
        model = fresh(mask).requires_grad_(False)
        at_once = model(HOW, target)
        by_steps = torch.stack([model(HOW, target[:, :n])[:, -1] for n in (1, 2, 3)], dim=1)
        assert torch.allclose(at_once, by_steps) is equal
        assert torch.allclose(at_once[:, -1], by_steps[:, -1])  # behind the last there is nothing


@pytest.mark.parametrize("beams", [1, 2, 4])
def test_b9_greedy_and_beam_search_agree_with_one_pass(learned: Seq2Seq, beams: int) -> None:
    """Sentences of different lengths in one batch, each word found from those before it.

    In one pass the right words so far are given, and in the search those that it found itself. As
    long as these are the right ones, there is no difference.
    """
    source, real, given, wanted = batch()
    at_once = learned(source, given, real).argmax(-1)
    assert torch.equal(at_once[wanted != PAD], wanted[wanted != PAD])
    assert torch.equal(learned.generate(source, src_padding=real), wanted)
    assert torch.equal(
        learned.beam_search(source, src_padding=real, num_beams=beams)[:, :3], wanted
    )
