"""The reference: attention by its definition, dense and in float64."""

from __future__ import annotations

import numpy as np


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """Softmax over the visible keys; a fully masked row returns exactly zero.

    q is (B, H, T, D), k and v are (B, H, S, D), allowed is (B, H, T, S).
    """
    weights = attention_weights(q @ np.swapaxes(k, 2, 3) / np.sqrt(max(q.shape[3], 1)), allowed)
    return weights @ v


def attention_weights(scores: np.ndarray, allowed: np.ndarray) -> np.ndarray:
    """The softmax of the scores of allowed cells; zero elsewhere, and in empty rows."""
    scores = np.where(allowed, scores.astype(np.float64), -np.inf)
    top = scores.max(axis=3, keepdims=True, initial=-np.inf)
    power = np.exp(scores - np.where(np.isfinite(top), top, 0.0))
    total = power.sum(axis=3, keepdims=True)
    return power / np.where(total == 0, 1.0, total)


def random_qkv(
    shape: tuple[int, int, int, int], width: int = 4, seed: int = 0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """q, k, v for a mask of the shape (B, H, T, S)."""
    b, h, t, s = shape
    rng = np.random.default_rng(seed)
    q = rng.standard_normal((b, h, t, width))
    k, v = rng.standard_normal((2, b, h, s, width))
    return q, k, v


def attention_with_scores(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    allowed: np.ndarray,
    *,
    bias: np.ndarray | None = None,
    softcap: float | None = None,
    sinks: np.ndarray | None = None,
    scale: float | None = None,
) -> np.ndarray:
    """The same with scale, softcap, bias and mask in this order, and sinks in the denominator.

    bias broadcasts to (B, H, T, S); sinks is (H,).
    """
    scale = 1 / np.sqrt(max(q.shape[3], 1)) if scale is None else scale
    scores = (q.astype(np.float64) @ np.swapaxes(k, 2, 3).astype(np.float64)) * scale
    if softcap is not None:
        scores = softcap * np.tanh(scores / softcap)
    if bias is not None:
        scores = scores + bias
    scores = np.where(allowed, scores, -np.inf)
    top = scores.max(axis=3, keepdims=True, initial=-np.inf)
    sink = -np.inf if sinks is None else np.asarray(sinks, np.float64)[None, :, None, None]
    empty = np.isneginf(top)
    top = np.where(empty, 0.0, np.maximum(top, sink))
    power = np.exp(scores - top)
    total = power.sum(axis=3, keepdims=True) + np.exp(sink - top)
    return (power / np.where(empty, 1.0, total)) @ v
