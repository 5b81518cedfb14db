"""Measures the cost table on this machine: how long strips of each height, and the kernel, take."""

from __future__ import annotations

import platform
import time
from typing import TYPE_CHECKING, Final, NamedTuple

import torch

from maskwright.core.atoms import causal, window
from maskwright.engine.attention import attention
from maskwright.engine.costs import Costs, causal_cells, packaged_costs
from maskwright.engine.native.bindings import loaded
from maskwright.engine.strips import merge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from maskwright.core.mask import Mask

HEIGHTS: Final = (1, 4, 8, 16, 32, 64, 128, 192, 256, 512, 768, 1024)
WIDTHS: Final = (16, 512)  # two, for a slope and what is left at width 0
HEADS: Final = 8
HEAD_DIM: Final = 64
MOST_SECONDS: Final = 0.5  # of one measurement
CELLS: Final = 2**19  # of one measured call: long enough to tell, short enough to repeat

_forward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class Trial(NamedTuple):
    """The tensors of some strips of one shape, and the calls to be timed on them."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    mask: torch.Tensor | None
    causal: bool

    def forward(self) -> tuple[torch.Tensor, torch.Tensor]:
        """One call of the kernel."""
        out, lse = _forward(self.q, self.k, self.v, 0.0, self.causal, attn_mask=self.mask)
        return out, lse

    def backward(self) -> Callable[[], object]:
        """A call of the kernel's backward pass, ready to be timed."""
        out, lse = self.forward()
        return lambda: _backward(
            self.q, self.q, self.k, self.v, out, lse, 0.0, self.causal, attn_mask=self.mask
        )

    @property
    def rows(self) -> int:
        """Rows times planes."""
        batch, heads, height, _ = self.q.shape
        return int(batch * heads * height)


def measure(rounds: int = 7) -> Iterator[tuple[str, Costs]]:
    """("forward", its costs), then ("backward", its costs)."""
    for direction in ("forward", "backward"):
        rates = [
            [_slope(direction, height, masked, rounds) for masked in (False, True)]
            for height in HEIGHTS
        ]
        yield (
            direction,
            Costs(
                heights=HEIGHTS,
                cell=_falling([plain[0] for plain, _ in rates]),
                masked=_falling([max(plain[0], hidden[0]) for plain, hidden in rates]),
                row=tuple(
                    round(max(0.0, (plain[1] + hidden[1]) / 2), 1) for plain, hidden in rates
                ),
                causal_cell=_causal_cell(direction, rounds),
                call=_call(direction),
                gather=2 * _gather(1)[0],
                copy=_gather(512)[1] * (1 if direction == "forward" else 2),
                merge=_merge(),
                **_native(direction, rounds),
            ),
        )


def machine() -> str:
    """What was measured on, in a line."""
    return (
        f"{platform.processor() or platform.machine()}, {torch.get_num_threads()} threads, "
        f"PyTorch {torch.__version__}, float32, {HEADS} heads of {HEAD_DIM}"
    )


def _slope(direction: str, height: int, masked: bool, rounds: int) -> tuple[float, float]:
    """Nanoseconds a cell and a row."""
    short, long = (_per_row(direction, _trial(height, width, masked), rounds) for width in WIDTHS)
    cell = max((long - short) / (WIDTHS[1] - WIDTHS[0]), 0.01)
    return cell, short - WIDTHS[0] * cell


def _trial(height: int, width: int, masked: bool = False, causal: bool = False) -> Trial:
    count = max(1, CELLS // (height * width))
    q = torch.randn(count, height, HEADS, HEAD_DIM).transpose(1, 2)
    # Neighbouring strips share most of their keys, as those of a window do.
    row = HEADS * HEAD_DIM
    k, v = (
        torch.randn(count * height + width, row).as_strided(
            (count, HEADS, width, HEAD_DIM), (height * row, HEAD_DIM, row, 1)
        )
        for _ in range(2)
    )
    return Trial(q, k, v, torch.zeros(height, width) if masked else None, causal)


def _per_row(direction: str, trial: Trial, rounds: int) -> float:
    call = trial.forward if direction == "forward" else trial.backward()
    return _best(call, rounds) / trial.rows


def _causal_cell(direction: str, rounds: int) -> float:
    """A cell of those that the causal mode computes, at a length where rows hardly count."""
    size = 2048
    trial = _trial(size, size, causal=True)
    planes = trial.rows / size
    return round(
        _per_row(direction, trial, rounds) * trial.rows / (planes * causal_cells(size, size)), 3
    )


def _call(direction: str) -> float:
    """What a call costs before it computes anything."""
    trial = _trial(1, 1)
    tiny = Trial(trial.q[:1, :1], trial.k[:1, :1], trial.v[:1, :1], None, causal=False)
    call = tiny.forward if direction == "forward" else tiny.backward()
    # The views, and writing the result or adding the gradients, take more than the call itself.
    return round(_best(call, 200) * (4 if direction == "forward" else 8))


def _gather(keys: int) -> tuple[float, float]:
    """Nanoseconds of copying so many keys and values: all of it, and of one key in one plane."""
    k = torch.randn(1, 4096, HEADS, HEAD_DIM).transpose(1, 2)
    index = torch.randperm(4096)[:keys].sort().values
    took = 2 * _best(lambda: k.index_select(2, index), 50)
    return round(took), round(took / (keys * HEADS), 1)


def _merge() -> float:
    out, lse = torch.randn(1, HEADS, 1024, HEAD_DIM), torch.randn(1, HEADS, 1024)
    return round(_best(lambda: merge(out, lse, out, lse), 30) / (HEADS * 1024), 1)


def _native(direction: str, rounds: int) -> dict[str, float]:
    """The kernel in C: a mask of many cells a row, one of few, and one of a single cell."""
    if loaded().library is None:
        known = packaged_costs()[direction]
        return {name: getattr(known, name) for name in ("native_cell", "native_row", "native_call")}
    call = _native_call(direction, causal(), 1, 200)
    much, little = (
        (_native_call(direction, mask, size, rounds) - call, mask.on(size).count() * HEADS, size)
        for mask, size in ((causal(), 2048), (window(back=31), 4096))
    )
    # Two unknowns, a cell and a row, from two measurements.
    (took, cells, rows), (took_few, few, rows_few) = much, little
    rows, rows_few = rows * HEADS, rows_few * HEADS
    row = max(0.0, (took_few * cells - took * few) / (rows_few * cells - rows * few))
    cell = max(0.01, (took - row * rows) / cells)
    return {"native_cell": round(cell, 3), "native_row": round(row, 1), "native_call": round(call)}


def _native_call(direction: str, mask: Mask, size: int, rounds: int) -> float:
    q, k, v = (torch.randn(1, size, HEADS, HEAD_DIM).transpose(1, 2) for _ in range(3))
    bound = mask.on(size, heads=HEADS)
    if direction == "forward":
        return _best(lambda: attention(q, k, v, bound, impl="native"), rounds)
    for x in (q, k, v):
        x.requires_grad_()
    out = attention(q, k, v, bound, impl="native")
    return _best(
        lambda: torch.autograd.grad(out, (q, k, v), out.detach(), retain_graph=True), rounds
    )


def _falling(values: list[float]) -> tuple[float, ...]:
    """A taller strip is never dearer by the cell: what says so is noise."""
    least = float("inf")
    found = []
    for value in values:
        least = min(least, value)
        found.append(round(least, 3))
    return tuple(found)


def _best(call: Callable[[], object], rounds: int) -> float:
    """The best of some calls, in nanoseconds."""
    call()
    best = float("inf")
    begin = time.perf_counter()
    for _ in range(rounds):
        start = time.perf_counter()
        call()
        best = min(best, time.perf_counter() - start)
        if time.perf_counter() - begin > MOST_SECONDS:
            break
    return best * 1e9
