"""What attention costs on a machine, as a small table: the planner's only knowledge of hardware.

A strip of R query rows over W keys takes, for each head of each sequence,

    R * (W * cell(R) + ceil(W / 512) * row(R)) nanoseconds,

and every call of a kernel some more: the kernel goes through the keys 512 at a time, and puts a row
in order after each. `cell` and `row` fall with R, since a taller strip makes a better matrix
product; they are measured at some heights and read off in between.

The kernel in C takes only what is seen: so much a cell, so much a row of a head, and so much a call.
"""

from __future__ import annotations

import json
import os
from bisect import bisect_right
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping


KEYS: Final = 512  # that the kernel takes at a time
ROWS: Final = 256  # that it takes at a time, where there are many


@dataclass(frozen=True)
class Costs:
    """Nanoseconds, of one direction (forward or backward) in one dtype, for head_dim 64.

    `heights` are the strip heights that were measured; `cell` and `masked` (without and with a
    mask) are by height and cell, `row` by height and row. `call` is one call of the kernel,
    `gather` one call that copies keys, `copy` one key and value copied, `merge` one row merged.
    `causal_cell` is a cell of the kernel's own causal mode. `native_cell`, `native_row` and
    `native_call` are of the kernel in C.
    """

    heights: tuple[int, ...]
    cell: tuple[float, ...]
    masked: tuple[float, ...]
    row: tuple[float, ...]
    causal_cell: float
    call: float
    gather: float
    copy: float
    merge: float
    native_cell: float
    native_row: float
    native_call: float

    def strip(self, height: int, width: float, *, masked: bool, planes: int) -> float:
        """One strip for so many planes (batch rows times heads), in one call."""
        cell, row = self.rates(height, masked)
        return planes * height * (width * cell + -(-width // KEYS) * row) + self.call

    def native(self, cells: int, rows: int) -> float:
        """All of a mask by the kernel in C: cells seen, and rows, of all planes."""
        return cells * self.native_cell + rows * self.native_row + self.native_call

    def rates(self, height: int, masked: bool) -> tuple[float, float]:
        """Nanoseconds a cell and a row at this height."""
        known = _rates(self, height)
        return known[1 if masked else 0], known[2]


def causal_cells(rows: int, keys: int) -> int:
    """How many cells the kernel's causal mode computes: it skips whole blocks of keys only."""
    return sum(
        min(ROWS, rows - row) * min(-(-(row + ROWS) // KEYS) * KEYS, keys)
        for row in range(0, rows, ROWS)
    )


@lru_cache(maxsize=4096)
def _rates(costs: Costs, height: int) -> tuple[float, float, float]:
    heights = costs.heights
    after = bisect_right(heights, height)
    if after == 0 or after == len(heights):
        end = max(after - 1, 0)
        return costs.cell[end], costs.masked[end], costs.row[end]
    low, high = heights[after - 1], heights[after]
    # The kernel works in blocks whose size steps up at some heights: between two measured ones
    # the lower one holds, but for strips shorter than a block, where it is a matter of degree.
    share = (height - low) / (high - low) if high <= 32 else 0.0

    def at(values: tuple[float, ...]) -> float:
        return values[after - 1] * (1 - share) + values[after] * share

    return at(costs.cell), at(costs.masked), at(costs.row)


def read_costs(path: Path | None = None) -> dict[str, Costs]:
    """The table by name: "forward" and "backward"; the machine's own where there is one."""
    own = own_table() if path is None else path
    if own.exists():
        try:
            return _parse(json.loads(own.read_text()))
        except (ValueError, KeyError, TypeError) as error:
            raise ArgumentError(
                f"The cost table {own} can't be read ({error}). "
                "Delete it, or measure anew: maskwright bench --calibrate"
            ) from error
    return packaged_costs()


def packaged_costs() -> dict[str, Costs]:
    """The table that comes with maskwright."""
    return _parse(json.loads((files("maskwright.engine") / "costs.json").read_text()))


def own_table() -> Path:
    """Where a machine's own measurements are kept."""
    home = os.environ.get("MASKWRIGHT_CACHE") or Path(
        os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "maskwright"
    )
    return Path(home) / "costs.json"


def write_costs(table: Mapping[str, Costs], machine: str, path: Path | None = None) -> Path:
    """Keep a table; a half-written file never takes the place of a good one."""
    where = own_table() if path is None else path
    where.parent.mkdir(parents=True, exist_ok=True)
    fresh = where.with_suffix(".json.new")
    text = {"machine": machine, **{name: asdict(costs) for name, costs in table.items()}}
    fresh.write_text(json.dumps(text, indent=2) + "\n")
    fresh.replace(where)
    return where


def _parse(text: Mapping[str, Any]) -> dict[str, Costs]:
    names = [field.name for field in fields(Costs)]
    found = {}
    for name in ("forward", "backward"):
        values = {key: text[name][key] for key in names}
        known: dict[str, Any] = {
            key: tuple(v) if isinstance(v, list) else float(v) for key, v in values.items()
        }
        found[name] = Costs(**known)
    return found


@lru_cache(maxsize=1)
def table() -> dict[str, Costs]:
    """The table in use, read once."""
    return read_costs()
