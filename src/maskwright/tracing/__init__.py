"""Trace: the attention calls that a model makes in one forward pass, and their effective masks."""
