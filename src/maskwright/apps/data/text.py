"""Texts, pairs of texts, and tokenizers by the `tokenizers` library."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from maskwright._optional_deps import require
from maskwright.errors import ArgumentError

with require("maskwright.apps"):
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

Pair = tuple[str, str]

PAD, BEGIN, END, UNKNOWN = SPECIAL = ("<pad>", "<begin>", "<end>", "<unknown>")
PAD_ID, BEGIN_ID, END_ID, UNKNOWN_ID = range(4)
IGNORE_INDEX = -100  # a target that cross_entropy leaves out
MIN_CHARACTERS = 1_000
MIN_PAIRS = 20


def python_topics() -> str:
    """Python's own help on its topics: about 460,000 characters of prose and code.

    >>> from maskwright.apps.data.text import python_topics
    >>> len(python_topics()) > 300_000
    True
    """
    from pydoc_data.topics import topics

    return "\n\n".join(topics[name].strip() for name in sorted(topics))


def read_text(path: Path) -> str:
    """Reads a text file in UTF-8."""
    text = _read(path)
    if len(text) < MIN_CHARACTERS:
        raise ArgumentError(
            f"{path} has {len(text)} characters, expected at least {MIN_CHARACTERS:,}. "
            "Pass a longer text."
        )
    return text


def read_pairs(path: Path) -> list[Pair]:
    """Reads pairs of texts, one per line, separated by a tab."""
    pairs = []
    for number, line in enumerate(_read(path).splitlines(), start=1):
        if not line.strip():
            continue
        left, tab, right = line.partition("\t")
        if not tab or not left.strip() or not right.strip():
            raise ArgumentError(
                f"{path}, line {number}: expected two texts with a tab between, got {line[:40]!r}."
            )
        pairs.append((left.strip(), right.strip()))
    if len(pairs) < MIN_PAIRS:
        raise ArgumentError(
            f"{path} has {len(pairs)} pairs, expected at least {MIN_PAIRS}. Add more."
        )
    return pairs


def evenly_spaced(items: Sequence[Any], count: int) -> list[Any]:
    """At most `count` of the items, evenly spaced.

    >>> from maskwright.apps.data.text import evenly_spaced
    >>> evenly_spaced(range(10), 4), evenly_spaced("ab", 4)
    ([0, 2, 5, 7], ['a', 'b'])
    """
    if len(items) <= count:
        return list(items)
    return [items[n * len(items) // count] for n in range(count)]


def character_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """A token for every character that occurs; others become `<unknown>`.

    >>> from maskwright.apps.data.text import character_tokenizer
    >>> tokenizer = character_tokenizer(["abba"])
    >>> tokenizer.encode("abc").ids, tokenizer.decode([4, 5, 5])
    ([4, 5, 3], 'abb')
    """
    characters = sorted({character for text in texts for character in text})
    vocab = {token: number for number, token in enumerate([*SPECIAL, *characters])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


def bpe_tokenizer(texts: Iterable[str], vocab_size: int = 2000) -> Tokenizer:
    """Byte-level BPE, which has no unknown tokens.

    >>> from maskwright.apps.data.text import bpe_tokenizer
    >>> tokenizer = bpe_tokenizer(["low lower lowest"] * 9, vocab_size=300)
    >>> tokenizer.decode(tokenizer.encode("lower 中").ids)
    'lower 中'
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def encode_prompt(tokenizer: Tokenizer, text: str, max_tokens: int) -> list[int]:
    """The ids of a prompt, without unknown tokens.

    Raises:
        ArgumentError: If the model does not know a character, or the prompt is too long.

    >>> from maskwright.apps.data.text import character_tokenizer, encode_prompt
    >>> encode_prompt(character_tokenizer(["abba"]), "bab", max_tokens=8)
    [5, 4, 5]
    """
    encoding = tokenizer.encode(text)
    unknown = {
        text[start:stop]
        for token, (start, stop) in zip(encoding.tokens, encoding.offsets, strict=True)
        if token == UNKNOWN
    }
    if unknown:
        raise ArgumentError(
            f"The model does not know {' '.join(sorted(unknown))[:40]!r}. Leave it out of the prompt."
        )
    ids: list[int] = encoding.ids
    if len(ids) > max_tokens:
        raise ArgumentError(
            f"The prompt has {len(ids)} tokens, expected at most {max_tokens}. Pass a shorter one."
        )
    return ids


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise ArgumentError(f"{path} cannot be read: {error.strerror}. Check the name.") from error
    except UnicodeDecodeError as error:
        raise ArgumentError(
            f"{path} is not UTF-8: byte {error.start} is invalid. Save it as UTF-8."
        ) from error
