"""What a backend computes under a mask: tiles visited, useful share, and an estimated time."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from maskwright.engine.params import AttentionParams

# Rows and keys of the smallest tile that a backend computes or skips as a whole.
TILES: Final = {"avx512": (8, 32), "avx2": (6, 16), "baseline": (6, 8), "blocks": (128, 1)}
# Computed multiply-adds per nanosecond and thread, float32, head_dim 64, on the AMD EPYC of
# benchmarks/results. An estimate for orders of magnitude, not a measurement of this machine.
RATES: Final = {"avx512": 40.0, "avx2": 24.0, "baseline": 7.0, "blocks": 15.0}
BACKWARD_FACTOR: Final = 2.5  # five matrix products instead of two
NANOSECONDS_PER_ROW: Final = 60.0


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
        milliseconds: Estimated time of one thread.

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
        """The share of computed scores that are visible; 1 where nothing is computed."""
        return self.cells_visible / self.cells_computed if self.cells_computed else 1.0

    def as_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        return {**asdict(self), "useful_share": self.useful_share}

    def __str__(self) -> str:
        return (
            f"{self.tiles_visited:,} of {self.tiles:,} tiles of {self.block_q} × {self.block_kv} "
            f"visited, {self.useful_share:.0%} of the computed scores are visible, "
            f"about {self.milliseconds:.3g} ms on one thread"
        )


def estimate_work(params: AttentionParams, kind: str, backward: bool = False) -> WorkEstimate:
    """Estimate the work of one pass.

    Args:
        params: The parameters of the call.
        kind: The instruction set of the C kernel, or "blocks" for other backends.
        backward: Whether to estimate the backward pass instead of the forward pass.

    Returns:
        The estimate, exact in tiles and cells.
    """
    bound, shape = params.mask, params.shape
    block_q, block_kv = TILES[kind]
    found = bound.tiles(block_q, block_kv)
    planes = found.shape[0] * found.shape[1]
    copies = shape.batch * shape.heads // planes if planes else 0
    counts = found.counts()
    tiles = sum(counts.values()) * copies
    visited = (counts["partial"] + counts["full"]) * copies
    visible = bound.spans.cells() * copies
    computed = min(
        visited * block_q * block_kv, shape.batch * shape.heads * shape.q_len * shape.kv_len
    )
    products = computed * (shape.head_dim + shape.v_head_dim)
    rows = shape.batch * shape.heads * shape.q_len
    factor = BACKWARD_FACTOR if backward else 1.0
    nanoseconds = factor * (products / RATES[kind] + NANOSECONDS_PER_ROW * rows)
    return WorkEstimate(block_q, block_kv, tiles, visited, computed, visible, nanoseconds / 1e6)
