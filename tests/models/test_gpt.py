from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import maskwright as mw
from maskwright.models.gpt import GPT, BabyGPT, GPTConfig

TINY = GPTConfig(vocab_size=31, block_size=24, n_layer=2, n_head=3, n_embd=24)


POSITIONS = ("learned", "alibi", "t5")


def make_model(mask: mw.Mask | None = None, position: str = "learned") -> GPT:
    torch.manual_seed(0)
    model = GPT(replace(TINY, position=position), mask).double().eval()
    if position == "t5":  # larger than at first, so that it shows
        torch.nn.init.normal_(model.relative_position_bias.weight)
    return model


def make_ids(batch: int = 2, tokens: int = 12) -> torch.Tensor:
    return torch.randint(31, (batch, tokens), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize(
    ("mask", "pieces"),
    [
        *((mask, pieces) for mask in (None, mw.window(back=3)) for pieces in ([1] * 12, [5, 7])),
        (mw.causal() | mw.prefix(4), [5, 7]),  # the prefix, bidirectional, is in the first piece
        (mw.causal() | mw.prefix(4), [11, 1]),
    ],
    ids=repr,
)
def test_steps_with_kv_caches_equal_one_pass(
    mask: mw.Mask | None, pieces: list[int], position: str
) -> None:
    model, ids = make_model(mask, position), make_ids()
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


@pytest.mark.parametrize("position", POSITIONS)
def test_greedy_generation_equals_one_pass(position: str) -> None:
    model, prompt = make_model(position=position), make_ids(2, 5)
    ids = model.generate(prompt, 10, temperature=0)
    assert torch.equal(ids[:, :5], prompt)
    assert torch.equal(ids[:, 5:], model(ids[:, :-1]).argmax(-1)[:, 4:])


@pytest.mark.parametrize("kind", [GPT, BabyGPT])
def test_generation_continues_beyond_block_size(kind: type[GPT | BabyGPT]) -> None:
    assert kind(TINY).generate(make_ids(1, 20), 30, seed=0).shape == (1, 50)


@pytest.mark.parametrize("position", ["alibi", "t5"])
def test_block_size_is_no_limit_without_position_embeddings(position: str) -> None:
    model, prompt = make_model(position=position), make_ids(1, 30)
    ids = model.generate(prompt, 40, temperature=0)
    assert ids.shape == (1, 70)
    assert torch.equal(ids[:, 30:], model(ids[:, :-1]).argmax(-1)[:, 29:])


def test_alibi_equals_attention_with_its_bias() -> None:
    """A dense computation of the first layer, with the slopes 2^-2, 2^-4 … of 3 heads."""
    model, ids = make_model(position="alibi"), make_ids(1, 7)
    assert not any("position" in name for name in model.state_dict())
    block = model.blocks[0]
    x = block.ln_1(model.token_embedding(ids))
    q, k, v = (
        proj(x).unflatten(-1, (3, -1)).transpose(1, 2)
        for proj in (block.attn.q_proj, block.attn.k_proj, block.attn.v_proj)
    )
    distance = (torch.arange(7)[:, None] - torch.arange(7)).double()
    slopes = torch.tensor([2**-4, 2**-8, 2**-2]).double()  # Bloom's for 3 heads
    scores = q @ k.mT / 8**0.5 - slopes[:, None, None] * distance
    scores = scores.masked_fill(distance < 0, -torch.inf)
    expected = block.attn.out_proj((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
    actual = block.attn(
        block.ln_1(model.token_embedding(ids)), model.mask, bias=model.position_bias()
    )
    torch.testing.assert_close(actual, expected)


def test_t5_table_is_shared_and_learned() -> None:
    model, ids = make_model(position="t5"), make_ids()
    model(ids).square().mean().backward()
    grad = model.relative_position_bias.weight.grad
    assert grad is not None
    assert grad.shape == (32, 3)
    used = grad.abs().sum(1) > 0
    assert used[:12].all()  # distances 0 to 11
    assert not used[12:].any()


@pytest.mark.parametrize("position", ["alibi", "t5"])
def test_left_padding_needs_no_positions(position: str) -> None:
    model, ids = make_model(position=position), make_ids(1, 6)
    padded = torch.cat([torch.zeros(1, 4, dtype=torch.long), ids], dim=1)
    padding = mw.padding(keep=[[0] * 4 + [1] * 6])
    torch.testing.assert_close(model(padded, padding)[:, 4:], model(ids))
    with pytest.raises(mw.ArgumentError, match="positions"):
        model(ids, positions=torch.arange(6))


def test_unknown_position_raises() -> None:
    with pytest.raises(mw.ArgumentError, match="position"):
        GPT(replace(TINY, position="rotary"))
    with pytest.raises(mw.ArgumentError, match="position"):
        BabyGPT(replace(TINY, position="alibi"))


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


def test_generation_under_a_mask_is_that_of_a_model_with_both_masks() -> None:
    prefix_lm, near, prompt = mw.causal() | mw.prefix(3), mw.window(back=2, ahead=2), make_ids(1, 5)
    both, one = make_model(prefix_lm & near), make_model(near)
    assert not torch.allclose(both(prompt), one(prompt))
    found = one.generate(prompt, 8, temperature=0, mask=prefix_lm)
    assert torch.equal(found, both.generate(prompt, 8, temperature=0))
