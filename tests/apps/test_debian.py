from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import maskwright as mw
from maskwright.apps import debian
from maskwright.apps.debian import descriptions, families, joined

if TYPE_CHECKING:
    from pathlib import Path


def entry(package: str, checksum: str, language: str, text: str) -> str:
    return (
        f"Package: {package}\nDescription-md5: {checksum}\n"
        f"Description-{language}: {text}\n and more of it.\n\n"
    )


def test_descriptions_are_joined_by_their_checksum() -> None:
    left = entry("vim", "1f", "en", "an editor") + entry("mc", "2a", "en", "a file manager")
    right = entry("vim", "1f", "de", "ein Editor") + entry("mc", "00", "de", "von gestern")
    assert joined(left, right) == [("vim", "an editor", "ein Editor")]


def test_what_was_left_as_it_is_was_not_translated() -> None:
    left, right = entry("gnu", "1f", "en", "GNU"), entry("gnu", "1f", "de", "GNU")
    assert joined(left, right) == []


def test_a_family_stays_together_and_no_text_comes_twice() -> None:
    rows = [
        ("a", "x", "X"),
        ("b", "y", "Y"),
        ("a-data", "z", "Z"),
        ("c", "x", "W"),
        ("d", "w", "Y"),
    ]
    assert families(rows) == [[("x", "X"), ("z", "Z")], [("y", "Y")]]


def test_what_was_fetched_once_is_read_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "maskwright").mkdir()
    (tmp_path / "maskwright" / "debian-en-de.tsv").write_text("vim\tan editor\tein Editor\n")
    assert descriptions("en", "de") == [[("an editor", "ein Editor")]]


def test_without_apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(mw.ArgumentError, match=r"there is no apt on this machine\. Use numbers"):
        descriptions("en", "de")


def test_an_apt_that_fetches_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in, for a machine may have no apt, and may be online: it says what apt says then."""
    apt = tmp_path / "apt-get"
    apt.write_text("#!/bin/sh\necho 'W: Failed to fetch: could not resolve' >&2\n")
    apt.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr(debian, "HELPER", apt)
    with pytest.raises(mw.ArgumentError, match=r"could not fetch .*could not resolve.* Go online"):
        descriptions("en", "de")
