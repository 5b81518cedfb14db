"""The shape of an array: on which axes it lands, and whether those were meant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from maskwright.linting.findings import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

AXES: Final = ("k", "qk", "bk", "bqk", "hqk", "bhqk")
FROM_RIGHT: Final = {1: "k", 2: "qk", 3: "hqk", 4: "bhqk"}
NAMES: Final = {"b": "batch rows", "h": "heads", "q": "queries", "k": "keys"}

Shape = tuple[int, ...]


class Sizes(NamedTuple):
    """What is known about the frame; None is not known."""

    batch: int | None = None
    heads: int | None = None
    q_len: int | None = None
    kv_len: int | None = None
    q_start: int | None = None


class Placed(NamedTuple):
    """An array's shape as (batch, heads, queries, keys), None if it fits nowhere."""

    shape: tuple[int, int, int, int] | None
    findings: tuple[Finding, ...] = ()


def place(shape: Shape, axes: str | None, sizes: Sizes, to: str | None) -> Placed:
    """Where the axes land: where the caller says, else from the right."""
    letters = FROM_RIGHT.get(len(shape), "") if axes is None else axes
    if not letters or len(letters) != len(shape):
        takes = "(batch, heads, queries, keys)" if axes is None else f"axes={axes!r}"
        message = f"The mask has {len(shape)} axes, {shape}, which do not fit {takes}."
        fix = "Give one axis for each of these; a size of 1 stands for all."
        return Placed(None, (Finding("wrong-rank", message, fix),))
    b, h, t, s = (shape[letters.index(name)] if name in letters else 1 for name in "bhqk")
    if to == "drop" and axes is None and len(shape) == 3 and sizes.batch and sizes.heads:
        pairs = h == sizes.batch * sizes.heads  # as nn.MultiheadAttention has them
        b, h = (sizes.batch, sizes.heads) if pairs else (b, h)
    placed = (b, h, t, s)
    found = tuple(_mismatches(shape, letters, placed, sizes, guessed=axes is None))
    return Placed(None if found else placed, found)


def _mismatches(
    shape: Shape, letters: str, placed: Shape, sizes: Sizes, *, guessed: bool
) -> Iterator[Finding]:
    wrong = [
        (name, size, wanted)
        for name, size, wanted in zip("bhqk", placed, sizes[:4], strict=True)
        if wanted is not None and size not in (1, wanted)
    ]
    swapped = guessed and sizes.batch == shape[0] and letters[0] != "b"
    if swapped and wrong and all(name == letters[0] for name, *_ in wrong):
        _, size, wanted = wrong[0]
        index = "mask[:, None]" if letters == "hqk" else "mask[:, None, None, :]"
        yield Finding(
            "does-not-broadcast",
            f"Shape {shape} lines up from the right, so its {size} batch rows meet {wanted} "
            f"{NAMES[letters[0]]}.",
            f"Insert the missing axes: {index}.",
        )
        return
    for name, size, wanted in wrong:
        if name in "bh":
            message = f"The mask has {size} {NAMES[name]}, {shape}, but attention has {wanted}."
            fix = f"Give {wanted} of them, or 1, which stands for all."
            yield Finding("does-not-broadcast", message, fix)
            continue
        long = "more" if size > wanted else "fewer"
        message = f"The mask has {size} {NAMES[name]}, {long} than the {wanted} of attention."
        axis = "mask[..., :{}]" if name == "k" else "mask[..., :{}, :]"
        cut = f"Cut it, {axis.format(wanted)}, if it starts at the same token, or build"
        fix = f"{cut if size > wanted else 'Build'} it for these sizes."
        yield Finding("keys-mismatch" if name == "k" else "queries-mismatch", message, fix)
