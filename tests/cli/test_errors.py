"""Errors of the commands that have `--lang`: the same error in either language."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import maskwright.cli
from maskwright.cli.errors import UsageError
from maskwright.messages import LANGUAGES, messages

if TYPE_CHECKING:
    from tests.cli.conftest import RunCli

HAN = re.compile(r"[\u4e00-\u9fff]")
ERRORS = {
    ("explain", "causal()", "--cell", "three"): "three",
    ("explain", "causal()", "--tokens", " "): "--tokens",
    ("explain", "causal()", "--scores", "[[1"): "[[1",
    ("explain", "causal()", "--cell", "0,0", "-o", "cell.svg"): ".txt, .json",
    ("lint", "nowhere.npy"): "nowhere.npy",
    ("audit", "nothing"): "module:attribute",
    ("audit", "no_such_module:build"): "no_such_module",
    ("audit", "hf:nowhere"): "nowhere",
    ("tour", "--chapter", "99"): "99",
}


@pytest.mark.parametrize("words", ERRORS, ids=" ".join)
def test_error_is_in_the_language_of_the_command(cli: RunCli, words: tuple[str, ...]) -> None:
    chinese, english = cli(*words, "--lang", "zh"), cli(*words)
    assert (chinese.code, english.code) == (2, 2)
    for ran in (chinese, english):
        assert ran.err.startswith("maskwright: ")
        assert ERRORS[words] in ran.err
    assert HAN.search(chinese.err)
    assert not HAN.search(english.err)


def test_library_errors_and_written_files_in_chinese(cli: RunCli) -> None:
    unknown = cli("explain", "causl()", "--cell", "0,0", "--lang", "zh")
    assert "Did you mean causal?" in unknown.err  # of the library, in English
    written = cli("explain", "causal()", "--cell", "0,0", "--lang", "zh", "-o", "cell.txt")
    assert (written.code, written.err.strip()) == (0, "已写入 cell.txt")


def test_steps_of_attention_in_chinese(cli: RunCli) -> None:
    ran = cli("explain", "causal()", "--tokens", "我 是 一", "--lang", "zh")
    assert ran.code == 0
    assert "注意力权重" in ran.out
    assert "查询 ↓  键 →" in ran.out


def test_every_error_has_a_text_and_every_text_an_error() -> None:
    folder = Path(maskwright.cli.__file__).parent
    source = "\n".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
    used = {f"cli.{code}" for code in re.findall(r'UsageError\(\s*"(\w+)"', source)}
    used |= set(re.findall(r'Reason\("(cli\.\w+)"', source))
    used |= {f"cli.{code}" for code in ("several_arrays", "unknown_name")}  # chosen by a condition
    for lang in LANGUAGES:
        assert {code for code in messages(lang) if code.startswith("cli.")} == used


def test_error_is_an_argument_error_in_english() -> None:
    error = UsageError("no_file", path="mask.npy")
    assert isinstance(error, maskwright.ArgumentError)
    assert str(error) == error.translated() == "There is no file mask.npy. Check the path."
