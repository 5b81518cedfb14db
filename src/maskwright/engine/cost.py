"""What a backend computes under a mask: tiles visited, useful share, and an estimated time."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

from maskwright.engine.select import needs_no_mask_tensor

if TYPE_CHECKING:
    from maskwright.engine.call import Call

# Rows and keys of the smallest tile that the C kernel, by its instruction set, or another backend
# computes or skips as a whole.
TILES: Final = {
    "avx512": (8, 32),
    "avx2": (6, 16),
    "baseline": (6, 8),
    "blocks": (128, 1),
    "sdpa": (128, 128),
    "flex": (128, 128),
    "triton": (128, 32),
    "reference": (128, 128),
}
# Computed multiply-adds per nanosecond on one thread of an AMD EPYC with AVX-512: 1,024 tokens,
# 8 heads, head_dim 64, float32, forward, about the middle of no mask, a causal mask and a window of
# 128. An estimate of the order of magnitude: other processors, sizes and dtypes differ.
RATES: Final = {
    "avx512": 42.0,
    "avx2": 42.0,
    "baseline": 15.0,
    "blocks": 22.0,
    "sdpa": 32.0,
    "flex": 23.0,
    "triton": 23.0,
    "reference": 1.5,
}
BACKWARD_FACTOR: Final = 2.2  # backward over forward, measured likewise under a causal mask


@dataclass(frozen=True)
class WorkEstimate:
    """The work of one pass over all batch rows and heads.

    Attributes:
        block_q: Query rows of a tile.
        block_kv: Keys of a tile.
        tiles: Number of tiles of the dense score matrix.
        tiles_visited: Number of tiles that are computed.
        cells_computed: Number of scores that are computed.
        cells_visible: Number of those that the mask leaves visible.
        milliseconds: Estimated time on one CPU thread.

    >>> import maskwright as mw
    >>> work = mw.explain_backend((1, 8, 1024, 64), mask=mw.window(back=127)).work
    >>> work.tiles_visited < work.tiles
    True
    >>> 0.5 < work.useful_share <= 1
    True
    """

    block_q: int
    block_kv: int
    tiles: int
    tiles_visited: int
    cells_computed: int
    cells_visible: int
    milliseconds: float

    @property
    def useful_share(self) -> float:
        """The share of computed scores that are visible; 1 where nothing is computed.

        >>> import maskwright as mw
        >>> mw.explain_backend((1, 1, 256, 64), mask=mw.causal(), impl="flex").work.useful_share
        0.6692708333333334
        """
        return self.cells_visible / self.cells_computed if self.cells_computed else 1.0

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON.

        >>> import maskwright as mw
        >>> mw.explain_backend((1, 1, 256, 64), mask=mw.causal(), impl="flex").work.as_dict()["tiles"]
        4
        """
        return {**asdict(self), "useful_share": self.useful_share}

    def __str__(self) -> str:
        return (
            f"{self.tiles_visited:,} of {self.tiles:,} tiles of {self.block_q} × {self.block_kv} "
            f"visited, {self.useful_share:.0%} of the computed scores are visible, "
            f"about {format_time(self.milliseconds)} on one CPU thread"
        )


def format_time(milliseconds: float) -> str:
    """A time with its unit.

    >>> format_time(0.1234), format_time(36_400)
    ('0.123 ms', '36.4 s')
    """
    number, unit = (milliseconds, "ms") if milliseconds < 1000 else (milliseconds / 1000, "s")
    return f"{number:.3g} {unit}" if number < 1000 else f"{number:,.0f} {unit}"


def estimate_work(call: Call, kind: str, backward: bool = False) -> WorkEstimate:
    """Estimate the work of one pass.

    Args:
        call: The call.
        kind: The instruction set of the C kernel, or the name of another backend.
        backward: Whether to estimate the backward pass instead of the forward pass.

    Returns:
        The estimate, exact in tiles and cells.
    """
    bound, shape = call.mask, call.shape
    block_q, block_kv = TILES[kind]
    tiling = bound.tiles(block_q, block_kv)
    planes = tiling.shape[0] * tiling.shape[1]
    copies = shape.batch * shape.heads // planes if planes else 0
    counts = tiling.counts()
    tiles = sum(counts.values()) * copies
    # SDPA with a mask tensor, and the reference, compute all scores.
    dense = kind == "reference" or (kind == "sdpa" and not needs_no_mask_tensor(bound))
    visited = tiles if dense else (counts["partial"] + counts["full"]) * copies
    visible = bound.spans.cells() * copies
    computed = min(
        visited * block_q * block_kv, shape.batch * shape.heads * shape.q_len * shape.kv_len
    )
    products = computed * (shape.head_dim + shape.v_head_dim)
    nanoseconds = products / RATES[kind] * (BACKWARD_FACTOR if backward else 1.0)
    return WorkEstimate(block_q, block_kv, tiles, visited, computed, visible, nanoseconds / 1e6)
