"""Soft cap, bias and sink: each step by hand, and the three together in `attention`."""

from __future__ import annotations

import numpy as np
import torch

import maskwright as mw
from tests._helpers.naive_softmax import softmax

SCORES = np.array([[0.8, 0.2, 0.9], [0.4, 0.7, 0.5], [0.3, 1.1, 0.6]])
TOKENS = ["I", "like", "it"]


def weights(**terms: object) -> np.ndarray:
    return mw.walkthrough(TOKENS, mw.causal(), scores=SCORES, **terms)["weights"].values


def test_e6_softcap_bounds_scores_and_keeps_their_order() -> None:
    walk = mw.walkthrough(TOKENS, mw.causal(), scores=100 * SCORES, softcap=2.0)
    assert (np.abs(walk["capped"].values) <= 2).all()
    np.testing.assert_allclose(weights(softcap=1.0)[2], softmax(np.tanh(SCORES[2])))
    assert np.argsort(weights(softcap=1.0)[2]).tolist() == np.argsort(SCORES[2]).tolist()
    np.testing.assert_allclose(weights(softcap=1e6), weights(), atol=1e-9)


def test_e6_softcap_before_the_mask_keeps_masked_keys_masked() -> None:
    assert (weights(softcap=1.0)[0] == [1, 0, 0]).all()


def test_e6_alibi_subtracts_slope_times_distance() -> None:
    found = weights(bias=mw.bias.alibi([0.5]))[2]
    np.testing.assert_allclose(found, softmax(np.array([0.3 - 1.0, 1.1 - 0.5, 0.6])))
    np.testing.assert_allclose(found[1], found[2])


def test_e6_a_bias_does_not_mask() -> None:
    """A bias that all visible keys have in common changes nothing, however low it is."""
    np.testing.assert_allclose(weights(bias=np.full((3, 3), -1e4)), weights())


def test_e6_sink_takes_a_share_of_each_row() -> None:
    walk = mw.walkthrough(TOKENS, mw.causal(), scores=SCORES, sink=0.0)
    found, sink = walk["weights"].values, walk["sink"].values[:, 0]
    np.testing.assert_allclose(found.sum(1) + sink, 1)
    np.testing.assert_allclose(found, weights() * (1 - sink)[:, None])
    np.testing.assert_allclose(sink[2], 1 / (1 + np.exp(SCORES[2]).sum()))


def test_e6_all_three_equal_attention() -> None:
    terms = {"softcap": 1.0, "bias": mw.bias.alibi([0.5])}
    q, identity = torch.tensor(SCORES)[None, None], torch.eye(3, dtype=torch.float64)[None, None]
    sinks = torch.tensor([0.3], dtype=torch.float64)
    out = mw.attention(q, identity, identity, mw.causal(), scale=1.0, sinks=sinks, **terms)
    np.testing.assert_allclose(out[0, 0], weights(**terms, sink=0.3))
