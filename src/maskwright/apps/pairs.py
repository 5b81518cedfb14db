"""Pairs of texts, and an encoder-decoder that learns to turn the one into the other.

Here is what learning from pairs needs: ids and padding, batches by seed and step, a loss that
leaves padding out, and an evaluation. The three masks are those of `models.seq2seq`: the encoder's
tokens and the decoder's look at real source tokens only, and the decoder's look back at themselves.
"""

from __future__ import annotations

import importlib
import random
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from maskwright.apps.tokens import BEGIN, END, PAD, SPECIAL
from maskwright.apps.training import seeded
from maskwright.core.atoms import causal, padding
from maskwright.errors import ArgumentError, MissingError
from maskwright.models.seq2seq import Seq2Seq

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenizers import Tokenizer

    from maskwright.apps.app import Wishes
    from maskwright.core.expr import Mask
    from maskwright.models.seq2seq import Seq2SeqConfig

Pair = tuple[str, str]
Ids = tuple[list[int], list[int]]  # of a source and a target, without padding

PAD_ID, BEGIN_ID, END_ID = (SPECIAL.index(token) for token in (PAD, BEGIN, END))
IGNORED = -100  # what the loss leaves out
HELD_OUT = 0.1
EVALUATED = 256  # pairs, at each evaluation
AT_ONCE = 64  # pairs, where nothing is learned
LENGTHS = 4  # of sources, in a batch to learn from
LEAST = 10  # pairs to learn from, once those that are too long are left out


@dataclass(frozen=True)
class Lessons:
    """What there is to learn: pairs, cut in two, and how both sides are read."""

    training: Sequence[Pair]
    held_out: Sequence[Pair]
    reads: Tokenizer  # the source
    writes: Tokenizer  # the target
    cut: bool = False  # a long source is cut; if not, its pair is left out
    hidden: float = 0.0  # the share of sources that are hidden while it learns


@dataclass(frozen=True)
class Batch:
    """Pairs as ids, filled up to one length."""

    source: torch.Tensor  # (B, S)
    source_padding: Mask
    target: torch.Tensor  # (B, T), from <begin> on
    target_padding: Mask | None
    wanted: torch.Tensor  # (B, T), the same a token later, up to <end>; then IGNORED


class PairTask:
    """Pairs, and a model that is to write the second text when it has read the first."""

    def __init__(
        self, name: str, wishes: Wishes, version: str, lessons: Lessons, size: Seq2SeqConfig
    ) -> None:
        self.name, self.wishes, self.version = name, wishes, version
        self.mask = wishes.mask_or(causal())
        self.reads, self.writes, self.hidden = lessons.reads, lessons.writes, lessons.hidden
        _, self.training = fitting(lessons, lessons.training, size.context)
        self.held_out_texts, self.held_out = fitting(lessons, lessons.held_out, size.context)
        if len(self.training) < LEAST or not self.held_out:
            raise ArgumentError(
                f"Only {len(self.training) + len(self.held_out)} pairs are within {size.context} "
                "tokens a side. Give shorter texts, or more."
            )
        torch.manual_seed(wishes.seed)
        self.model = Seq2Seq(size, self.mask)
        self.size = wishes.batch or AT_ONCE
        self.looks_ahead = bool(
            np.triu(self.mask.on(size.context, heads=size.heads).dense(), 1).any()
        )
        self.by_length: dict[int, list[Ids]] = {}
        for pair in self.training:
            self.by_length.setdefault(len(pair[0]), []).append(pair)

    def config(self) -> dict[str, Any]:
        """The make of the model, both tokenisers, and where the pairs were from."""
        return {
            "version": self.version,
            "mask": repr(self.mask),
            "reads": self.reads.to_str(),
            "writes": self.writes.to_str(),
            "pairs": None if self.wishes.pairs is None else str(self.wishes.pairs),
            "data": self.wishes.data,
            "batch": self.size,
            "seed": self.wishes.seed,
            "model": asdict(self.model.config),
        }

    def batch(self, step: int, part: int) -> Batch:
        """Some pairs, of a few lengths; a share without the source, where the app wants it.

        The lengths are drawn as often as they occur, so every pair is as likely as any other. Few
        lengths, side by side, are few pieces of attention, and little of a batch is padding.
        """
        chance = seeded(self.wishes.seed, step, part)
        lengths = torch.randint(len(self.training), (LENGTHS,), generator=chance).tolist()
        chosen = []
        for place in range(self.size):
            alike = self.by_length[len(self.training[lengths[place % LENGTHS]][0])]
            pair = alike[int(torch.randint(len(alike), (), generator=chance))]
            hide = float(torch.rand((), generator=chance)) < self.hidden
            chosen.append(hide_source(pair) if hide else pair)
        return self.made_batch(sorted(chosen, key=lambda pair: len(pair[0])))

    def made_batch(self, pairs: Sequence[Ids]) -> Batch:
        """Pairs filled up; the target's padding is told only where the mask may look ahead to it."""
        batch = made_batch(pairs)
        return batch if self.looks_ahead else replace(batch, target_padding=None)

    def loss(self, batch: Batch) -> torch.Tensor:
        """How surprised the model is by the next target token, in nats; padding does not count."""
        device = device_of(self.model)
        logits = self.model(
            batch.source.to(device),
            batch.target.to(device),
            batch.source_padding,
            batch.target_padding,
        )
        return cross_entropy(
            logits.flatten(0, 1), batch.wanted.to(device).flatten(), ignore_index=IGNORED
        )

    def tokens(self, batch: Batch) -> int:
        """Real tokens of a batch: of the target, which are learned, and of the source."""
        return counted(batch) + int((batch.source != PAD_ID).sum())

    def evaluate(self) -> float:
        """The loss on pairs that were held out, always the same ones."""
        return self.held_out_loss()

    def held_out_loss(self, *, hidden: bool = False) -> float:
        """The mean loss of a held-out target token, with the source or without."""
        chosen = evenly(self.held_out, EVALUATED)
        if hidden:
            chosen = [hide_source(pair) for pair in chosen]
        chosen = sorted(chosen, key=lambda pair: len(pair[0]))
        total, count = 0.0, 0
        self.model.eval()
        with torch.no_grad():
            for start in range(0, len(chosen), AT_ONCE):
                batch = self.made_batch(chosen[start : start + AT_ONCE])
                total += float(self.loss(batch)) * counted(batch)
                count += counted(batch)
        return total / count


def fitting(lessons: Lessons, pairs: Sequence[Pair], context: int) -> tuple[list[Pair], list[Ids]]:
    """The pairs that are within the context, and their ids."""
    sources = lessons.reads.encode_batch([pair[0] for pair in pairs])
    targets = lessons.writes.encode_batch([pair[1] for pair in pairs])
    kept, found = [], []
    for pair, source, target in zip(pairs, sources, targets, strict=True):
        read = source.ids[: context - 2] if lessons.cut else source.ids
        if len(read) <= context - 2 and len(target.ids) <= context - 1:
            kept.append(pair)
            found.append(([BEGIN_ID, *read, END_ID], target.ids))
    return kept, found


def hide_source(pair: Ids) -> Ids:
    """The pair with nothing to read: <begin> alone is left of its source."""
    return [BEGIN_ID], pair[1]


def made_batch(pairs: Sequence[Ids]) -> Batch:
    """Pairs of ids, filled up.

    >>> from maskwright.apps.pairs import made_batch
    >>> batch = made_batch([([1, 7, 2], [8, 9]), ([1, 2], [8])])
    >>> batch.source.tolist(), batch.source_padding
    ([[1, 7, 2], [1, 2, 0]], padding(lengths=[3, 2]))
    >>> batch.target.tolist(), batch.wanted.tolist()
    ([[1, 8, 9], [1, 8, 0]], [[8, 9, 2], [8, 2, -100]])
    """
    source, source_padding = filled([pair[0] for pair in pairs], PAD_ID)
    target, target_padding = filled([[BEGIN_ID, *pair[1]] for pair in pairs], PAD_ID)
    wanted, _ = filled([[*pair[1], END_ID] for pair in pairs], IGNORED)
    return Batch(source, source_padding, target, target_padding, wanted)


def filled(rows: Sequence[list[int]], by: int) -> tuple[torch.Tensor, Mask]:
    """Rows of ids as one tensor, (B, T), and which of it is real."""
    longest = max(map(len, rows))
    ids = torch.tensor([row + [by] * (longest - len(row)) for row in rows])
    return ids, padding(lengths=[len(row) for row in rows])


def counted(batch: Batch) -> int:
    """How many tokens the loss counts."""
    return int((batch.wanted != IGNORED).sum())


def split(groups: Sequence[list[Pair]]) -> tuple[list[Pair], list[Pair]]:
    """Pairs to learn from and pairs held out; a group is never cut, and no source is in both.

    >>> from maskwright.apps.pairs import split
    >>> training, held_out = split([[(str(n), str(-n))] for n in range(20)])
    >>> len(training), len(held_out), set(training) & set(held_out)
    (18, 2, set())
    """
    order = list(range(len(groups)))
    random.Random(0).shuffle(order)
    aside = set(order[: max(1, round(len(groups) * HELD_OUT))])
    training = [pair for n, group in enumerate(groups) if n not in aside for pair in group]
    known = {source for source, _ in training}
    held_out = [pair for n in sorted(aside) for pair in groups[n] if pair[0] not in known]
    return training, held_out


def evenly(items: Sequence[Any], most: int) -> list[Any]:
    """At most so many of them, evenly spaced.

    >>> from maskwright.apps.pairs import evenly
    >>> evenly(range(10), 4), evenly("ab", 4)
    ([0, 2, 5, 7], ['a', 'b'])
    """
    if len(items) <= most:
        return list(items)
    return [items[n * len(items) // most] for n in range(most)]


def needed(app: str, library: str) -> Any:
    """A library that one app needs and the others do not.

    >>> from maskwright.apps.pairs import needed
    >>> needed("translation", "nowhere")
    Traceback (most recent call last):
    maskwright.errors.MissingError: translation: nowhere is not installed. \
Run: pip install 'maskwright[apps]'
    """
    try:
        return importlib.import_module(library)
    except ImportError as error:
        name = library.partition(".")[0]
        raise MissingError(
            f"{app}: {name} is not installed. Run: pip install 'maskwright[apps]'"
        ) from error


def device_of(model: Seq2Seq) -> torch.device:
    """Where a model is."""
    return model.target_words.weight.device
