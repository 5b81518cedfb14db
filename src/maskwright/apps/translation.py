"""Translation by an encoder-decoder: numbers in words, dates, Debian's package descriptions.

What is held out was never shown: no number, no date and no description is on both sides. The
encoder and the cross-attention see the real source only, and the decoder sees its own past.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING

from maskwright.apps.answers import Trained, answers, audited, trained, written
from maskwright.apps.app import version_of
from maskwright.apps.pairs import Lessons, Pair, PairTask, evenly, needed, split
from maskwright.apps.texts import read_pairs
from maskwright.apps.tokens import by_piece
from maskwright.apps.training import Course
from maskwright.errors import ArgumentError
from maskwright.models.seq2seq import Seq2SeqConfig

if TYPE_CHECKING:
    from collections.abc import Iterator

    from maskwright.apps.app import Prompt, Wishes
    from maskwright.apps.checkpoints import Progress

ALL_UP_TO, NUMBERS, MOST = 1_000, 10_000, 100_000  # small numbers all, of the others some
DATES, FIRST_DAY, LAST_DAY = 5_000, date(1900, 1, 1), date(2099, 12, 31)
FORMS = ("long", "full")  # of a date: without the day of the week, and with it
TESTED, SHOWN = 500, 4  # held-out pairs, in the report
LANGUAGES = ("en", "de")


@dataclass(frozen=True)
class Kind:
    """How large the model of one kind of pairs is, and how it is trained."""

    pieces: int
    context: int
    width: int
    layers: int
    dropout: float
    steps: int
    rate: float


KINDS = {
    "numbers": Kind(360, 48, 128, 2, 0.0, steps=800, rate=2e-3),
    "dates": Kind(600, 48, 128, 2, 0.0, steps=800, rate=2e-3),
    "debian": Kind(3000, 48, 128, 2, 0.1, steps=2000, rate=2e-3),
    "own": Kind(3000, 96, 128, 2, 0.1, steps=2000, rate=1e-3),
}


class Translation:
    """Learns to translate from pairs, and translates."""

    name = "translation"
    summary = "an encoder-decoder that translates numbers, dates, or package descriptions"
    versions = ("numbers", "dates", "debian")

    def course(self, wishes: Wishes) -> Course:
        """Some minutes on two cores."""
        kind = KINDS[kind_of(wishes)]
        return Course(
            steps=kind.steps, rate=kind.rate, warmup=100, evaluate_every=250, seed=wishes.seed
        )

    def task(self, wishes: Wishes) -> PairTask:
        """The pairs asked for: made by a library, fetched, or a user's own."""
        version = kind_of(wishes)
        if wishes.pairs is not None:
            groups = [[pair] for pair in dict(read_pairs(wishes.pairs)).items()]
        elif version == "debian":
            from maskwright.apps.debian import descriptions

            groups = descriptions(*LANGUAGES)
        else:
            make = number_pairs if version == "numbers" else date_pairs
            groups = make(*languages_of(wishes))
        training, held_out = split(groups)
        kind = KINDS[version]
        reads = by_piece([pair[0] for pair in training], kind.pieces)
        writes = by_piece([pair[1] for pair in training], kind.pieces)
        size = Seq2SeqConfig(
            reads.get_vocab_size(),
            writes.get_vocab_size(),
            context=kind.context,
            width=kind.width,
            layers=kind.layers,
            dropout=kind.dropout,
        )
        lessons = Lessons(training, held_out, reads, writes)
        return PairTask(self.name, wishes, version, lessons, size)

    def again(self, progress: Progress) -> Trained:
        """The model of a checkpoint, and its pieces."""
        return trained(progress)

    def sample(self, task: PairTask) -> str:
        """One held-out text, and what it makes of it."""
        return f"{task.held_out_texts[0][0]} → {written(task, [task.held_out[0][0]])[0]}"

    def report(self, task: PairTask) -> Iterator[str]:
        """How many it gets right to the letter, BLEU, examples, and whether it obeys its masks."""
        tested = evenly(task.held_out_texts, TESTED)
        said = written(task, [source for source, _ in evenly(task.held_out, TESTED)])
        wanted = [target for _, target in tested]
        right = sum(a == b for a, b in zip(said, wanted, strict=True))
        letters = task.version in ("numbers", "dates")
        yield (
            f"held-out loss {task.evaluate():.3f} nats a token; exact match {right / len(tested):.1%} "
            f"of {len(tested)}; BLEU {bleu(said, wanted, letters=letters):.1f}"
            f"{', by letters' if letters else ''}"
        )
        for (source, target), answer in evenly(list(zip(tested, said, strict=True)), SHOWN):
            verdict = "right" if answer == target else f"wanted {target!r}"
            yield f"{source!r} → {answer!r} ({verdict})"
        yield str(audited(task)).splitlines()[0]

    def judged(self, task: PairTask, honest: PairTask) -> tuple[str, float]:
        """The share of held-out texts that it translates to the letter."""
        del honest
        tested = evenly(task.held_out_texts, TESTED)
        said = written(task, [source for source, _ in evenly(task.held_out, TESTED)])
        right = sum(a == b for a, (_, b) in zip(said, tested, strict=True))
        return "exact match of what it writes by itself", right / len(tested)

    def use(self, task: PairTask | Trained, prompt: Prompt) -> Iterator[str]:
        """Every line of the prompt, translated."""
        lines = [line.strip() for line in (prompt.text or "").splitlines() if line.strip()]
        if not lines:
            raise ArgumentError("The text to translate is empty. Give one.")
        yield from answers(task, lines, 1 if prompt.beams is None else prompt.beams)


def kind_of(wishes: Wishes) -> str:
    """Which pairs are meant.

    >>> from maskwright.apps.app import Wishes
    >>> from maskwright.apps.translation import kind_of
    >>> kind_of(Wishes()), kind_of(Wishes(version="dates")), kind_of(Wishes(data="debian"))
    ('numbers', 'dates', 'debian')
    """
    if wishes.pairs is not None:
        return "own"
    return version_of(
        Translation.name,
        Translation.versions,
        "debian" if wishes.data == "debian" else wishes.version,
    )


def languages_of(wishes: Wishes) -> tuple[str, str]:
    """From which language into which.

    >>> from maskwright.apps.app import Wishes
    >>> from maskwright.apps.translation import languages_of
    >>> languages_of(Wishes()), languages_of(Wishes(data="fr-en"))
    (('en', 'de'), ('fr', 'en'))
    """
    if wishes.data is None:
        return LANGUAGES
    left, dash, right = wishes.data.partition("-")
    if not (left and dash and right):
        raise ArgumentError(
            f"translation has no data {wishes.data!r}. Give debian, or two languages, as in en-fr."
        )
    return left, right


def number_pairs(left: str, right: str) -> list[list[Pair]]:
    """Numbers in the words of two languages, each a group by itself.

    >>> from maskwright.apps.translation import number_pairs
    >>> number_pairs("en", "de")[42]
    [('forty-two', 'zweiundvierzig')]
    """
    spell = needed("translation", "num2words").num2words
    larger = random.Random(0).sample(range(ALL_UP_TO, MOST), NUMBERS - ALL_UP_TO)
    try:
        return [
            [(spell(n, lang=left), spell(n, lang=right))]
            for n in (*range(ALL_UP_TO), *sorted(larger))
        ]
    except NotImplementedError as error:
        raise ArgumentError(
            f"num2words does not know both {left!r} and {right!r}. Give others, as in en-fr."
        ) from error


def date_pairs(left: str, right: str) -> list[list[Pair]]:
    """Days as two languages write them; a group is one day, with its day of the week and without.

    >>> from maskwright.apps.translation import date_pairs
    >>> date_pairs("en", "de")[0]
    [('January 10, 1900', '10. Januar 1900'),
     ('Wednesday, January 10, 1900', 'Mittwoch, 10. Januar 1900')]
    """
    babel, dates = needed("translation", "babel"), needed("translation", "babel.dates")
    days = random.Random(0).sample(range((LAST_DAY - FIRST_DAY).days + 1), DATES)
    try:
        return [
            [
                tuple(dates.format_date(day, form, locale=language) for language in (left, right))
                for form in FORMS
            ]
            for day in (FIRST_DAY + timedelta(n) for n in sorted(days))
        ]
    except (babel.UnknownLocaleError, ValueError) as error:
        raise ArgumentError(
            f"babel does not know both {left!r} and {right!r}. Give others, as in en-fr."
        ) from error


def bleu(said: list[str], wanted: list[str], *, letters: bool) -> float:
    """BLEU of 0 to 100; by letters where a sentence is too short to have four words.

    >>> from maskwright.apps.translation import bleu
    >>> round(bleu(["zweiundvierzig"], ["zweiundvierzig"], letters=True))
    100
    """
    library = needed("translation", "sacrebleu")
    found = library.corpus_bleu(said, [wanted], tokenize="char" if letters else "13a")
    return float(found.score)
