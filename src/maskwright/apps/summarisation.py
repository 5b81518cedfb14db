"""Summarisation by an encoder-decoder with a pointer: a docstring's first line from its body.

The report compares the loss with the source and without it. For a fair comparison the model must
have learnt to do without: in training a share of the sources is replaced by `<begin>` alone.
"""

from __future__ import annotations

from statistics import mean, median
from typing import TYPE_CHECKING, Any

import torch

from maskwright._optional_deps import require
from maskwright.apps.data.corpora import docstring_pairs, is_summary
from maskwright.apps.data.text import Pair, bpe_tokenizer, evenly_spaced, read_pairs
from maskwright.apps.seq2seq import PairDataset, Seq2SeqTask, split_pairs
from maskwright.apps.trainer import TrainingConfig
from maskwright.errors import ArgumentError
from maskwright.models.seq2seq import Seq2Seq, Seq2SeqConfig

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from maskwright.apps import Prompt

VOCAB_SIZE, BLOCK_SIZE = 3000, 96  # longer bodies are truncated
DROP_SOURCE = 0.15
ROUGE_TYPES = ("rouge1", "rouge2", "rougeL")
NUM_TESTED, NUM_SHOWN = 200, 3  # held-out pairs of the report


class Summarisation(Seq2SeqTask):
    """Writes the first line of a docstring from the rest of it."""

    name = "summarisation"
    summary = "an encoder-decoder that writes a docstring's first line from the rest of it"
    versions = ("docstrings",)
    default_training = TrainingConfig(600, learning_rate=2e-3, warmup_steps=60, eval_interval=100)
    default_batch_size = 32
    num_beams = 4

    def make_dataset(self) -> PairDataset:
        """The docstrings of this machine, or the user's own texts with their summaries."""
        if self.options.pairs is None:
            training, held_out = (list(filter(is_summary, part)) for part in docstring_pairs())
        else:
            pairs = dict(read_pairs(self.options.pairs)).items()
            training, held_out = split_pairs([[pair] for pair in pairs])
        tokenizer = bpe_tokenizer([text for pair in training for text in pair], VOCAB_SIZE)
        return PairDataset(
            *(training, held_out, tokenizer, tokenizer, BLOCK_SIZE),
            truncate=True,
            drop_source=DROP_SOURCE,
        )

    def make_config(self) -> Seq2SeqConfig:
        """A model that can copy source tokens."""
        vocab_size = self.source_tokenizer.get_vocab_size()
        return Seq2SeqConfig(
            vocab_size, vocab_size, block_size=BLOCK_SIZE, dropout=0.1, use_pointer=True
        )

    def make_model(self, config: Seq2SeqConfig) -> Seq2Seq:
        """Source and target embeddings start equal, which helps the pointer."""
        model = super().make_model(config)
        with torch.no_grad():
            model.encoder.token_embedding.weight.copy_(model.decoder.token_embedding.weight)
        return model

    def sample(self) -> str:
        """The summary of a held-out body, and the original."""
        [(_, original)], [summary] = self.generate_held_out(1)
        return f"{summary} (original: {original})"

    def report(self) -> Iterator[str]:
        """Loss with and without the source, ROUGE compared with the body's first words, examples."""
        with_source, without = self.evaluate(), self.evaluate(drop_source=True)
        yield (
            f"held-out loss {with_source:.3f} nats/token with the source, {without:.3f} without: "
            f"{1 - with_source / without:.1%} lower"
        )
        tested, summaries = self.generate_held_out(NUM_TESTED)
        references = [summary for _, summary in tested]
        for name, texts in (("model", summaries), ("first words of the body", lead(tested))):
            scores = ", ".join(
                f"{key.upper()[:5]}-{key[5:]} {value:.3f}"
                for key, value in rouge(texts, references).items()
            )
            yield f"{name}: {scores} on {len(tested)} held-out pairs"
        examples = list(zip(tested, summaries, strict=True))
        for (body, original), summary in evenly_spaced(examples, NUM_SHOWN):
            yield f"{body[:60]!r}… → {summary!r} (original: {original!r})"

    def score_generation(self, reference: Any) -> tuple[str, float]:  # noqa: ARG002
        """ROUGE-1 of held-out summaries."""
        tested, summaries = self.generate_held_out(NUM_TESTED)
        return "ROUGE-1", rouge(summaries, [summary for _, summary in tested])["rouge1"]

    def predict(self, prompt: Prompt) -> Iterator[str]:
        """One line for the text."""
        text = " ".join((prompt.text or "").split())
        if not text:
            raise ArgumentError("The text to summarise is empty. Pass one.")
        yield from self.generate_from_texts([text], prompt.num_beams)


def lead(pairs: Sequence[Pair]) -> list[str]:
    """The first words of every body, up to the median length of the summaries.

    >>> from maskwright.apps.summarisation import lead
    >>> lead([("The cat sat on the mat.", "A cat sits."), ("Dogs bark a lot.", "Dogs are loud.")])
    ['The cat sat', 'Dogs bark a']
    """
    count = round(median(len(summary.split()) for _, summary in pairs))
    return [" ".join(body.split()[:count]) for body, _ in pairs]


def rouge(texts: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """The mean F-measures of ROUGE-1, ROUGE-2 and ROUGE-L.

    >>> from maskwright.apps.summarisation import rouge
    >>> rouge(["the black cat"], ["the black dog"])["rouge2"]
    0.5
    """
    with require("summarisation"):
        from rouge_score.rouge_scorer import RougeScorer
    scorer = RougeScorer(list(ROUGE_TYPES))
    scores = [scorer.score(b, a) for a, b in zip(texts, references, strict=True)]
    return {key: mean(score[key].fmeasure for score in scores) for key in ROUGE_TYPES}
