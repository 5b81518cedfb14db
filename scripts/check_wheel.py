"""Check an installed wheel: import maskwright, and compare attention with its formula.

    python scripts/check_wheel.py

Without the C kernel, as in the wheel for Windows, tensors of PyTorch are used instead of arrays.
"""

from __future__ import annotations

import sys

import numpy as np

import maskwright as mw
from maskwright.engine.doctor import facts


def main() -> None:
    """Print the facts of the installation, or exit with an error."""
    found = facts()
    print(
        f"maskwright {mw.__version__}",
        *(f"{name}: {fact}" for name, fact in found.items()),
        sep="\n",
    )
    has_kernel = not found["kernel"].startswith("none")
    if has_kernel == (sys.platform == "win32"):
        sys.exit("The wheel has a kernel on Windows, or none elsewhere.")
    q, k, v = np.random.default_rng(0).standard_normal((3, 1, 2, 37, 16)).astype(np.float32)
    bound = mw.window(back=5).on(37)
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
    weights = np.where(bound.dense(), np.exp(scores - scores.max(-1, keepdims=True)), 0.0)
    expected = weights @ v / weights.sum(-1, keepdims=True)
    if has_kernel:
        out = mw.attention(q, k, v, bound)
    else:
        import torch

        out = mw.attention(*map(torch.from_numpy, (q, k, v)), bound).numpy()
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)


if __name__ == "__main__":
    main()
