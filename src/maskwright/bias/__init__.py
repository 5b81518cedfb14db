"""Biases: values added to the attention scores inside a mask, as small expressions."""

from __future__ import annotations

from maskwright.bias.terms import DistanceTerm, GridTerm, TensorTerm, Term

__all__ = ["DistanceTerm", "GridTerm", "TensorTerm", "Term"]
