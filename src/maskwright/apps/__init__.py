"""Applications: real data, a model of `models/`, training and use, one file each.

What may enter: what is particular to one task. How a model is trained is in `training`, how it is
kept in `checkpoints`.
"""

from maskwright._optional_deps import require

with require("maskwright.apps", "apps"):
    import torch  # noqa: F401
