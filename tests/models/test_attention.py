from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import maskwright as mw
from maskwright.models.attention import KVCache, MultiHeadAttention, NaiveMultiHeadAttention

MASKS = (
    mw.causal(),
    mw.everything(),
    mw.window(back=2),
    mw.causal() & mw.padding(lengths=[3, 7]),
    mw.causal() & ~mw.keys([0]),  # the first row is fully masked
    mw.nothing(),
)


def make_layers(
    n_embd: int = 12, n_head: int = 3
) -> tuple[NaiveMultiHeadAttention, MultiHeadAttention]:
    torch.manual_seed(0)
    naive = NaiveMultiHeadAttention(n_embd, n_head)
    fast = MultiHeadAttention(n_embd, n_head, bias=False)
    fast.load_from_naive(naive)
    return naive.double(), fast.double()


@pytest.mark.parametrize("mask", MASKS, ids=repr)
def test_fast_attention_equals_the_textbook_version(mask: mw.Mask) -> None:
    naive, fast = make_layers()
    x = torch.randn(2, 7, 12, dtype=torch.float64, requires_grad=True)
    other = x.detach().clone().requires_grad_()
    expected, found = naive(x, mask), fast(other, mask)
    torch.testing.assert_close(found, expected)
    expected.square().sum().backward()
    found.square().sum().backward()
    torch.testing.assert_close(other.grad, x.grad)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 3), st.integers(1, 9), st.integers(1, 4), st.integers(1, 3))
def test_both_versions_agree_on_all_shapes(
    batch: int, tokens: int, n_head: int, head_dim: int
) -> None:
    naive, fast = make_layers(n_head * head_dim, n_head)
    x = torch.randn(batch, tokens, n_head * head_dim, dtype=torch.float64)
    torch.testing.assert_close(fast(x, mw.causal()), naive(x, mw.causal()))


@pytest.mark.parametrize("mask", [mw.causal(), mw.window(back=2)], ids=repr)
@pytest.mark.parametrize("pieces", [[7], [1] * 7, [3, 4], [5, 1, 1]])
def test_steps_with_a_kv_cache_equal_one_pass(mask: mw.Mask, pieces: list[int]) -> None:
    layer = MultiHeadAttention(12, 3).double()
    x = torch.randn(2, 7, 12, dtype=torch.float64)
    cache = KVCache()
    parts = [layer(part, mask, kv_cache=cache) for part in x.split(pieces, dim=1)]
    torch.testing.assert_close(torch.cat(parts, dim=1), layer(x, mask))
    assert len(cache) == 7


def test_cross_attention_caches_the_memory_and_ignores_padding() -> None:
    layer = MultiHeadAttention(12, 3).double()
    x, memory = (torch.randn(2, n, 12, dtype=torch.float64) for n in (4, 6))
    mask = mw.padding(lengths=[3, 6])
    expected = layer(x, mask, memory=memory)
    cache = KVCache()
    steps = [layer(x[:, t : t + 1], mask, memory=memory, kv_cache=cache) for t in range(4)]
    torch.testing.assert_close(torch.cat(steps, dim=1), expected)
    assert len(cache) == 6
    changed = memory.clone()
    changed[0, 3:] = 99.0
    torch.testing.assert_close(layer(x, mask, memory=changed), expected)


def test_kv_cache_reorders_rows() -> None:
    cache = KVCache()
    cache.reorder(torch.tensor([0]))
    cache.update(torch.arange(3.0).reshape(3, 1, 1, 1), torch.arange(3.0).reshape(3, 1, 1, 1))
    cache.reorder(torch.tensor([2, 2, 0]))
    assert cache.k is not None
    assert cache.k.flatten().tolist() == [2, 2, 0]


def test_dropout_is_active_in_training_only() -> None:
    layer = MultiHeadAttention(12, 3, dropout=0.5)
    x = torch.randn(1, 6, 12)
    torch.testing.assert_close(layer.eval()(x, mw.causal()), layer(x, mw.causal()))
    assert not torch.equal(layer.train()(x, mw.causal()), layer(x, mw.causal()))


@pytest.mark.parametrize("kind", [NaiveMultiHeadAttention, MultiHeadAttention])
def test_n_embd_must_be_divisible_by_n_head(kind: type) -> None:
    with pytest.raises(mw.ArgumentError, match=r"n_embd=10 .* n_head=3"):
        kind(10, 3)


def grown(cache: KVCache, pieces: list[torch.Tensor]) -> torch.Tensor:
    for piece in pieces:
        k, v = cache.update(piece, -piece)
        assert k is cache.k
        assert torch.equal(v, -k)
    assert cache.k is not None
    return cache.k


@pytest.mark.parametrize("pieces", [[3, 1, 1], [1] * 150, [70, 60, 1, 1], [0, 1, 0, 200, 1]])
def test_kv_cache_appends_without_moving_old_tokens(pieces: list[int]) -> None:
    x = torch.randn(2, 3, sum(pieces), 4)
    cache = KVCache()
    assert torch.equal(grown(cache, list(x.split(pieces, dim=2))), x)
    cache.update(x[:, :, :1], x[:, :, :1])
    before = cache.k
    cache.update(x[:, :, :1], x[:, :, :1])
    assert before is not None
    assert cache.k is not None
    assert before.data_ptr() == cache.k.data_ptr()  # written in place


def test_copies_of_a_kv_cache_are_independent() -> None:
    x = torch.randn(1, 1, 6, 2)
    cache = KVCache()
    grown(cache, list(x[:, :, :4].split(1, dim=2)))
    other, deep = copy.copy(cache), copy.deepcopy(cache)
    assert torch.equal(grown(other, [x[:, :, 4:5]]), x[:, :, :5])
    assert torch.equal(grown(cache, [x[:, :, 5:6]]), x[:, :, [0, 1, 2, 3, 5]])
    assert torch.equal(grown(deep, [x[:, :, 4:6]]), x)
    assert torch.equal(other.k, x[:, :, :5])


def test_kv_cache_after_reorder_rollback_and_inference_mode() -> None:
    x = torch.randn(2, 1, 8, 2)
    cache = KVCache()
    grown(cache, list(x[:, :, :5].split(1, dim=2)))
    cache.reorder(torch.tensor([1, 0]))
    assert torch.equal(grown(cache, [x[[1, 0], :, 5:6]]), x[[1, 0], :, :6])
    cache.k, cache.v = cache.k[:, :, :3], cache.v[:, :, :3]
    assert torch.equal(grown(cache, [x[[1, 0], :, 3:5]]), x[[1, 0], :, :5])
    with torch.inference_mode():
        grown(cache, list(x[[1, 0], :, 5:7].split(1, dim=2)))
    with torch.no_grad():
        assert torch.equal(grown(cache, [x[[1, 0], :, 7:]]), x[[1, 0]])


def test_kv_cache_keeps_gradients_and_refuses_another_dtype() -> None:
    x = torch.randn(1, 1, 3, 2, requires_grad=True)
    cache = KVCache()
    grown(cache, list(x.split(1, dim=2))).sum().backward()
    assert torch.equal(x.grad, torch.ones_like(x))
    with torch.no_grad(), pytest.raises(mw.ArgumentError, match="bfloat16"):
        cache.update(x.bfloat16(), x.bfloat16())
