"""Summaries by an encoder-decoder: the body of a docstring in, its first line out.

A pointer lets it copy words that it reads. How much does it get out of them? The loss with the
source stands beside the loss with the source hidden. For that to be fair the model must know how to
do without: while it learns, a share of the sources is hidden, of which one <begin> is left to see.
"""

from __future__ import annotations

from statistics import mean, median
from typing import TYPE_CHECKING

import torch

from maskwright.apps.answers import Trained, answers, audited, trained, written
from maskwright.apps.app import version_of
from maskwright.apps.docstrings import docstring_pairs, sums_up
from maskwright.apps.pairs import Lessons, Pair, PairTask, evenly, needed, split
from maskwright.apps.texts import read_pairs
from maskwright.apps.tokens import by_piece
from maskwright.apps.training import Course
from maskwright.errors import ArgumentError
from maskwright.models.seq2seq import Seq2SeqConfig

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from maskwright.apps.app import Prompt, Wishes
    from maskwright.apps.checkpoints import Progress

PIECES, CONTEXT = 3000, 96  # a longer body is cut
WIDTH, HEADS, LAYERS, DROPOUT = 128, 4, 2, 0.1
BATCH = 32
HIDDEN = 0.15  # of the sources, while it learns
SCORES = ("rouge1", "rouge2", "rougeL")
TESTED, SHOWN = 200, 3  # held-out pairs, in the report
BEAMS = 4


class Summarisation:
    """Learns to write the first line of a docstring, and writes one for any text."""

    name = "summarisation"
    summary = "an encoder-decoder that writes a docstring's first line from the rest of it"
    versions = ("docstrings",)

    def course(self, wishes: Wishes) -> Course:
        """Some minutes on two cores."""
        return Course(steps=600, rate=2e-3, warmup=60, evaluate_every=100, seed=wishes.seed)

    def task(self, wishes: Wishes) -> PairTask:
        """The docstrings of this machine, or a user's own pairs of a text and its summary."""
        version = version_of(self.name, self.versions, wishes.version)
        if wishes.pairs is None:
            training, held_out = (list(filter(sums_up, part)) for part in docstring_pairs())
        else:
            training, held_out = split([[pair] for pair in dict(read_pairs(wishes.pairs)).items()])
        pieces = by_piece([text for pair in training for text in pair], PIECES)
        lessons = Lessons(training, held_out, pieces, pieces, cut=True, hidden=HIDDEN)
        size = Seq2SeqConfig(
            pieces.get_vocab_size(),
            pieces.get_vocab_size(),
            context=CONTEXT,
            width=WIDTH,
            heads=HEADS,
            layers=LAYERS,
            dropout=DROPOUT,
            copies=True,
        )
        task = PairTask(self.name, wishes, version, lessons, size)
        task.size = wishes.batch or BATCH
        with torch.no_grad():  # one word is one thing, read or written: so words are soon copied
            task.model.source_words.weight.copy_(task.model.target_words.weight)
        return task

    def again(self, progress: Progress) -> Trained:
        """The model of a checkpoint, and its pieces."""
        return trained(progress)

    def sample(self, task: PairTask) -> str:
        """What it makes of one held-out body, beside the line that stands there."""
        said = written(task, [task.held_out[0][0]])[0]
        return f"{said} (its author: {task.held_out_texts[0][1]})"

    def report(self, task: PairTask) -> Iterator[str]:
        """What reading brings, ROUGE beside the first words of the body, examples, and the audit."""
        seen, unseen = task.held_out_loss(), task.held_out_loss(hidden=True)
        yield (
            f"held-out loss {seen:.3f} nats a token with the source, {unseen:.3f} with it hidden: "
            f"{1 - seen / unseen:.1%} less"
        )
        tested = evenly(task.held_out_texts, TESTED)
        said = written(task, [source for source, _ in evenly(task.held_out, TESTED)])
        for name, texts in (("the model", said), ("the body's first words", lead(tested))):
            found = rouge(texts, [summary for _, summary in tested])
            told = ", ".join(f"{key.upper()[:5]}-{key[5:]} {x:.3f}" for key, x in found.items())
            yield f"{told} of {name}, on {len(tested)} held out"
        for (body, summary), answer in evenly(list(zip(tested, said, strict=True)), SHOWN):
            yield f"{body[:60]!r}… → {answer!r} (its author: {summary!r})"
        yield str(audited(task)).splitlines()[0]

    def judged(self, task: PairTask, honest: PairTask) -> tuple[str, float]:
        """ROUGE-1 of the lines that it writes."""
        del honest
        said = written(task, [source for source, _ in evenly(task.held_out, TESTED)])
        wanted = [summary for _, summary in evenly(task.held_out_texts, TESTED)]
        return "ROUGE-1 of what it writes by itself", rouge(said, wanted)["rouge1"]

    def use(self, task: PairTask | Trained, prompt: Prompt) -> Iterator[str]:
        """One line for the text of the prompt."""
        text = " ".join((prompt.text or "").split())
        if not text:
            raise ArgumentError("The text to sum up is empty. Give one.")
        yield from answers(task, [text], BEAMS if prompt.beams is None else prompt.beams)


def lead(pairs: Sequence[Pair]) -> list[str]:
    """The first words of every body, as many as summaries have in the middle.

    >>> from maskwright.apps.summarisation import lead
    >>> lead([("The cat sat on the mat.", "A cat sits."), ("Dogs bark a lot.", "Dogs are loud.")])
    ['The cat sat', 'Dogs bark a']
    """
    count = round(median(len(summary.split()) for _, summary in pairs))
    return [" ".join(body.split()[:count]) for body, _ in pairs]


def rouge(said: Sequence[str], wanted: Sequence[str]) -> dict[str, float]:
    """The mean of ROUGE's F-measures: single words, words in twos, and the longest in order.

    >>> from maskwright.apps.summarisation import rouge
    >>> rouge(["the black cat"], ["the black dog"])["rouge2"]
    0.5
    """
    library = needed("summarisation", "rouge_score.rouge_scorer")
    scorer = library.RougeScorer(list(SCORES))
    found = [scorer.score(b, a) for a, b in zip(said, wanted, strict=True)]
    return {key: mean(one[key].fmeasure for one in found) for key in SCORES}
