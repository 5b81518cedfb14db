from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import maskwright as mw
from maskwright.models.attention import Cache, Head, Heads, MultiHeadAttention

MASKS = (
    mw.causal(),
    mw.everything(),
    mw.window(back=2),
    mw.causal() & mw.padding(lengths=[3, 7]),
    mw.causal() & ~mw.keys([0]),  # the first row sees nothing
    mw.nothing(),
)


def pair(width: int = 12, heads: int = 3) -> tuple[Heads, MultiHeadAttention]:
    torch.manual_seed(0)
    textbook, fast = Heads(width, heads), MultiHeadAttention(width, heads, bias=False)
    fast.take_from(textbook)
    return textbook.double(), fast.double()


@pytest.mark.parametrize("mask", MASKS, ids=repr)
def test_the_fast_form_is_the_textbooks(mask: mw.Mask) -> None:
    textbook, fast = pair()
    x = torch.randn(2, 7, 12, dtype=torch.float64, requires_grad=True)
    other = x.detach().clone().requires_grad_()
    theirs, ours = textbook(x, mask), fast(other, mask)
    torch.testing.assert_close(ours, theirs)
    theirs.square().sum().backward()
    ours.square().sum().backward()
    torch.testing.assert_close(other.grad, x.grad)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 3), st.integers(1, 9), st.integers(1, 4), st.integers(1, 3))
def test_both_forms_agree_on_all_shapes(batch: int, tokens: int, heads: int, size: int) -> None:
    textbook, fast = pair(heads * size, heads)
    x = torch.randn(batch, tokens, heads * size, dtype=torch.float64)
    torch.testing.assert_close(fast(x, mw.causal()), textbook(x, mw.causal()))


def test_a_head_scales_masks_and_shares_out() -> None:
    head = Head(8, 4)
    x = torch.randn(2, 5, 8)
    q, k, v = head.query(x), head.key(x), head.value(x)
    theirs = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.testing.assert_close(head(x, mw.causal()), theirs)


@pytest.mark.parametrize("pieces", [[7], [1] * 7, [3, 4], [5, 1, 1]])
def test_a_cache_gives_what_one_pass_gives(pieces: list[int]) -> None:
    layer = MultiHeadAttention(12, 3).double()
    x = torch.randn(2, 7, 12, dtype=torch.float64)
    for mask in (mw.causal(), mw.window(back=2)):
        cache = Cache()
        parts = [layer(part, mask, cache=cache) for part in x.split(pieces, dim=1)]
        torch.testing.assert_close(torch.cat(parts, dim=1), layer(x, mask))
        assert len(cache) == 7


def test_cross_attention_reads_the_memory_once() -> None:
    layer = MultiHeadAttention(12, 3).double()
    x, memory = (torch.randn(2, n, 12, dtype=torch.float64) for n in (4, 6))
    mask = mw.padding(lengths=[3, 6])
    whole = layer(x, mask, memory=memory)
    cache = Cache()
    steps = [layer(x[:, t : t + 1], mask, memory=memory, cache=cache) for t in range(4)]
    torch.testing.assert_close(torch.cat(steps, dim=1), whole)
    assert len(cache) == 6
    spoilt = memory.clone()
    spoilt[0, 3:] = 99.0
    torch.testing.assert_close(layer(x, mask, memory=spoilt), whole)


def test_a_cache_can_choose_rows() -> None:
    cache = Cache()
    cache.choose(torch.tensor([0]))
    cache.add(torch.arange(3.0).reshape(3, 1, 1, 1), torch.arange(3.0).reshape(3, 1, 1, 1))
    cache.choose(torch.tensor([2, 2, 0]))
    assert cache.k is not None
    assert cache.k.flatten().tolist() == [2, 2, 0]


def test_dropout_drops_in_training_only() -> None:
    layer = MultiHeadAttention(12, 3, dropout=0.5)
    x = torch.randn(1, 6, 12)
    torch.testing.assert_close(layer.eval()(x, mw.causal()), layer(x, mw.causal()))
    assert not torch.equal(layer.train()(x, mw.causal()), layer(x, mw.causal()))


def test_heads_that_do_not_fit_are_refused() -> None:
    for kind in (Heads, MultiHeadAttention):
        with pytest.raises(mw.ArgumentError, match="width=10 can't be shared by heads=3"):
            kind(10, 3)
