"""The three classic errors with masks: values inverted, dimensions mismatched, devices mixed."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch's own name for it

import maskwright as mw

LENGTHS = [3, 4]
REAL = torch.tensor([[True, True, True, False], [True, True, True, True]])  # (B, T)


def attend(mask: torch.Tensor, heads: int = 2) -> torch.Tensor:
    """Attention of 2 sequences of 4 tokens; the values show which keys were visible."""
    batch, size = REAL.shape
    q = k = torch.zeros(batch, heads, size, size)
    v = torch.eye(size).expand(batch, heads, size, size)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def test_c7_inverted_values() -> None:
    """Some readers keep where True, others hide there; the wrong one runs without any complaint.

    It is often taught as "True means masked", or as the opposite. Both exist, in the same library:
    attention as a function keeps, `nn.MultiheadAttention` hides. So the reader has to be named.
    """
    causal = torch.ones(4, 4).tril().bool()
    weights = attend(~causal)
    assert weights[0, 0, 0].tolist() == pytest.approx([0, 1 / 3, 1 / 3, 1 / 3])  # only the future

    [finding] = mw.lint(~causal, causal=True, to="keep")
    assert finding.code == "inverted"
    assert finding.cell == (0, 0, 0, 1)

    assert mw.lint(causal, causal=True, to="keep").ok
    assert mw.lint(~causal, causal=True, to="drop").ok


def test_c7_inverted_padding() -> None:
    """A padding mask turned over keeps only the filler."""
    [finding] = mw.lint(~REAL, axes="bk", padding=LENGTHS)
    assert finding.code == "inverted"
    assert mw.lint(REAL, axes="bk", padding=LENGTHS).ok


def test_c7_shape_does_not_broadcast() -> None:
    """Shapes line up from the right, so (B, T) meets (query, key), and (B, T, T) meets the heads.

    It is often said that such a mask "broadcasts over the batch". It does so only with the missing
    axes in their places: (B, 1, 1, T) and (B, 1, T, T).
    """
    with pytest.raises(RuntimeError):
        attend(REAL)
    [finding] = mw.lint(REAL, batch=2, heads=2, q_len=4, kv_len=4, padding=LENGTHS)
    assert finding.code == "does-not-broadcast"
    assert "mask[:, None, None, :]" in finding.message  # the fix

    mask = REAL[:, None, None, :]
    assert mw.lint(mask, batch=2, heads=2, q_len=4, kv_len=4, padding=LENGTHS).ok
    assert attend(mask)[0, :, :, 3].tolist() == [[0] * 4] * 2


def test_c7_shape_broadcasts_by_accident() -> None:
    """With as many heads as sequences, (B, T, T) fits, and is wrong: no error is raised.

    Head 0 of both sequences loses the last key, and head 1 of the first one sees the filler.
    """
    square = REAL[:, None, :].expand(2, 4, 4)
    weights = attend(square, heads=2)
    assert weights[1, 0, 0].tolist() == pytest.approx([1 / 3, 1 / 3, 1 / 3, 0])
    assert weights[0, 1, 0].tolist() == [0.25] * 4

    [finding] = mw.lint(square, heads=2, padding=LENGTHS)
    assert finding.code == "batch-on-heads"
    assert finding.cell == (0, 1, 0, 3)
    assert "mask[:, None]" in finding.fix

    assert mw.lint(square[:, None], heads=2, padding=LENGTHS).ok
    right = attend(square[:, None], heads=2)
    assert right[0, :, 0, 3].tolist() == [0, 0]
    np.testing.assert_allclose(right[1].numpy(), 0.25)


def test_c7_wrong_device() -> None:
    """A mask made without `device=` lies on the CPU, wherever queries and keys are.

    The error of the framework names two devices and an operator; which of the tensors is the mask,
    and that it is the one to move, it does not say. (The "meta" device stands in for a second one.)
    """
    causal = torch.ones(4, 4, device="meta").tril().bool()
    [finding] = mw.lint(causal, causal=True, device=torch.device("cpu"))
    assert finding.code == "wrong-device"
    assert "mask.to(query.device)" in finding.fix

    assert mw.lint(torch.ones(4, 4).tril().bool(), causal=True, device="cpu").ok
