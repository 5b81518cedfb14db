"""Masks inside code that others wrote: PyTorch's own layers, and transformers' models.

What may enter here: adapters. What a mask is, and how attention runs, is decided elsewhere.
"""

from maskwright._optional_deps import require

with require("maskwright.integrations"):
    import torch  # noqa: F401
