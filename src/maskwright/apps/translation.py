"""Translation by an encoder-decoder: numbers in words, dates, Debian's package descriptions.

No number, date or description is both in the training data and held out.
"""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any

from maskwright._optional_deps import require
from maskwright.apps.data.corpora import debian_descriptions
from maskwright.apps.data.text import Pair, bpe_tokenizer, evenly_spaced, read_pairs
from maskwright.apps.seq2seq import PairDataset, Seq2SeqTask, split_pairs
from maskwright.apps.trainer import TrainingConfig
from maskwright.errors import ArgumentError
from maskwright.models.seq2seq import Seq2SeqConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maskwright.apps import Prompt, TaskOptions

ALL_BELOW, NUM_NUMBERS, MAX_NUMBER = 1_000, 10_000, 100_000  # all small numbers, some larger ones
NUM_DATES, FIRST_DAY, LAST_DAY = 5_000, date(1900, 1, 1), date(2099, 12, 31)
DATE_FORMATS = ("long", "full")  # without the weekday, and with it
NUM_TESTED, NUM_SHOWN = 500, 4  # held-out pairs of the report
LANGUAGES = ("en", "de")


PRESETS = {  # vocab_size, block_size, dropout, and hyperparameters of training
    "numbers": (360, 48, 0.0, TrainingConfig(800, 2e-3, warmup_steps=100, eval_interval=250)),
    "dates": (600, 48, 0.0, TrainingConfig(800, 2e-3, warmup_steps=100, eval_interval=250)),
    "debian": (3000, 48, 0.1, TrainingConfig(2000, 2e-3, warmup_steps=100, eval_interval=250)),
    "own": (3000, 96, 0.1, TrainingConfig(2000, 1e-3, warmup_steps=100, eval_interval=250)),
}


class Translation(Seq2SeqTask):
    """Translates, after training on pairs."""

    name = "translation"
    summary = "an encoder-decoder that translates numbers, dates, or package descriptions"
    versions = ("numbers", "dates", "debian")
    own_data = ("pairs", "data")

    @classmethod
    def resolve_version(cls, options: TaskOptions) -> str:
        """The version; "own" for pairs of the user's own.

        >>> from maskwright.apps import TaskOptions
        >>> from maskwright.apps.translation import Translation
        >>> [Translation.resolve_version(TaskOptions(**x)) for x in ({}, {"data": "debian"})]
        ['numbers', 'debian']
        """
        if options.pairs is not None:
            return "own"
        return "debian" if options.data == "debian" else super().resolve_version(options)

    @classmethod
    def training_config(cls, options: TaskOptions) -> TrainingConfig:
        """Some minutes on two cores."""
        return replace(PRESETS[cls.resolve_version(options)][-1], seed=options.seed)

    def make_dataset(self) -> PairDataset:
        """Pairs made by a library, fetched by apt, or the user's own."""
        if self.options.pairs is not None:
            groups = [[pair] for pair in dict(read_pairs(self.options.pairs)).items()]
        elif self.version == "debian":
            groups = debian_descriptions(*LANGUAGES)
        else:
            make = number_pairs if self.version == "numbers" else date_pairs
            groups = make(*parse_languages(self.options.data))
        training, held_out = split_pairs(groups)
        vocab_size, block_size, *_ = PRESETS[self.version]
        source, target = (
            bpe_tokenizer([pair[side] for pair in training], vocab_size) for side in (0, 1)
        )
        return PairDataset(training, held_out, source, target, block_size)

    def make_config(self) -> Seq2SeqConfig:
        """The sizes of the preset."""
        _, block_size, dropout, _ = PRESETS[self.version]
        source, target = self.source_tokenizer, self.target_tokenizer
        return Seq2SeqConfig(
            source.get_vocab_size(), target.get_vocab_size(), block_size, dropout=dropout
        )

    def sample(self) -> str:
        """The translation of a held-out text."""
        [(source, _)], [translated] = self.generate_held_out(1)
        return f"{source} → {translated}"

    def report(self) -> Iterator[str]:
        """Held-out loss, exact match and BLEU, and examples."""
        tested, translated = self.generate_held_out(NUM_TESTED)
        by_character = self.version in ("numbers", "dates")
        references = [target for _, target in tested]
        score = bleu(translated, references, by_character=by_character)
        yield (
            f"held-out loss {self.evaluate():.3f} nats/token; "
            f"exact match {exact_match(translated, references):.1%} of {len(tested)}; "
            f"BLEU {score:.1f}{' by character' if by_character else ''}"
        )
        examples = list(zip(tested, translated, strict=True))
        for (source, target), text in evenly_spaced(examples, NUM_SHOWN):
            verdict = "correct" if text == target else f"expected {target!r}"
            yield f"{source!r} → {text!r} ({verdict})"

    def score_generation(self, reference: Any) -> tuple[str, float]:  # noqa: ARG002
        """Exact match on held-out texts."""
        tested, translated = self.generate_held_out(NUM_TESTED)
        return "exact match", exact_match(translated, [target for _, target in tested])

    def predict(self, prompt: Prompt) -> Iterator[str]:
        """The translation of every line."""
        lines = [line.strip() for line in (prompt.text or "").splitlines() if line.strip()]
        if not lines:
            raise ArgumentError("The text to translate is empty. Pass one.")
        yield from self.generate_from_texts(lines, prompt.num_beams)


def parse_languages(data: str | None) -> tuple[str, str]:
    """Source and target language.

    >>> from maskwright.apps.translation import parse_languages
    >>> parse_languages(None), parse_languages("fr-en")
    (('en', 'de'), ('fr', 'en'))
    """
    if data is None:
        return LANGUAGES
    left, dash, right = data.partition("-")
    if not (left and dash and right):
        raise ArgumentError(
            f"translation has no data {data!r}. Pass debian, or two languages such as en-fr."
        )
    return left, right


def number_pairs(left: str, right: str) -> list[list[Pair]]:
    """Numbers in the words of two languages, each a group of its own.

    >>> from maskwright.apps.translation import number_pairs
    >>> number_pairs("en", "de")[42]
    [('forty-two', 'zweiundvierzig')]
    """
    with require("translation"):
        from num2words import num2words
    larger = random.Random(0).sample(range(ALL_BELOW, MAX_NUMBER), NUM_NUMBERS - ALL_BELOW)
    try:
        return [
            [(num2words(n, lang=left), num2words(n, lang=right))]
            for n in (*range(ALL_BELOW), *sorted(larger))
        ]
    except NotImplementedError as error:
        raise ArgumentError(
            f"num2words does not support both {left!r} and {right!r}. Pass others, such as en-fr."
        ) from error


def date_pairs(left: str, right: str) -> list[list[Pair]]:
    """Dates in two languages; a group is one day in all `DATE_FORMATS`.

    >>> from maskwright.apps.translation import date_pairs
    >>> date_pairs("en", "de")[0]
    [('January 10, 1900', '10. Januar 1900'),
     ('Wednesday, January 10, 1900', 'Mittwoch, 10. Januar 1900')]
    """
    with require("translation"):
        from babel import UnknownLocaleError
        from babel.dates import format_date
    days = random.Random(0).sample(range((LAST_DAY - FIRST_DAY).days + 1), NUM_DATES)
    try:
        return [
            [
                (format_date(day, style, locale=left), format_date(day, style, locale=right))
                for style in DATE_FORMATS
            ]
            for day in (FIRST_DAY + timedelta(n) for n in sorted(days))
        ]
    except (UnknownLocaleError, ValueError) as error:
        raise ArgumentError(
            f"babel does not support both {left!r} and {right!r}. Pass others, such as en-fr."
        ) from error


def exact_match(texts: list[str], references: list[str]) -> float:
    """The share of texts that equal their reference."""
    return sum(a == b for a, b in zip(texts, references, strict=True)) / len(references)


def bleu(texts: list[str], references: list[str], *, by_character: bool) -> float:
    """Corpus BLEU, 0 to 100; by character where texts are shorter than four words.

    >>> from maskwright.apps.translation import bleu
    >>> round(bleu(["zweiundvierzig"], ["zweiundvierzig"], by_character=True))
    100
    """
    with require("translation"):
        import sacrebleu
    tokenize = "char" if by_character else "13a"
    return float(sacrebleu.corpus_bleu(texts, [references], tokenize=tokenize).score)
