"""Tasks on pairs of texts: an encoder-decoder that generates the target from the source.

`PairDataset` tokenizes pairs and draws batches; `Seq2SeqTask` trains and runs the model. Encoder and
cross-attention attend to the source without its padding, the decoder to its own past.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import torch
from torch.nn.functional import cross_entropy

from maskwright.apps import Task
from maskwright.apps.data.text import (
    BEGIN_ID,
    END_ID,
    IGNORE_INDEX,
    PAD_ID,
    SPECIAL,
    encode_prompt,
    evenly_spaced,
)
from maskwright.apps.trainer import step_generator
from maskwright.core.atoms import padding
from maskwright.errors import ArgumentError
from maskwright.models.seq2seq import Seq2Seq, Seq2SeqConfig

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from tokenizers import Tokenizer

    from maskwright.apps.data.text import Pair
    from maskwright.core.expr import Mask

Ids = tuple[list[int], list[int]]  # source and target, without padding

HELD_OUT = 0.1
NUM_EVALUATED = 256  # held-out pairs per evaluation
INFERENCE_BATCH_SIZE = 64
NUM_LENGTHS = 4  # different source lengths in a training batch
MIN_TRAINING_PAIRS = 10


@dataclass(frozen=True)
class PairBatch:
    """Pairs as padded ids."""

    source: torch.Tensor  # (B, S)
    source_padding: Mask
    target: torch.Tensor  # (B, T), starting with <begin>
    target_padding: Mask
    labels: torch.Tensor  # (B, T), the targets one token later, up to <end>; then IGNORE_INDEX

    @property
    def num_labels(self) -> int:
        """Tokens that the loss counts."""
        return int((self.labels != IGNORE_INDEX).sum())


class PairDataset:
    """Tokenized pairs, training and held-out.

    Args:
        training: Pairs of source and target.
        held_out: Pairs for evaluation.
        source_tokenizer: Tokenizer of the sources.
        target_tokenizer: Tokenizer of the targets.
        block_size: Maximum tokens per side. Longer pairs are left out.
        truncate: Whether longer sources are truncated instead.
        drop_source: Share of training sources that are replaced by `<begin>` alone.

    Raises:
        ArgumentError: If too few pairs are short enough.
    """

    def __init__(
        self,
        training: Sequence[Pair],
        held_out: Sequence[Pair],
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        block_size: int,
        *,
        truncate: bool = False,
        drop_source: float = 0.0,
    ) -> None:
        self.source_tokenizer, self.target_tokenizer = source_tokenizer, target_tokenizer
        self.block_size, self.truncate, self.drop_source = block_size, truncate, drop_source
        _, self.training = self._encode(training)
        self.held_out_texts, self.held_out = self._encode(held_out)
        if len(self.training) < MIN_TRAINING_PAIRS or not self.held_out:
            raise ArgumentError(
                f"Only {len(self.training) + len(self.held_out)} pairs have at most {block_size} "
                "tokens per side. Pass shorter texts, or more."
            )
        self._by_length: dict[int, list[Ids]] = {}
        for pair in self.training:
            self._by_length.setdefault(len(pair[0]), []).append(pair)

    def batch(self, generator: torch.Generator, batch_size: int) -> PairBatch:
        """Random training pairs with few different source lengths, so with little padding.

        Lengths are drawn as often as they occur, so every pair has the same probability.
        """
        draws = torch.randint(len(self.training), (NUM_LENGTHS,), generator=generator).tolist()
        chosen = []
        for row in range(batch_size):
            same_length = self._by_length[len(self.training[draws[row % NUM_LENGTHS]][0])]
            pair = same_length[int(torch.randint(len(same_length), (), generator=generator))]
            drop = float(torch.rand((), generator=generator)) < self.drop_source
            chosen.append(without_source(pair) if drop else pair)
        return collate(sorted(chosen, key=lambda pair: len(pair[0])))

    def _encode(self, pairs: Sequence[Pair]) -> tuple[list[Pair], list[Ids]]:
        """The pairs that fit into the block size, and their ids."""
        sources = self.source_tokenizer.encode_batch([pair[0] for pair in pairs])
        targets = self.target_tokenizer.encode_batch([pair[1] for pair in pairs])
        max_tokens = self.block_size - 2
        kept, encoded = [], []
        for pair, source, target in zip(pairs, sources, targets, strict=True):
            ids = source.ids[:max_tokens] if self.truncate else source.ids
            if len(ids) <= max_tokens and len(target.ids) <= max_tokens + 1:
                kept.append(pair)
                encoded.append(([BEGIN_ID, *ids, END_ID], target.ids))
        return kept, encoded


class Seq2SeqTask(Task):
    """Base of the tasks that generate one text from another."""

    own_data: ClassVar[tuple[str, ...]] = ("pairs",)
    tokenizers = ("source_tokenizer", "target_tokenizer")
    default_batch_size = INFERENCE_BATCH_SIZE
    model_config = Seq2SeqConfig(0, 0)
    num_beams: ClassVar[int] = 1

    dataset: PairDataset
    source_tokenizer: Tokenizer
    target_tokenizer: Tokenizer
    model: Seq2Seq

    def make_dataset(self) -> PairDataset:
        """Reads the pairs and trains the tokenizers."""
        raise NotImplementedError

    def load_data(self) -> None:
        """Makes the dataset."""
        self.dataset = self.make_dataset()
        self.source_tokenizer = self.dataset.source_tokenizer
        self.target_tokenizer = self.dataset.target_tokenizer

    def make_model(self, config: Seq2SeqConfig) -> Seq2Seq:
        """An encoder-decoder."""
        assert self.mask is not None
        ahead = np.triu(self.mask.on(config.block_size, heads=config.n_head).dense(), 1)
        self.attends_ahead = bool(ahead.any())  # then the target's padding must be masked
        return Seq2Seq(config, self.mask)

    def batch(self, step: int, micro_step: int) -> PairBatch:
        """Random training pairs."""
        generator = step_generator(self.options.seed, step, micro_step)
        return self.dataset.batch(generator, self.batch_size)

    def loss(self, batch: PairBatch) -> torch.Tensor:
        """Cross-entropy of the target tokens, without padding."""
        logits = self.model(
            batch.source.to(self.device),
            batch.target.to(self.device),
            batch.source_padding,
            batch.target_padding if self.attends_ahead else None,
        )
        labels = batch.labels.to(self.device)
        return cross_entropy(logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORE_INDEX)

    def num_tokens(self, batch: PairBatch) -> int:
        """Target and source tokens, without padding."""
        return batch.num_labels + int((batch.source != PAD_ID).sum())

    def evaluate(self, *, drop_source: bool = False) -> float:
        """Mean loss per held-out target token, with the source or without."""
        pairs = evenly_spaced(self.dataset.held_out, NUM_EVALUATED)
        if drop_source:
            pairs = [without_source(pair) for pair in pairs]
        pairs = sorted(pairs, key=lambda pair: len(pair[0]))
        total, count = 0.0, 0
        self.model.eval()
        with torch.no_grad():
            for start in range(0, len(pairs), INFERENCE_BATCH_SIZE):
                batch = collate(pairs[start : start + INFERENCE_BATCH_SIZE])
                total += float(self.loss(batch)) * batch.num_labels
                count += batch.num_labels
        return total / count

    def generate(self, sources: Sequence[list[int]], num_beams: int = 1) -> list[str]:
        """The generated texts for source ids, in batches of similar length."""
        self.model.eval()
        order = sorted(range(len(sources)), key=lambda n: len(sources[n]))
        texts = [""] * len(sources)
        for start in range(0, len(order), INFERENCE_BATCH_SIZE):
            rows = order[start : start + INFERENCE_BATCH_SIZE]
            ids, mask = pad_ids([sources[n] for n in rows], PAD_ID)
            ids, limit = ids.to(self.device), self.model.config.block_size
            if num_beams == 1:
                generated = self.model.generate(ids, limit, src_padding=mask)
            else:
                generated = self.model.beam_search(
                    ids, limit, src_padding=mask, num_beams=num_beams
                )
            for n, row in zip(rows, generated.tolist(), strict=True):
                texts[n] = self.decode(row)
        return texts

    def generate_held_out(self, count: int) -> tuple[list[Pair], list[str]]:
        """Held-out pairs and what the model generates for their sources."""
        sources = [source for source, _ in evenly_spaced(self.dataset.held_out, count)]
        return evenly_spaced(self.dataset.held_out_texts, count), self.generate(sources)

    def generate_from_texts(self, texts: Sequence[str], num_beams: int | None) -> list[str]:
        """The generated texts for prompts."""
        limit = self.model.config.block_size - 2
        sources = [
            [BEGIN_ID, *encode_prompt(self.source_tokenizer, text, limit), END_ID] for text in texts
        ]
        return self.generate(sources, self.num_beams if num_beams is None else num_beams)

    def decode(self, ids: list[int]) -> str:
        """The text of generated ids, up to <end>."""
        if END_ID in ids:
            ids = ids[: ids.index(END_ID)]
        text: str = self.target_tokenizer.decode(ids, skip_special_tokens=True)
        return text

    def audit_inputs(self) -> tuple[Any, Any, Mapping[str | None, Mask]]:
        """Random pairs: the decoder must respect its mask, and nothing may read source padding."""
        assert self.mask is not None
        config, src_padding = self.model.config, padding(lengths=[7, 12])
        src = self.random_ids(len(SPECIAL), config.src_vocab_size, (2, 12))
        tgt = self.random_ids(len(SPECIAL), config.tgt_vocab_size, (2, 10))
        inputs = {"src": src, "tgt": tgt, "src_padding": src_padding}
        return self.model, inputs, {"src": src_padding, "tgt": self.mask}


def collate(pairs: Sequence[Ids]) -> PairBatch:
    """Pairs of ids as padded tensors.

    >>> from maskwright.apps.seq2seq import collate
    >>> batch = collate([([1, 7, 2], [8, 9]), ([1, 2], [8])])
    >>> batch.source.tolist(), batch.source_padding
    ([[1, 7, 2], [1, 2, 0]], padding(lengths=[3, 2]))
    >>> batch.target.tolist(), batch.labels.tolist()
    ([[1, 8, 9], [1, 8, 0]], [[8, 9, 2], [8, 2, -100]])
    """
    source, source_padding = pad_ids([pair[0] for pair in pairs], PAD_ID)
    target, target_padding = pad_ids([[BEGIN_ID, *pair[1]] for pair in pairs], PAD_ID)
    labels, _ = pad_ids([[*pair[1], END_ID] for pair in pairs], IGNORE_INDEX)
    return PairBatch(source, source_padding, target, target_padding, labels)


def pad_ids(rows: Sequence[list[int]], value: int) -> tuple[torch.Tensor, Mask]:
    """Rows of ids as one tensor (B, T), and their padding mask."""
    tensors = [torch.tensor(row) for row in rows]
    ids = torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=value)
    return ids, padding(lengths=[len(row) for row in rows])


def without_source(pair: Ids) -> Ids:
    """The pair with <begin> alone as its source."""
    return [BEGIN_ID], pair[1]


def split_pairs(groups: Sequence[list[Pair]]) -> tuple[list[Pair], list[Pair]]:
    """Training and held-out pairs; a group is never split, and no source is in both.

    >>> from maskwright.apps.seq2seq import split_pairs
    >>> training, held_out = split_pairs([[(str(n), str(-n))] for n in range(20)])
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
