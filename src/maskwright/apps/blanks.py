"""A text in sentences, some of whose tokens are blanked out."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import torch

from maskwright.apps.tokens import SPECIAL
from maskwright.apps.training import seeded
from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

ENDS = tuple(".:!?。！？")
BETWEEN = re.compile(r"(?<=[.!?])\s+|(?<=[。！？])")
HELD_OUT = 0.1  # of the sentences
BLANKED, HIDDEN, SWAPPED = 0.3, 0.8, 0.1  # of all tokens; of the blanked ones; of these as well
LEAST_LETTERS, LEAST_SENTENCES = 20, 20
SKIP = -100  # a target that is none


class Blanks(NamedTuple):
    """Sentences with blanks: (B, T) each."""

    ids: torch.Tensor
    keep: torch.Tensor  # False is padding
    targets: torch.Tensor  # what stood in a blank


def sentences(text: str) -> list[str]:
    """The different sentences of a text, without headings and code; its lines, if it has too few.

    >>> from maskwright.apps.blanks import sentences
    >>> sentences(" ".join(f"This is the sentence number {n}. Short." for n in range(20)))[0]
    'This is the sentence number 0.'
    """
    paragraphs = [
        " ".join(part.split()) for part in re.split(r"\n\s*\n", text) if ">>>" not in part
    ]
    found = [one for part in paragraphs for one in BETWEEN.split(part)]
    whole = _long_enough(one for one in found if one[-1:] in ENDS)
    if len(whole) < LEAST_SENTENCES:
        whole = _long_enough(" ".join(line.split()) for line in text.splitlines())
    if len(whole) < LEAST_SENTENCES:
        raise ArgumentError(
            f"The text has {len(whole)} different sentences or lines of {LEAST_LETTERS} letters, and "
            f"{LEAST_SENTENCES} are the least to learn from. Give a longer text."
        )
    return whole


def split(whole: Sequence[str]) -> tuple[list[str], list[str]]:
    """Sentences to train on, and sentences held out, drawn always alike.

    >>> from maskwright.apps.blanks import split
    >>> training, held_out = split([f"sentence {n}" for n in range(40)])
    >>> len(training), len(held_out)
    (36, 4)
    """
    order = torch.randperm(len(whole), generator=seeded(0, 0)).tolist()
    cut = max(1, round(HELD_OUT * len(whole)))
    return [whole[n] for n in order[cut:]], [whole[n] for n in order[:cut]]


def blanked(rows: Sequence[Sequence[int]], hidden: int, source: torch.Generator) -> Blanks:
    """Fill sentences up to one length, and blank some tokens of each, one at the least.

    Of the blanked tokens most are hidden, some are swapped for any other, and some stay as they
    are, so that the model has to know every token, and not only the hidden ones.

    >>> import torch
    >>> from maskwright.apps.blanks import blanked
    >>> made = blanked([[7, 8, 9], [7, 8]], hidden=10, source=torch.Generator().manual_seed(0))
    >>> made.ids.shape, made.keep.tolist()
    (torch.Size([2, 3]), [[True, True, True], [True, True, False]])
    """
    lengths = torch.tensor([len(row) for row in rows])
    shape = (len(rows), int(lengths.max()))
    keep = torch.arange(shape[1]) < lengths[:, None]
    ids = torch.zeros(shape, dtype=torch.long)
    ids[keep] = torch.tensor([token for row in rows for token in row])
    draw = torch.rand(shape, generator=source).masked_fill(~keep, 2.0)
    chosen = (draw < BLANKED) | (draw == draw.min(dim=1, keepdim=True).values)
    how = torch.rand(shape, generator=source)
    other = torch.randint(len(SPECIAL), hidden, shape, generator=source)
    given = ids.where(~chosen | (how >= HIDDEN), hidden)
    given = given.where(~chosen | (how < HIDDEN) | (how >= HIDDEN + SWAPPED), other)
    return Blanks(given, keep, ids.where(chosen, SKIP))


def _long_enough(found: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(one for one in found if len(one) >= LEAST_LETTERS))
