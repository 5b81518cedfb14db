from __future__ import annotations

from maskwright.apps.tokens import SPECIAL, by_letter, by_piece


def test_letters_of_any_script_come_back() -> None:
    text = "a\tb\n中 é\u0301 🍵"
    tokenizer = by_letter([text])
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert len(tokenizer.encode(text).ids) == len(text)
    assert tokenizer.get_vocab_size() == len(SPECIAL) + len(set(text))


def test_pieces_know_every_text() -> None:
    tokenizer = by_piece(["the mask hides the future"] * 5, size=400)
    for text in ("the future", "未来 🍵", "tab\there"):
        assert tokenizer.decode(tokenizer.encode(text).ids) == text
    assert [tokenizer.token_to_id(token) for token in SPECIAL] == [0, 1, 2, 3]
