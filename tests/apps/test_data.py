"""Texts, tokenizers and corpora."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

import maskwright as mw
from maskwright.apps.data import corpora
from maskwright.apps.data.text import (
    SPECIAL,
    bpe_tokenizer,
    character_tokenizer,
    read_pairs,
    read_text,
)

if TYPE_CHECKING:
    from pathlib import Path


def test_pairs_are_read_without_empty_lines(tmp_path: Path) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_text("\n".join(f"one {n}\teins {n}\n" for n in range(20)))
    assert read_pairs(path)[1] == ("one 1", "eins 1")
    assert len(read_pairs(path)) == 20


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"a b\n", "line 1: .*'a b'"),
        (b"a\tb\n\tc\n", "line 2"),
        (b"a\tb\n", "1 pairs, .*20"),
        (b"a\tb \xff\n" * 30, "UTF-8"),
    ],
)
def test_bad_pairs_are_one_sentence(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "pairs.tsv"
    path.write_bytes(content)
    with pytest.raises(mw.ArgumentError, match=says):
        read_pairs(path)


def test_bad_texts_are_one_sentence(tmp_path: Path) -> None:
    path = tmp_path / "x.txt"
    for content, says in ((b"short", "5 characters"), (b"\xff" * 2000, "UTF-8")):
        path.write_bytes(content)
        with pytest.raises(mw.ArgumentError, match=says):
            read_text(path)
    with pytest.raises(mw.ArgumentError, match="nowhere"):
        read_text(tmp_path / "nowhere.txt")


def test_tokenizers_decode_what_they_encode() -> None:
    text = "a\tb\n中 é\u0301 🍵"
    characters = character_tokenizer([text])
    assert characters.decode(characters.encode(text).ids) == text
    assert len(characters.encode(text).ids) == len(text)
    assert characters.get_vocab_size() == len(SPECIAL) + len(set(text))
    bpe = bpe_tokenizer(["the mask hides the future"] * 5, vocab_size=400)
    for other in ("the future", "未来 🍵", "tab\there"):
        assert bpe.decode(bpe.encode(other).ids) == other
    assert [bpe.token_to_id(token) for token in SPECIAL] == [0, 1, 2, 3]


# ── docstrings ────────────────────────────────────────────────────────────────────────────────

BODY = "All that is given is added, one after the other, from left to right."
FILE = f'''"""Sums of many kinds.\n\n{BODY}"""
raise SystemExit("it was run")


class Sum:
    """Keep a sum.\n\n    Its {BODY}"""

    if True:

        def add(self):
            """Add one more.\n\n            Then {BODY}"""

            def inner():
                """Not to be seen.\n\n                Here {BODY}"""


async def later():
    """One line only."""
'''


def test_docstrings_are_read_and_nothing_is_run(tmp_path: Path) -> None:
    path = tmp_path / "sums.py"
    path.write_text(FILE)
    (tmp_path / "broken.py").write_text('"""Broken."""\ndef (')
    found = list(corpora.read_docstrings([("sums", path), ("broken", tmp_path / "broken.py")]))
    summaries = ["Sums of many kinds.", "Keep a sum.", "Add one more."]
    assert [summary for _, _, summary in found] == summaries
    assert found[0] == ("sums", BODY, "Sums of many kinds.")


def test_source_files_have_a_fixed_order_and_are_not_imported() -> None:
    before = set(sys.modules)
    files = corpora.source_files()
    assert files == corpora.source_files()
    assert 50 < len(files) <= corpora.MAX_FILES * (1 + len(corpora.PACKAGES))
    assert any(module.startswith("numpy.") for module, _ in files)
    assert not any("tests" in module.split(".") for module, _ in files)
    assert not {"sklearn", "networkx"} & (set(sys.modules) - before)


@pytest.mark.parametrize(
    "text",
    [
        "One line.\n\n" + BODY,
        "A first line with a body.\n\nToo short.",
        "word " * 30 + "\n\n" + BODY,
        ">>> 1 + 1 is\n\n" + BODY,
    ],
)
def test_summaries_that_are_too_short_or_too_long_are_left_out(text: str) -> None:
    assert corpora.split_docstring(text) is None


def test_no_module_and_no_copy_is_both_in_training_and_held_out() -> None:
    found = list(corpora.deduplicate(corpora.read_docstrings(corpora.source_files()[:80])))
    training, held_out = corpora.split_by_module(found)
    assert len(training) > len(held_out) > 0
    home = {(body, summary): module for module, body, summary in found}
    assert not {home[pair] for pair in training} & {home[pair] for pair in held_out}
    known = {ngram for body, _ in training for ngram in corpora.ngrams(body)}
    assert all(
        corpora.overlap(corpora.ngrams(body), known) < corpora.MAX_COPIED for body, _ in held_out
    )
    assert not {summary for _, summary in training} & {summary for _, summary in held_out}


# ── Debian ────────────────────────────────────────────────────────────────────────────────────


def entry(package: str, checksum: str, language: str, text: str) -> str:
    return (
        f"Package: {package}\nDescription-md5: {checksum}\n"
        f"Description-{language}: {text}\n and more of it.\n\n"
    )


def test_descriptions_are_joined_by_checksum() -> None:
    left = entry("vim", "1f", "en", "an editor") + entry("mc", "2a", "en", "a file manager")
    right = entry("vim", "1f", "de", "ein Editor") + entry("mc", "00", "de", "von gestern")
    assert corpora.join_descriptions(left, right) == [("vim", "an editor", "ein Editor")]
    untranslated = entry("gnu", "1f", "en", "GNU")
    assert corpora.join_descriptions(untranslated, untranslated.replace("-en", "-de")) == []


def test_a_family_stays_together_and_no_text_occurs_twice() -> None:
    rows = [
        ("a", "x", "X"),
        ("b", "y", "Y"),
        ("a-data", "z", "Z"),
        ("c", "x", "W"),
        ("d", "w", "Y"),
    ]
    assert corpora.group_by_family(rows) == [[("x", "X"), ("z", "Z")], [("y", "Y")]]


def test_descriptions_are_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "maskwright").mkdir()
    (tmp_path / "maskwright" / "debian-en-de.tsv").write_text("vim\tan editor\tein Editor\n")
    assert corpora.debian_descriptions("en", "de") == [[("an editor", "ein Editor")]]


def test_no_apt_and_an_apt_that_fetches_nothing_are_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(mw.ArgumentError, match="apt is not installed"):
        corpora.debian_descriptions("en", "de")
    apt = tmp_path / "apt-get"  # the machine may have no apt, and may be online
    apt.write_text("#!/bin/sh\necho 'W: Failed to fetch: could not resolve' >&2\n")
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(corpora, "APT_HELPER", apt)
    with pytest.raises(mw.ArgumentError, match="could not resolve"):
        corpora.debian_descriptions("en", "de")


# ── dialogues ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("language", ["english", "spanish", "chinese"])
def test_no_prompt_and_no_reply_is_both_in_training_and_held_out(language: str) -> None:
    training, held_out = corpora.split_dialogue(corpora.chatterbot_pairs(language))
    assert len(held_out) > 0.05 * len(training)
    for side in (0, 1):
        assert not {p[side].casefold() for p in training} & {p[side].casefold() for p in held_out}


def test_pairs_that_are_all_alike_are_one_sentence() -> None:
    with pytest.raises(mw.ArgumentError, match="too similar"):
        corpora.split_dialogue([("a", "b")] * 30)
