"""Biases: values added to the attention scores inside a mask, as small expressions.

A bias changes scores; it never changes which keys are visible. Its values are numpy arrays, or
torch tensors, which are learnable. Needs numpy only.
"""

from __future__ import annotations

from maskwright.bias.atoms import alibi, grid, per_key, relative, t5, tensor
from maskwright.bias.expr import Bias, BoundBias
from maskwright.bias.terms import DistanceTerm, GridTerm, TensorTerm, Term
from maskwright.bias.text import from_json, parse, to_json

__all__ = [
    "Bias",
    "BoundBias",
    "DistanceTerm",
    "GridTerm",
    "TensorTerm",
    "Term",
    "alibi",
    "from_json",
    "grid",
    "parse",
    "per_key",
    "relative",
    "t5",
    "tensor",
    "to_json",
]
