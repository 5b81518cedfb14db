"""Prompts with their replies, packed into rows, and a GPT that reads them under the rows' mask.

The tokens of a prompt see each other in both directions; those of its reply see the prompt and the
reply so far. Several examples share a row, and none of them sees another. As the examples of a row
are other ones at every step, so is the mask: it is composed for each batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from maskwright.core.atoms import causal
from maskwright.core.atoms import documents as documents_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maskwright.core.expr import Mask
    from maskwright.models.attention import Cache
    from maskwright.models.gpt import GPT

SKIP = -100  # a target that is none


@dataclass(frozen=True)
class Example:
    """A prompt and its reply, as ids."""

    prompt: list[int]
    reply: list[int]

    def __len__(self) -> int:
        return len(self.prompt) + 1 + len(self.reply)  # <begin> stands between the two


@dataclass(frozen=True)
class Rows:
    """Examples packed into rows. All are (B, T)."""

    ids: torch.Tensor
    documents: torch.Tensor  # the example of each token; -1 is padding
    prompts: torch.Tensor  # the same for tokens of a prompt, and -1 for all others
    positions: torch.Tensor  # from 0, in each example
    targets: torch.Tensor  # the next token of the reply, and SKIP where there is none

    def inputs(self, device: torch.device) -> dict[str, torch.Tensor]:
        """What a `Packed` takes. What the mask is made of stays where it is."""
        return {
            "ids": self.ids.to(device),
            "documents": self.documents,
            "prompts": self.prompts,
            "positions": self.positions.to(device),
        }


class Packed(nn.Module):
    """A GPT on packed rows, under the mask of those rows."""

    def __init__(self, gpt: GPT, mask: Mask | None = None) -> None:
        super().__init__()
        self.gpt, self.mask = gpt, mask

    def forward(
        self,
        ids: torch.Tensor,
        documents: torch.Tensor,
        prompts: torch.Tensor,
        positions: torch.Tensor,
        caches: list[Cache] | None = None,
    ) -> torch.Tensor:
        """Logits of the next token: (B, T) → (B, T, vocabulary).

        With caches, `documents` and `prompts` cover the tokens that they hold as well.
        """
        mask = packed_mask(documents, prompts) if self.mask is None else self.mask
        logits: torch.Tensor = self.gpt(ids, mask, positions=positions, caches=caches)
        return logits


def packed_mask(documents: Any, prompts: Any) -> Mask:
    """The mask of packed examples: (B, T) each, -1 where a token is of none.

    >>> from maskwright.apps.packing import packed_mask
    >>> mask = packed_mask([[0, 0, 0, 1, 1, -1]], [[0, 0, -1, 1, -1, -1]])
    >>> for row in mask.on(6).dense()[0, 0].astype(int).tolist():
    ...     print(*row)
    1 1 0 0 0 0
    1 1 0 0 0 0
    1 1 1 0 0 0
    0 0 0 1 0 0
    0 0 0 1 1 0
    0 0 0 0 0 0
    """
    return documents_of(ids=documents) & (causal() | documents_of(ids=prompts))


def pack(examples: Sequence[Example], rows: int, length: int, begin: int, end: int) -> Rows:
    """Put examples into rows of that length, each into the first with room, until one fits nowhere.

    >>> from maskwright.apps.packing import Example, pack
    >>> packed = pack([Example([7, 8], [9]), Example([5], [6])], rows=1, length=9, begin=1, end=2)
    >>> packed.ids.tolist(), packed.targets.tolist()
    ([[7, 8, 1, 9, 5, 1, 6]], [[-100, -100, 9, 2, -100, 6, 2]])
    """
    filled: list[list[Example]] = []
    room: list[int] = []
    for example in examples:
        row = next((n for n, left in enumerate(room) if len(example) <= left), len(room))
        if row == rows:
            break
        if row == len(room):
            filled.append([])
            room.append(length)
        filled[row].append(example)
        room[row] -= len(example)
    shape = (len(filled), length - min(room))
    packed = Rows(*(torch.full(shape, fill) for fill in (0, -1, -1, 0, SKIP)))
    for row, held in enumerate(filled):
        at = 0
        for number, example in enumerate(held):
            cut, stop = at + len(example.prompt), at + len(example)
            packed.ids[row, at:stop] = torch.tensor([*example.prompt, begin, *example.reply])
            packed.documents[row, at:stop] = number
            packed.prompts[row, at:cut] = number
            packed.positions[row, at:stop] = torch.arange(stop - at)
            packed.targets[row, cut:stop] = torch.tensor([*example.reply, end])
            at = stop
    return packed
