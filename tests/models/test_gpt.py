from __future__ import annotations

import pytest
import torch

import maskwright as mw
from maskwright.models.gpt import GPT, BabyGPT, GPTConfig

TINY = GPTConfig(vocab_size=31, block_size=24, n_layer=2, n_head=3, n_embd=24)


def make_model(mask: mw.Mask | None = None) -> GPT:
    torch.manual_seed(0)
    return GPT(TINY, mask).double().eval()


def make_ids(batch: int = 2, tokens: int = 12) -> torch.Tensor:
    return torch.randint(31, (batch, tokens), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("mask", "pieces"),
    [
        *((mask, pieces) for mask in (None, mw.window(back=3)) for pieces in ([1] * 12, [5, 7])),
        (mw.causal() | mw.prefix(4), [5, 7]),  # the prefix, bidirectional, is in the first piece
        (mw.causal() | mw.prefix(4), [11, 1]),
    ],
    ids=repr,
)
def test_steps_with_kv_caches_equal_one_pass(mask: mw.Mask | None, pieces: list[int]) -> None:
    model, ids = make_model(mask), make_ids()
    caches = model.new_kv_caches()
    parts = [model(part, kv_caches=caches) for part in ids.split(pieces, dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), model(ids))


def test_left_padding_with_positions_does_not_change_logits() -> None:
    model, ids = make_model(), make_ids(1, 6)
    padded = torch.cat([torch.zeros(1, 4, dtype=torch.long), ids], dim=1)
    keep = torch.tensor([[0] * 4 + [1] * 6])
    positions = (keep.cumsum(1) - 1).clamp(min=0)
    logits = model(padded, mw.padding(keep=keep.numpy()), positions=positions)
    torch.testing.assert_close(logits[:, 4:], model(ids))


@pytest.mark.parametrize("kind", [GPT, BabyGPT])
@pytest.mark.parametrize("n_head", [1, 3])
def test_models_are_causal(kind: type[GPT | BabyGPT], n_head: int) -> None:
    torch.manual_seed(0)
    model = kind(GPTConfig(vocab_size=31, block_size=24, n_layer=2, n_head=n_head, n_embd=24))
    mw.audit(model, make_ids(2, 16), expects="causal", probes=["leak", "reach"]).assert_ok()


def test_another_mask_replaces_the_causal_one() -> None:
    window = mw.window(back=3)
    ids = make_ids(2, 16)
    mw.audit(make_model(window).float(), ids, expects=window, probes=["leak"]).assert_ok()
    leaking = make_model(mw.everything()).float()
    assert not mw.audit(leaking, ids, expects="causal", probes=["leak"]).ok


def test_every_layer_gets_the_same_mask_object() -> None:
    model, masks = make_model(), []
    for block in model.blocks:
        block.register_forward_pre_hook(lambda _, args: masks.append(args[1]))
    model(make_ids(), mw.padding(lengths=[7, 12]))
    assert len(masks) == 2
    assert masks[0] is masks[1]


def test_lm_head_is_tied_to_the_token_embedding() -> None:
    model = make_model()
    assert model.lm_head.weight is model.token_embedding.weight


def test_greedy_generation_equals_one_pass() -> None:
    model, prompt = make_model(), make_ids(2, 5)
    ids = model.generate(prompt, 10, temperature=0)
    assert torch.equal(ids[:, :5], prompt)
    assert torch.equal(ids[:, 5:], model(ids[:, :-1]).argmax(-1)[:, 4:])


@pytest.mark.parametrize("kind", [GPT, BabyGPT])
def test_generation_continues_beyond_block_size(kind: type[GPT | BabyGPT]) -> None:
    assert kind(TINY).generate(make_ids(1, 20), 30, seed=0).shape == (1, 50)


def test_generation_is_reproducible_by_its_seed() -> None:
    model = make_model()
    one, same, other = (model.generate(make_ids(1, 3), 15, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(one, same)
    assert not torch.equal(one, other)


def test_generation_ends_when_all_rows_have_the_stop_token() -> None:
    model, prompt = make_model(), make_ids(2, 4)
    free = model.generate(prompt, 12, temperature=0)[:, 4:]
    stop = int(free[0, 1])
    ids = model.generate(prompt, 12, temperature=0, stop_token=stop)[:, 4:]
    for row, unstopped in zip(ids.tolist(), free.tolist(), strict=True):
        end = unstopped.index(stop) if stop in unstopped else len(row)
        assert row[:end] == unstopped[:end]
        assert set(row[end:]) <= {stop}
    ends = [row.index(stop) if stop in row else 11 for row in free.tolist()]
    assert ids.shape[1] == max(ends) + 1


def test_more_tokens_than_block_size_raise() -> None:
    ids = torch.zeros(1, 25, dtype=torch.long)
    for call in (GPT(TINY), BabyGPT(TINY), lambda ids: GPT(TINY).generate(ids, 1)):
        with pytest.raises(mw.ArgumentError, match="25 tokens, but block_size is 24"):
            call(ids)
