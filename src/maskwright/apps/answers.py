"""Answers of an encoder-decoder: what it writes to texts, many at once, and whether it obeys its masks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from tokenizers import Tokenizer

from maskwright.apps.pairs import AT_ONCE, BEGIN_ID, END_ID, PAD_ID, device_of, filled
from maskwright.apps.tokens import SPECIAL, encode_known
from maskwright.auditing.run import audit
from maskwright.core.atoms import padding
from maskwright.core.parser import parse
from maskwright.errors import ArgumentError
from maskwright.models.seq2seq import Seq2Seq, Seq2SeqConfig

if TYPE_CHECKING:
    from collections.abc import Sequence

    from maskwright.apps.checkpoints import Progress
    from maskwright.apps.pairs import PairTask
    from maskwright.auditing.report import AuditReport
    from maskwright.core.expr import Mask

PROBES = ("leak", "reach", "gradient")


@dataclass(frozen=True)
class Trained:
    """A model that was trained, without its data."""

    model: Seq2Seq
    reads: Tokenizer
    writes: Tokenizer
    mask: Mask


def answers(task: PairTask | Trained, texts: Sequence[str], beams: int = 1) -> list[str]:
    """What the model writes when it reads these texts; several beams look further ahead."""
    return written(task, [read(task, text) for text in texts], beams)


def written(task: PairTask | Trained, sources: Sequence[list[int]], beams: int = 1) -> list[str]:
    """The same of sources as ids, those of like length together."""
    model = task.model
    model.eval()
    order = sorted(range(len(sources)), key=lambda n: len(sources[n]))
    found = [""] * len(sources)
    for start in range(0, len(order), AT_ONCE):
        rows = order[start : start + AT_ONCE]
        ids, real = filled([sources[n] for n in rows], PAD_ID)
        ids, most = ids.to(device_of(model)), model.config.context
        if beams == 1:
            said = model.greedy(ids, real, most=most)
        else:
            said = model.beam(ids, real, beams=beams, most=most)
        for n, row in zip(rows, said.tolist(), strict=True):
            found[n] = spelled(task.writes, row)
    return found


def spelled(tokenizer: Tokenizer, ids: list[int]) -> str:
    """Ids as text, up to the end of the sentence."""
    if END_ID in ids:
        ids = ids[: ids.index(END_ID)]
    text: str = tokenizer.decode(ids, skip_special_tokens=True)
    return text


def read(task: PairTask | Trained, text: str) -> list[int]:
    """A prompt as ids, all of which the model knows."""
    if not text.strip():
        raise ArgumentError("The prompt is empty. Give a text.")
    found = encode_known(task.reads, text)
    most = task.model.config.context - 2
    if len(found.ids) > most:
        raise ArgumentError(
            f"The prompt has {len(found.ids)} tokens but the model reads {most}. Give a shorter one."
        )
    return [BEGIN_ID, *found.ids, END_ID]


def trained(progress: Progress) -> Trained:
    """The model of a checkpoint, and its tokenisers."""
    config = progress.config
    mask = parse(config["mask"])
    return Trained(
        Seq2Seq(Seq2SeqConfig(**config["model"]), mask),
        Tokenizer.from_str(config["reads"]),
        Tokenizer.from_str(config["writes"]),
        mask,
    )


def audited(task: PairTask | Trained) -> AuditReport:
    """Does the decoder obey its mask, and does nothing look at the source's padding?"""
    config, chance = task.model.config, torch.Generator().manual_seed(0)
    real = padding(lengths=[7, 12])
    source = torch.randint(len(SPECIAL), config.source_vocabulary, (2, 12), generator=chance)
    target = torch.randint(len(SPECIAL), config.target_vocabulary, (2, 10), generator=chance)
    device = device_of(task.model)
    inputs = {"source": source.to(device), "target": target.to(device), "source_padding": real}
    return audit(task.model, inputs, expects={"source": real, "target": task.mask}, probes=PROBES)
