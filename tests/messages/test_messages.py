"""The tables of messages are complete: the same codes and parameters in every language."""

from __future__ import annotations

import pickle
from string import Formatter

import pytest

import maskwright as mw
from maskwright.linting.codes import CODES
from maskwright.messages import LANGUAGES, Reason, messages, render
from tests._helpers.message_reasons import reasons


def fields(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name is not None}


@pytest.mark.parametrize("lang", LANGUAGES)
def test_every_language_has_every_code_with_same_parameters(lang: str) -> None:
    english, other = messages("en"), messages(lang)
    assert set(english) == set(other)
    for code, text in english.items():
        assert fields(text) == fields(other[code]), code


def test_reasons_nest() -> None:
    inner = Reason("keys.masked", {"key": 1})
    outer = Reason("cell.masked", {"query": 0, "key": 1, "terms": (inner, inner)})
    assert [reason.code for reason in reasons(outer)] == [
        "cell.masked",
        "keys.masked",
        "keys.masked",
    ]
    text = render(inner)
    assert render(outer).endswith(f"{text}; {text}")
    assert render(inner, "zh") in render(outer, "zh")


def test_unknown_language_is_rejected() -> None:
    with pytest.raises(mw.ArgumentError, match=r"'de'.*en, zh"):
        render(Reason("keys.masked", {"key": 1}), "de")


def test_every_code_of_finding_has_meaning_and_fix() -> None:
    texts = {name for name in messages("en") if name.endswith((".meaning", ".fix"))}
    assert texts == {reason.code for code in CODES.values() for reason in (code.meaning, code.fix)}
    for lang in LANGUAGES:
        stop = "。" if lang == "zh" else "."
        for code in CODES.values():
            assert render(code.fix, lang).endswith(stop)
            assert not render(code.meaning, lang).endswith(stop)


def test_reason_can_be_pickled() -> None:
    reason = Reason("cell.masked", {"terms": (Reason("tree.self"),)})
    assert pickle.loads(pickle.dumps(reason)) == reason
