"""Models under masks: the iron law, one pass and many steps, one mask for all layers, the shapes."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import maskwright as mw

PAD, WORDS, DIM, HEADS = 0, 40, 16, 2


class Layer(nn.Module):
    """Attention of several heads and a small network, each beside what came in."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.join = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.think = nn.Sequential(nn.Linear(DIM, 2 * DIM), nn.GELU(), nn.Linear(2 * DIM, DIM))

    def forward(self, x: Tensor, keep: Tensor | None) -> Tensor:
        parts = self.qkv(x).chunk(3, -1)
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=keep)
        x = x + self.join(mixed.transpose(1, 2).flatten(2))
        return x + self.think(x)


class Decoder(nn.Module):
    """Predicts the next token; the mask goes to the first `masked` layers."""

    def __init__(self, layers: int = 3, masked: int = 3) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.masked = nn.Embedding(WORDS, DIM), masked
        self.layers = nn.ModuleList(Layer() for _ in range(layers))
        self.guess = nn.Linear(DIM, WORDS)

    def forward(self, ids: Tensor) -> Tensor:
        past = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
        keep = past & (ids != PAD)[:, None, None, :]
        x = self.words(ids)
        for n, layer in enumerate(self.layers):
            x = layer(x, keep if n < self.masked else None)
        return self.guess(x)


def sentences() -> Tensor:
    ids = torch.randint(1, WORDS, (2, 10), generator=torch.Generator().manual_seed(3))
    ids[1, 6:] = PAD
    return ids


def test_a3_the_iron_law() -> None:
    """No position ever depends on a later one: measured on the model, not read off its mask."""
    ids = sentences()[:1]
    depends = mw.influence(Decoder(), ids).moved[0]
    for position in range(ids.shape[1]):
        assert not depends[position, position + 1 :].any()
        assert depends[position, : position + 1].all()
    mw.audit(Decoder(), ids, expects="causal").assert_ok()


def test_b9_one_pass_is_all_steps_at_once() -> None:
    """Under the look-ahead mask one pass over "cómo estás" predicts what step by step would.

    The target goes in whole, moved on by its start sign. Every position answers as if it stood at
    the end of what has been said so far.
    """
    torch.manual_seed(0)
    vocabulary = {w: n for n, w in enumerate(["", "<s>", "how", "are", "you", "cómo", "estás"])}
    model = nn.Transformer(DIM, HEADS, 1, 1, 32, dropout=0.0, batch_first=True).eval()
    words, guess = nn.Embedding(len(vocabulary), DIM), nn.Linear(DIM, len(vocabulary))

    def logits(target: list[str]) -> Tensor:
        source, said = ([[vocabulary[w] for w in text]] for text in (["how", "are", "you"], target))
        masks = mw.lower(mw.recipes.translation(source, said), "torch.transformer")
        return guess(model(words(torch.tensor(source)), words(torch.tensor(said)), **masks))[0]

    with torch.no_grad():
        target = ["<s>", "cómo", "estás"]
        at_once = logits(target)
        by_steps = torch.stack([logits(target[: n + 1])[-1] for n in range(len(target))])
    torch.testing.assert_close(at_once, by_steps)


def test_b10_the_same_mask_in_every_layer() -> None:
    """Give the mask to the first layer only, and padding leaks from the second on.

    The leak can be measured: changing what padding holds moves real outputs, and the first layer
    in which they move is the first without a mask.
    """
    ids = sentences()
    expects = mw.causal() & mw.padding(ids=ids, pad_id=PAD)
    mw.audit(Decoder(masked=3), ids, expects=expects).assert_ok()

    report = mw.audit(Decoder(masked=1), ids, expects=expects)
    assert (report.cause, report.layer) == ("missing-in-layer", "layers.1")
    padding = [finding for finding in report.findings if finding.probe == "padding"]
    assert padding
    assert padding[0].size > 1e-3


def test_c7_three_classic_errors_in_a_running_model() -> None:
    """Values inverted, dimensions mismatched, devices mixed: each is named, and where it is."""

    class Single(nn.Module):
        def __init__(self, keep: Tensor) -> None:
            super().__init__()
            self.keep, self.layer = keep, Layer()

        def forward(self, x: Tensor) -> Tensor:
            added = torch.zeros(self.keep.shape, device=self.keep.device)
            return self.layer(x, added.masked_fill(~self.keep, -torch.inf) + 0 * x[0, 0, 0])

    torch.manual_seed(0)
    x, past = torch.randn(2, 6, DIM), torch.ones(6, 6, dtype=torch.bool).tril()
    assert mw.audit(Single(past), x, expects="causal").ok
    inverted = mw.audit(Single(~past), x, expects="causal")
    assert inverted.cause == "inverted"
    assert "Invert the mask" in str(inverted)
    for wrong, word in ((past[:5, :5], "size"), (past.to("meta"), "meta")):
        report = mw.audit(Single(wrong), x, expects="causal")
        assert report.cause == "raises"
        assert word in report.findings[0].message


def test_e3_the_flow_of_shapes() -> None:
    """(B, T, C) is cut into heads, scored T against T, and put together again: seen on a real run."""
    ids = sentences()
    trace = mw.trace(Decoder(), ids)
    batch, length = ids.shape
    per_head = (batch, HEADS, length, DIM // HEADS)
    for call in trace:
        assert call.shapes == (
            (batch, length, DIM),
            per_head,
            (batch, HEADS, length, length),
            per_head,
            (batch, length, DIM),
        )
    assert [call.layer for call in trace] == ["layers.0", "layers.1", "layers.2"]
    assert str(trace[0].mask) == "causal() & padding(lengths=[10, 6])"
