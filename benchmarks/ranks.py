"""How evenly masks are shared out over ranks, and how much is moved: python -m benchmarks.ranks."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

import maskwright as mw
from benchmarks.core import document_lengths
from maskwright.parallel.balance import balance

if TYPE_CHECKING:
    from collections.abc import Iterator

RANKS = (8, 64, 256)


def masks(tokens: int) -> Iterator[tuple[str, mw.BoundMask]]:
    """The patterns of the suite that a rank's own keys belong to, on so many tokens."""
    side = int(tokens**0.5)
    lengths = document_lengths(tokens, tokens // 512)
    yield "none", mw.everything().on(tokens)
    yield "causal", mw.causal().on(tokens)
    yield "ragged", (mw.causal() & mw.padding(lengths=[tokens, tokens // 4 + 77])).on(tokens)
    yield "window", mw.recipes.sliding(256).on(tokens)
    yield "documents", mw.recipes.packed(lengths=[lengths]).on(tokens)
    yield "prefix-lm", mw.recipes.prefix_lm(tokens // 4).on(tokens)
    yield "sinks", mw.recipes.sinks(256, sinks=4).on(tokens)
    yield "chunked", mw.recipes.chunked(512).on(tokens)
    yield "longformer", mw.recipes.longformer(128, range(16)).on(tokens)
    yield "bigbird", mw.recipes.bigbird(tokens, block=64, seed=0).on(tokens)
    yield "dilated", (mw.window(back=1023) & mw.stride(4)).on(tokens)
    if side * side == tokens:
        yield "image", mw.image(side, side, radius=3).on(tokens)
    heads = [mw.causal(), mw.recipes.sliding(256), mw.recipes.packed(lengths=[lengths])]
    yield "by-head", mw.by_head([*heads, mw.recipes.chunked(512)]).on(tokens)


def main(tokens: int) -> None:
    """Print the table of docs/parallel.md."""
    print("| mask | ranks | contiguous | zig-zag | chosen | how | rows | moved | seconds |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, bound in masks(tokens):
        for ranks in RANKS:
            plain = balance(bound, ranks, how="contiguous").balance
            folded = balance(bound, ranks, how="zig-zag").balance
            began = time.perf_counter()
            chosen = balance(bound, ranks)
            took = time.perf_counter() - began
            print(
                f"| {name} | {ranks} | {plain:.2f} | {folded:.2f} | {chosen.balance:.3f} | "
                f"{chosen.how} | {chosen.evenness:.2f} | {chosen.ring_share:.1%} | {took:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2**20)
