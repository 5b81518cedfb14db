"""Masks for images, alone and interleaved with text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maskwright.core.atoms import causal, documents, image
from maskwright.core.validate import parse_int
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from maskwright.core.expr import Mask


def natten(height: int, width: int, kernel: int) -> Mask:
    """Neighborhood attention: the `kernel` × `kernel` nearest pixels, also at the border.

    Args:
        height: Height of the image in pixels or patches.
        width: Width of the image.
        kernel: Odd size of the neighbourhood.

    Raises:
        ArgumentError: If `kernel` is even.

    Hassani et al. 2022, "Neighborhood Attention Transformer", arXiv 2204.07143.

    >>> import maskwright as mw
    >>> mw.recipes.natten(4, 4, 3).on(16).spans.row(0)
    [(0, 3), (4, 7), (8, 11)]
    """
    size = parse_int(kernel, "natten: kernel", minimum=1)
    if size % 2 == 0:
        raise ArgumentError(f"natten: kernel={size} is even. Pass an odd number.")
    return image(height, width, radius=size // 2, border="shift")


def image_text(images: Any) -> Mask:
    """Interleaved images and text: causal, with bidirectional attention within each image.

    Args:
        images: The number of each token's image, -1 for text.

    Gemma Team 2025, "Gemma 3 Technical Report", arXiv 2503.19786.

    >>> import maskwright as mw
    >>> mw.recipes.image_text([-1, 0, 0, -1]).on(4).dense().astype(int)[0, 0].tolist()
    [[1, 0, 0, 0], [1, 1, 1, 0], [1, 1, 1, 0], [1, 1, 1, 1]]
    """
    return causal() | documents(ids=images)
