"""Models that live by masks, each in one file to be read from top to bottom.

What may enter: plain PyTorch modules with their config beside them. A model makes its causal mask
from the length; whoever calls it gives the padding. One mask object goes to every layer.
"""

from maskwright._optional_deps import require

with require("maskwright.models"):
    import torch  # noqa: F401
