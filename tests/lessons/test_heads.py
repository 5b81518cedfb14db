"""A head of self-attention, the shapes along its way, and several of them side by side."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import maskwright as mw
from maskwright.models.attention import Head, NaiveMultiHeadAttention
from maskwright.models.gpt import BabyGPT, GPTConfig

BATCH, TOKENS, WIDTH, HEAD_SIZE, BLOCK_SIZE = 2, 5, 12, 4, 8


class ClassicHead(nn.Module):
    """A head as tutorials write it: a triangle for the longest text is kept, and cut to this one."""

    def __init__(self, width: int, head_size: int, block_size: int) -> None:
        super().__init__()
        self.key = nn.Linear(width, head_size, bias=False)
        self.query = nn.Linear(width, head_size, bias=False)
        self.value = nn.Linear(width, head_size, bias=False)
        self.register_buffer("tril", torch.tril(torch.ones(block_size, block_size)))

    def forward(self, x: Tensor) -> Tensor:
        tokens = x.shape[1]
        q, k, v = self.query(x), self.key(x), self.value(x)
        wei = q @ k.transpose(-2, -1) / (k.size(-1) ** 0.5)
        wei = wei.masked_fill(self.tril[:tokens, :tokens] == 0, float("-inf"))
        return wei.softmax(dim=-1) @ v


def both_heads() -> tuple[Head, ClassicHead]:
    """The head of this library and the classic one, with the same weights."""
    torch.manual_seed(0)
    ours = Head(WIDTH, HEAD_SIZE).double()
    classic = ClassicHead(WIDTH, HEAD_SIZE, BLOCK_SIZE).double()
    classic.load_state_dict(ours.state_dict(), strict=False)
    return ours, classic


def some_tokens(tokens: int = TOKENS) -> Tensor:
    chance = torch.Generator().manual_seed(1)
    return torch.randn(BATCH, tokens, WIDTH, generator=chance, dtype=torch.float64)


def test_e1_shapes_of_one_head() -> None:
    """(B, T, C) → (B, T, head_size): queries, keys and values are each a layer without a bias."""
    head, x = both_heads()[0], some_tokens()
    assert head(x, mw.causal()).shape == (BATCH, TOKENS, HEAD_SIZE)
    for layer in (head.query, head.key, head.value):
        assert layer(x).shape == (BATCH, TOKENS, HEAD_SIZE)
    shapes = {name: tuple(weight.shape) for name, weight in head.named_parameters()}
    assert shapes == {f"{name}.weight": (HEAD_SIZE, WIDTH) for name in ("query", "key", "value")}


@pytest.mark.parametrize("tokens", range(1, BLOCK_SIZE + 1))
def test_e1_head_equals_tutorial_head(tokens: int) -> None:
    """For every length up to the block size: the same outputs, and the same gradients."""
    ours, classic = both_heads()
    x = some_tokens(tokens)
    torch.testing.assert_close(ours(x, mw.causal()), classic(x))

    ours(x, mw.causal()).square().sum().backward()
    classic(x).square().sum().backward()
    for name in ("query", "key", "value"):
        found, wanted = (getattr(head, name).weight.grad for head in (ours, classic))
        torch.testing.assert_close(found, wanted)


def test_e1_tril_buffer_is_the_causal_mask() -> None:
    """Cut to the first T rows and columns it is `causal()` for every T that it was made for.

    The expression is not made for a length, so that it also serves longer texts; and it is no part
    of what is saved with the weights.
    """
    ours, classic = both_heads()
    for tokens in range(1, BLOCK_SIZE + 1):
        kept = classic.tril[:tokens, :tokens] == 1
        assert (mw.causal().on(tokens).dense()[0, 0] == kept.numpy()).all()

    longer = some_tokens(BLOCK_SIZE + 1)
    assert ours(longer, mw.causal()).shape == (BATCH, BLOCK_SIZE + 1, HEAD_SIZE)
    with pytest.raises(RuntimeError, match="must match the size"):
        classic(longer)

    assert set(classic.state_dict()) - set(ours.state_dict()) == {"tril"}
    assert classic.state_dict()["tril"].numel() == BLOCK_SIZE**2


def test_e1_scores_are_scaled() -> None:
    """With head_dim 4 the factor is 1/2; without it the weights differ."""
    head, x = both_heads()[0], some_tokens()
    q, k, v = head.query(x), head.key(x), head.value(x)
    later = torch.ones(TOKENS, TOKENS).triu(1).bool()

    def output(scores: Tensor) -> Tensor:
        return scores.masked_fill(later, -math.inf).softmax(-1) @ v

    scores = q @ k.transpose(-2, -1)
    torch.testing.assert_close(head(x, mw.causal()), output(scores / 2))
    assert not torch.allclose(head(x, mw.causal()), output(scores))


@pytest.mark.parametrize("n_head", [1, 3])
def test_e3_traced_shapes_of_heads(n_head: int) -> None:
    """(B, T, C) → (B, T, hs) → (B, T, T) → (B, T, hs), as the trace of a model saw it.

    The trace writes an axis of 1 for heads behind B. One head is as wide as the model; each of
    three is a third as wide, and makes a square of its own.
    """
    model = BabyGPT(GPTConfig(vocab_size=9, block_size=BLOCK_SIZE, n_embd=WIDTH, n_head=n_head))
    calls = mw.trace(model, torch.zeros(BATCH, TOKENS, dtype=torch.long))
    names = ["attn"] if n_head == 1 else [f"attn.heads.{n}" for n in range(n_head)]
    assert [call.layer for call in calls] == names
    assert {call.step for call in calls} == {0}  # side by side, not one after another
    head_size = WIDTH // n_head
    for call in calls:
        assert call.shapes == (
            (BATCH, TOKENS, WIDTH),
            (BATCH, 1, TOKENS, head_size),
            (BATCH, 1, TOKENS, TOKENS),
            (BATCH, 1, TOKENS, head_size),
            (BATCH, TOKENS, head_size),
        )
        assert call.mask == mw.causal()


def three_heads() -> NaiveMultiHeadAttention:
    """Three heads, and a layer behind them that leaves all as it is."""
    torch.manual_seed(0)
    heads = NaiveMultiHeadAttention(WIDTH, 3).double().requires_grad_(False)
    heads.out_proj.weight.copy_(torch.eye(WIDTH))
    heads.out_proj.bias.zero_()
    return heads


def test_e4_multi_head_is_concatenated_heads() -> None:
    """Each with layers of its own; their outputs are concatenated.

    Tutorials often stop there. Here, as in most models, a last layer mixes what the heads found.
    """
    heads, x = three_heads(), some_tokens()
    together = heads(x, mw.causal())
    assert together.shape == (BATCH, TOKENS, WIDTH)
    alone = [head(x, mw.causal()) for head in heads.heads]
    assert torch.equal(together, torch.cat(alone, dim=-1))
    for one, other in ((0, 1), (1, 2), (0, 2)):
        assert not torch.allclose(alone[one], alone[other])


def test_e4_heads_are_independent() -> None:
    """Change the weights of the second one, and a third of the numbers moves: its own."""
    heads, x = three_heads(), some_tokens()
    before = heads(x, mw.causal()).split(HEAD_SIZE, dim=-1)
    for layer in (heads.heads[1].query, heads.heads[1].value):
        layer.weight.neg_()
    after = heads(x, mw.causal()).split(HEAD_SIZE, dim=-1)
    assert [torch.equal(*pair) for pair in zip(before, after, strict=True)] == [True, False, True]


def look_at(place: Tensor) -> Head:
    """A head that gives all weight to one place, and whose value is the token's last two numbers.

    A token is here a sign for its place, and two numbers: `place` (T, T) says who looks where.
    """
    tokens = len(place)
    head = Head(tokens + 2, tokens).requires_grad_(False)
    for layer in (head.query, head.key, head.value):
        layer.weight.zero_()
    head.query.weight[:, :tokens] = 100 * place.T
    head.key.weight[:, :tokens] = torch.eye(tokens)
    head.value.weight[:2, tokens:] = torch.eye(2)
    return head


def test_e4_two_heads_distinguish_what_one_averages() -> None:
    """To know both the first token and the one before, one head has to share its weight out.

    Then it sees only their mean, and takes "a … b" and "b … a" for the same. Two heads look at one
    place each, and tell them apart.
    """
    tokens = 4
    first = torch.zeros(tokens, tokens)
    first[:, 0] = 1
    before = torch.eye(tokens).roll(1, 0)  # row 3 looks at place 2
    a, b = torch.tensor([1.0, 0.0]), torch.tensor([0.0, 1.0])

    def sentence(*numbers: Tensor) -> Tensor:
        return torch.cat([torch.eye(tokens), torch.stack(numbers)], dim=1)[None]

    a_to_b, b_to_a = sentence(a, a, b, a), sentence(b, a, a, a)
    blur = look_at(first + before)
    two = [look_at(first), look_at(before)]

    def last(heads: list[Head], x: Tensor) -> list[float]:
        found = torch.cat([head(x, mw.causal())[0, -1, :2] for head in heads])
        return [round(float(number), 4) for number in found]

    assert last([blur], a_to_b) == last([blur], b_to_a) == [0.5, 0.5]
    assert last(two, a_to_b) == [1, 0, 0, 1]
    assert last(two, b_to_a) == [0, 1, 1, 0]
