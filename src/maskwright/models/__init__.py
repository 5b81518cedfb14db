"""Small Transformer models in the style of nanoGPT: GPT, Bert, Seq2Seq, and their building blocks.

Every model takes token ids and an optional padding mask. It combines the padding with its own mask
(causal for GPT and for the decoder of Seq2Seq) and passes the same mask object to all layers.
"""

from maskwright._optional_deps import require

with require("maskwright.models"):
    import torch  # noqa: F401
