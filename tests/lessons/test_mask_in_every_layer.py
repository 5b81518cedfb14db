"""One mask for all layers: what leaks, and how much, where only the first ones have it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import maskwright as mw
from maskwright.models.bert import Bert, BertConfig

LAYERS = 4
PAD, I, LIKE, COFFEE, TEA = range(5)  # noqa: E741 - it is a word
REAL = mw.padding(lengths=[3])


def reader(masked: int) -> Bert:
    """An encoder that has its mask in the first `masked` layers; the others drop it."""
    torch.manual_seed(0)
    model = Bert(
        BertConfig(vocab_size=20, block_size=8, n_embd=16, n_head=2, n_layer=LAYERS)
    ).double()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(4.0)  # new weights are small, and so would be what they let through

    def drop_the_mask(_: Any, given: tuple[Any, ...]) -> tuple[Any, ...]:
        return given[0], mw.everything().on(given[0].shape[1], batch=len(given[0]), heads=2)

    for block in model.blocks[masked:]:
        block.register_forward_pre_hook(drop_the_mask)
    return model.eval().requires_grad_(False)


def after_each_layer(model: Bert, ids: list[int]) -> list[Tensor]:
    """The hidden states of the first three words, the real ones, after each layer."""
    found: list[Tensor] = []
    hooks = [
        block.register_forward_hook(lambda _, __, out: found.append(out[0, :3]))
        for block in model.blocks
    ]
    model(torch.tensor([ids]), REAL)
    for hook in hooks:
        hook.remove()
    return found


def leaks(model: Bert) -> list[float]:
    """How far the real words of "I like coffee <PAD>" move when <PAD> is another token."""
    pairs = zip(
        after_each_layer(model, [I, LIKE, COFFEE, PAD]),
        after_each_layer(model, [I, LIKE, COFFEE, 19]),
        strict=True,
    )
    return [float((one - other).abs().max()) for one, other in pairs]


@pytest.mark.parametrize("masked", range(LAYERS + 1))
def test_b10_leak_starts_at_the_first_unmasked_layer(masked: int) -> None:
    """Up to the last layer that has the mask nothing leaks, and from the next one on something does.

    The filler is still there after a layer that hides it, as a vector in its own place. So what a
    layer hides is safe in that layer only.
    """
    assert [leak > 0.01 for leak in leaks(reader(masked))] == [n >= masked for n in range(LAYERS)]
    assert leaks(reader(masked))[:masked] == [0.0] * masked


def test_b10_leak_grows_with_layers() -> None:
    """Measured beside a change that should matter: "coffee" becoming "tea", seen from "I like".

    With the mask in the first of four layers only, what the filler holds moves the real words
    after the second, and more after each layer. In the end that is a tenth of what a real word
    does, or more.
    """
    model = reader(masked=1)
    found = leaks(model)
    assert found == sorted(found)
    assert found[3] > 2 * found[1] > 0

    coffee, tea = (after_each_layer(model, [I, LIKE, drink, PAD])[-1] for drink in (COFFEE, TEA))
    real = float((coffee - tea)[:2].abs().max())
    assert 0.1 * real < found[3] < real


def test_b10_output_depends_on_amount_of_padding() -> None:
    """Filled up by 1, 2 or 5 places, the same sentence gives three results; with the mask, one."""

    def result(model: Bert, fill: int) -> Tensor:
        return model(torch.tensor([[I, LIKE, COFFEE, *[PAD] * fill]]), REAL)[0, :3]

    whole, first_only = reader(masked=LAYERS), reader(masked=1)
    alone = result(whole, 0)
    torch.testing.assert_close(result(first_only, 0), alone)  # nothing to hide, nothing to miss
    for fill in (1, 2, 5):
        torch.testing.assert_close(result(whole, fill), alone)
        assert float((result(first_only, fill) - alone).abs().max()) > 0.1


def test_b10_trace_and_audit_find_the_layer() -> None:
    ids, real = torch.tensor([[I, LIKE, COFFEE, PAD]] * 2), mw.padding(lengths=[3, 3])
    masks = [call.mask for call in mw.trace(reader(masked=2), ids, real)]
    assert masks[:2] == [REAL, REAL]
    assert masks[2:] == [mw.everything(), mw.everything()]

    given = {"ids": ids, "padding": real}
    report = mw.audit(reader(masked=2).float(), given, expects=real, probes=["leak", "reach"])
    assert (report.cause, report.layer) == ("missing-in-layer", "blocks.2.attn")
    whole = reader(masked=LAYERS).float()
    mw.audit(whole, given, expects=real, probes=["leak", "reach"]).assert_ok()
