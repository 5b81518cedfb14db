"""Tokenisers, by the `tokenizers` library: letter by letter, or by pieces of words."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from maskwright.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tokenizers import Encoding

PAD, BEGIN, END, UNKNOWN = "<pad>", "<begin>", "<end>", "<unknown>"
SPECIAL = (PAD, BEGIN, END, UNKNOWN)


def by_letter(texts: Iterable[str]) -> Tokenizer:
    """A token for every letter that occurs; others become `<unknown>`.

    >>> from maskwright.apps.tokens import by_letter
    >>> tokenizer = by_letter(["abba"])
    >>> tokenizer.encode("abc").ids, tokenizer.decode([4, 5, 5])
    ([4, 5, 3], 'abb')
    """
    letters = sorted({letter for text in texts for letter in text})
    vocabulary = {token: number for number, token in enumerate([*SPECIAL, *letters])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.add_special_tokens(list(SPECIAL))
    return tokenizer


def by_piece(texts: Iterable[str], size: int = 2000) -> Tokenizer:
    """Pieces of words, of which frequent words are one; nothing is unknown, all is bytes in the end.

    >>> from maskwright.apps.tokens import by_piece
    >>> tokenizer = by_piece(["low lower lowest"] * 9, size=300)
    >>> tokenizer.decode(tokenizer.encode("lower 中").ids)
    'lower 中'
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def encode_known(tokenizer: Tokenizer, text: str) -> Encoding:
    """A prompt as tokens, all of which the model knows.

    >>> from maskwright.apps.tokens import by_letter, encode_known
    >>> encode_known(by_letter(["abba"]), "bab").ids
    [5, 4, 5]
    """
    found = tokenizer.encode(text)
    strange = sorted(
        {
            text[start:stop]
            for token, (start, stop) in zip(found.tokens, found.offsets, strict=True)
            if token == UNKNOWN
        }
    )
    if strange:
        raise ArgumentError(
            f"The model has never seen {' '.join(strange)[:40]!r}. Leave it out of the prompt."
        )
    return found
