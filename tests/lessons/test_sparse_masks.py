"""Beyond padding and causal: masks put together, chosen at run time, local, and along a graph."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import maskwright as mw
from maskwright.apps import TaskOptions, graph
from maskwright.apps.trainer import TrainingConfig, train
from maskwright.models.bert import Bert, BertConfig
from maskwright.models.gpt import GPT, GPTConfig
from tests._helpers.naive_softmax import select, softmax

PATH = [(0, 1), (1, 2), (2, 3), (3, 4)]  # five nodes in a line


def test_d5_union_of_window_and_sink() -> None:
    """The last two tokens, and the first one always: a union, cut by what is in the past.

    Each part says one thing, and for every cell one can ask which of them let it through.
    """
    bound = (mw.window(back=1) | mw.keys([0]) & mw.causal()).on(5)
    assert bound.dense()[0, 0].astype(int).tolist() == [
        [1, 0, 0, 0, 0],
        [1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0],
        [1, 0, 1, 1, 0],
        [1, 0, 0, 1, 1],
    ]
    assert "key 0 is selected" in str(bound.why(4, 0))
    assert "window(back=1)" in str(bound.why(4, 3))
    assert "does not attend to" in str(bound.why(4, 1))


def test_d5_masks_per_head_and_per_sequence() -> None:
    """One head looks near, one far; one sentence is read both ways, the other is written."""
    heads = mw.by_head([mw.window(back=1), mw.causal()])
    sentences = mw.by_batch([mw.everything(), mw.causal()])
    q, k, v = torch.randn(3, 2, 2, 6, 4, generator=torch.Generator().manual_seed(0))
    near_and_far, both = (mw.attention(q, k, v, mask) for mask in (heads, sentences))
    near, far = (mw.attention(q, k, v, mask) for mask in (mw.window(back=1), mw.causal()))
    torch.testing.assert_close(near_and_far, torch.stack([near[:, 0], far[:, 1]], dim=1))
    torch.testing.assert_close(both[0], mw.attention(q, k, v)[0])
    torch.testing.assert_close(both[1], far[1])


def test_d5_where_takes_a_function() -> None:
    """A rule of one's own, of the numbers of sentence, head, query and key: "even looks at even"."""
    mask = mw.where(lambda b, h, q, k: (q + k) % 2 == 0) & mw.causal()
    assert mask.on(4).dense()[0, 0].astype(int).tolist() == [
        [1, 0, 0, 0],
        [0, 1, 0, 0],
        [1, 0, 1, 0],
        [0, 1, 0, 1],
    ]
    assert mask.on(9).equals(mw.stride(2) & mw.causal())  # which has a name, as it happens


def needle(place: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """64 tokens: the last 8 look for 8 keys that begin at `place`, and the others for nothing."""
    chance = torch.Generator().manual_seed(0)
    q, k, v = torch.randn(3, 1, 1, 64, 16, generator=chance)
    sought = 2 * torch.randn(16, generator=chance)
    q, k = 0.3 * q, 0.3 * k
    q[0, 0, 56:] += sought
    k[0, 0, place : place + 8] += sought
    return q, k, v


@pytest.mark.parametrize("place", [8, 24, 40])
def test_d5_top_blocks_finds_relevant_keys(place: int) -> None:
    """`top_blocks` looks at queries and keys, and keeps the two best blocks of 8 keys for each 8.

    A window of fixed size sees more cells, and misses what is sought: it is always too far back.
    """
    q, k, v = needle(place)
    dynamic = mw.top_blocks(q, k, size=8, keep=2, within=mw.causal())
    fixed = mw.window(back=15)
    assert dynamic.on(64).spans.row(63) == [(place, place + 8), (56, 64)]
    assert dynamic.on(64).count() < fixed.on(64).count() < mw.causal().on(64).count() / 2

    whole = mw.attention(q, k, v, mw.causal())[:, :, 56:]
    errors = [
        float((mw.attention(q, k, v, mask)[:, :, 56:] - whole).norm() / whole.norm())
        for mask in (dynamic, fixed)
    ]
    assert errors[0] < 0.01
    assert errors[1] > 0.5


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_d5_receptive_field_grows_with_layers(layers: int) -> None:
    """Each layer looks back by 2. What it sees there has looked back as well: 2, 4, 6."""
    torch.manual_seed(0)
    size = GPTConfig(vocab_size=30, block_size=12, n_embd=16, n_head=2, n_layer=layers)
    model = GPT(size, mask=mw.window(back=2)).double()
    depends = mw.influence(model, torch.randint(30, (1, 12))).moved[0]
    assert np.array_equal(depends, mw.window(back=2 * layers).on(12).dense()[0, 0])


def test_d5_sliding_window_is_linear() -> None:
    """Twice the length is twice the cells, where it would be four times."""
    local, past = mw.window(back=255), mw.causal()
    counts = [(local.on(n).count(), past.on(n).count()) for n in (4096, 8192)]
    assert counts[1][0] / counts[0][0] == pytest.approx(2, rel=0.05)
    assert counts[1][1] / counts[0][1] == pytest.approx(4, rel=0.05)


def test_d5_image_neighbourhood() -> None:
    """In an image of 4 × 4, the pixel above is 4 places back in the row, and still a neighbour."""
    near = mw.image(4, 4, radius=1).on(16)
    assert near.spans.row(5) == [(0, 3), (4, 7), (8, 11)]
    assert near.spans.row(0) == [(0, 2), (4, 6)]  # in the corner


def test_d5_graph_attention_is_softmax_over_neighbours() -> None:
    """Node 1 of a line sees 0, 1 and 2: its output is their softmax, and nobody else's."""
    q, k, v = np.random.default_rng(0).normal(size=(3, 5, 4))
    tensors = [torch.from_numpy(part)[None, None] for part in (q, k, v)]
    found = mw.attention(*tensors, mw.graph(PATH))[0, 0].numpy()
    np.testing.assert_allclose(found[1], softmax(q[1] @ k[:3].T / 2) @ v[:3], rtol=1e-9)

    keep = np.eye(5) + np.eye(5, k=1) + np.eye(5, k=-1)  # the adjacency matrix, and oneself
    weights = softmax(select(q @ k.T / 2, keep, -np.inf))
    np.testing.assert_allclose(found, weights @ v, rtol=1e-9)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_d5_graph_receptive_field_grows_with_layers(layers: int) -> None:
    """After one layer from its neighbours, after two from theirs, and so on along the edges."""
    torch.manual_seed(0)
    size = BertConfig(vocab_size=30, block_size=5, n_embd=16, n_head=2, n_layer=layers)
    model = Bert(size, mask=mw.graph(PATH)).double()
    depends = mw.influence(model, torch.randint(30, (1, 5))).moved[0]
    apart = abs(np.subtract.outer(range(5), range(5)))
    assert np.array_equal(depends, apart <= layers)


def test_d5_graph_mask_helps_node_classification() -> None:
    """A club of 34 falls apart in two; 4 members say their side, and 30 are to be named.

    Along its 78 friendships a small model finds most of them. If everybody sees everybody, all
    members look the same, and the same model guesses.
    """
    config = TrainingConfig(
        25, learning_rate=3e-3, warmup_steps=1, grad_clip=1e3, eval_interval=25, device="cpu"
    )
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(graph, "NUM_SEEDS", 2)
        for version in ("graph", "everything"):
            task = graph.Graph(TaskOptions(version=version))
            train(task, config)
            found[version] = float(np.mean(task.accuracies()))
    assert found["graph"] > 0.8
    assert found["everything"] < 0.7
