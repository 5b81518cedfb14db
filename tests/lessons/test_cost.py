"""What masks cost: what a cache saves, what a product really computes, and what memory they take."""

from __future__ import annotations

import numpy as np
import torch

import maskwright as mw


def span_bytes(bound: mw.BoundMask) -> int:
    spans = bound.spans
    return spans.starts.nbytes + spans.stops.nbytes + spans.offsets.nbytes


def test_c6_decode_step_is_the_last_row() -> None:
    """With n keys in a cache the one new query is row n - 1 of the square, which sees all of them.

    Cutting [:1, :n] instead leaves it only key 0.
    """
    n = 9
    cached = torch.tril(torch.ones(64, 64)).numpy() == 1
    step = mw.causal().step(n - 1)
    assert np.array_equal(step.dense()[0, 0], cached[n - 1 : n, :n])
    assert step.equals(mw.causal().on(1, kv_len=n))
    assert step.count() == n
    assert cached[:1, :n].sum() == 1


def test_c6_outer_product_masks_padded_queries() -> None:
    """`m[:, :, None] * m[:, None, :]` is offered as a cheap way from (B, T) to (B, T, T).

    It computes another mask: padded queries lose their rows. So it is `padding & padding.T`,
    whose empty rows need care, and not `padding`.
    """
    m = torch.tensor([[1.0, 1.0, 1.0, 0.0], [1.0, 1.0, 0.0, 0.0]])
    product = (m.unsqueeze(-1) * m.unsqueeze(-2)).numpy() == 1
    padding = mw.padding(lengths=[3, 2])
    both = (padding & padding.T).on(4)
    assert np.array_equal(both.dense()[:, 0], product)
    assert both.empty_rows()[:, 0].astype(int).tolist() == [[0, 0, 0, 1], [0, 0, 1, 1]]

    assert not padding.on(4).empty_rows().any()
    different = padding.on(4).equals(mw.dense(product))
    assert not different
    assert different.cell == (0, 0, 3, 0)  # the first padded query, and the first real key


def test_c6_expand_is_a_view() -> None:
    """`expand` is a view: (B, T, T) is said, and (B, T) is stored. The product stores all of it.

    So the view is the cheaper of the two, and the right one: it keeps the padded rows.
    """
    batch, tokens = 4, 128
    padding = mw.padding(lengths=[128, 100, 7, 1])
    m = torch.from_numpy(padding.on(1, kv_len=tokens).dense()[:, 0, 0]).float()
    view = m.unsqueeze(1).expand(-1, tokens, -1)
    product = m.unsqueeze(-1) * m.unsqueeze(-2)
    assert view.shape == product.shape == (batch, tokens, tokens)
    assert view.untyped_storage().nbytes() == m.untyped_storage().nbytes() == 4 * batch * tokens
    assert product.untyped_storage().nbytes() == tokens * view.untyped_storage().nbytes()
    assert padding.on(tokens).equals(mw.dense(view.bool()))
    assert not padding.on(tokens).equals(mw.dense(product.bool()))


def test_c6_spans_are_linear_in_length() -> None:
    """Four sequences of up to 2,048 tokens, causal and padded: 16.8 MB dense, at 1 byte per cell.

    As intervals it is three numbers per row, 0.2 MB; and for twice the length, twice that.
    """
    lengths = [2048, 1500, 700, 3]
    mask = mw.causal() & mw.padding(lengths=lengths)
    bound = mask.on(2048)
    dense = bound.dense()
    assert dense.nbytes == 4 * 2048 * 2048
    assert span_bytes(bound) < 200_000
    assert dense.nbytes >= 50 * span_bytes(bound)
    assert np.array_equal(
        dense.sum(axis=(1, 2, 3)), [n * (n + 1) // 2 + (2048 - n) * n for n in lengths]
    )

    twice = mask.on(4096)
    assert span_bytes(twice) < 2.01 * span_bytes(bound)
    assert twice.count() == bound.count() + sum(2048 * n for n in lengths)
