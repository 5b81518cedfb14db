from __future__ import annotations

import pytest
import torch

import maskwright as mw
from maskwright.models.gpt import GPT, BabyGPT, GPTConfig
from maskwright.models.sampling import Sampling

TINY = GPTConfig(vocabulary=31, context=24, width=24, heads=3, layers=2)


def model(mask: mw.Mask | None = None) -> GPT:
    torch.manual_seed(0)
    return GPT(TINY, mask).double().eval()


def ids(batch: int = 2, tokens: int = 12) -> torch.Tensor:
    return torch.randint(31, (batch, tokens), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("mask", [None, mw.window(back=3), mw.causal() | mw.prefix(4)], ids=repr)
@pytest.mark.parametrize("pieces", [[1] * 12, [5, 7], [11, 1]])
def test_one_pass_equals_steps_with_a_cache(mask: mw.Mask | None, pieces: list[int]) -> None:
    gpt = model(mask)
    if mask is not None and "prefix" in repr(mask) and pieces[0] < 4:
        return  # a prefix sees itself in both directions, and has to come at once
    caches = gpt.new_caches()
    parts = [gpt(part, caches=caches) for part in ids().split(pieces, dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), gpt(ids()))


def test_the_causal_mask_is_the_models_own() -> None:
    gpt, given = model(), ids()
    other = given.clone()
    other[:, 8:] = 0
    torch.testing.assert_close(gpt(other)[:, :8], gpt(given)[:, :8])
    assert not torch.allclose(gpt(other)[:, 8:], gpt(given)[:, 8:])


def test_padding_on_the_left_with_its_positions_changes_nothing() -> None:
    gpt, given = model(), ids(1, 6)
    padded = torch.cat([torch.zeros(1, 4, dtype=torch.long), given], dim=1)
    keep = torch.tensor([[0] * 4 + [1] * 6])
    positions = (keep.cumsum(1) - 1).clamp(min=0)
    found = gpt(padded, mw.padding(keep=keep.numpy()), positions=positions)
    torch.testing.assert_close(found[:, 4:], gpt(given))


@pytest.mark.parametrize("kind", [GPT, BabyGPT])
@pytest.mark.parametrize("heads", [1, 3])
def test_every_model_obeys_its_mask(kind: type[GPT | BabyGPT], heads: int) -> None:
    torch.manual_seed(0)
    config = GPTConfig(vocabulary=31, context=24, width=24, heads=heads, layers=2)
    report = mw.audit(kind(config), ids(2, 16), expects="causal", probes=["leak", "reach"])
    report.assert_ok()


def test_another_mask_is_obeyed_too() -> None:
    report = mw.audit(
        model(mw.window(back=3)).float(), ids(2, 16), expects=mw.window(back=3), probes=["leak"]
    )
    report.assert_ok()
    cheat = mw.audit(model(mw.everything()).float(), ids(2, 16), expects="causal", probes=["leak"])
    assert not cheat.ok


def test_every_layer_is_given_the_same_mask_object() -> None:
    gpt = model()
    given = []
    for block in gpt.blocks:
        block.register_forward_pre_hook(lambda _, args: given.append(args[1]))
    gpt(ids())
    assert len(given) == 2
    assert given[0] is given[1]


def test_greedy_generation_is_what_one_pass_says() -> None:
    gpt, start = model(), ids(2, 5)
    found = gpt.generate(start, 10, Sampling(temperature=0))
    assert torch.equal(found[:, :5], start)
    assert torch.equal(found[:, 5:], gpt(found[:, :-1]).argmax(-1)[:, 4:])


def test_generation_goes_on_beyond_the_context() -> None:
    assert model().generate(ids(1, 20), 30, Sampling(seed=0)).shape == (1, 50)
    baby = BabyGPT(TINY)
    assert baby.generate(ids(1, 20), 30, Sampling(seed=0)).shape == (1, 50)


def test_a_seed_gives_the_same_text_and_another_seed_another() -> None:
    gpt = model()
    one, same, other = (gpt.generate(ids(1, 3), 15, Sampling(seed=s)) for s in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_a_stop_ends_its_row_and_then_all() -> None:
    gpt = model()
    free = gpt.generate(ids(2, 4), 12, Sampling(temperature=0))
    stop = int(free[0, 5])
    found = gpt.generate(ids(2, 4), 12, Sampling(temperature=0), stop=stop)
    first = (found[0] == stop).nonzero()[0 if stop not in ids(2, 4)[0] else -1].item()
    assert (found[0, int(first) :] == stop).all()


def test_too_many_tokens_are_refused() -> None:
    for kind in (GPT(TINY), BabyGPT(TINY)):
        with pytest.raises(mw.ArgumentError, match="25 tokens but the context is 24"):
            kind(torch.zeros(1, 25, dtype=torch.long))
    with pytest.raises(mw.ArgumentError, match="context is 24"):
        GPT(TINY).generate(torch.zeros(1, 25, dtype=torch.long), 1)
