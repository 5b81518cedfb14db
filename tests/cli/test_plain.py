"""The command line without typer: the same verbs, flags, answers and codes."""

from __future__ import annotations

import importlib
import io
import re
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

import maskwright
from tests.cli.test_app import VERBS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.cli.conftest import Here, Ran


@contextmanager
def no_typer(kept: dict[str, Any]) -> Iterator[None]:
    """Inside, typer is not installed, and the program's modules are those kept from last time."""
    importlib.import_module("maskwright.cli")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(maskwright, "cli", maskwright.cli)  # an import replaces it
        for name in [*sys.modules]:
            if _is_ours(name):
                patch.delitem(sys.modules, name)
        patch.setitem(sys.modules, "typer", None)
        for name, module in kept.items():
            patch.setitem(sys.modules, name, module)
        importlib.import_module("maskwright.cli")
        yield
        kept |= {name: module for name, module in sys.modules.items() if _is_ours(name)}
        for name in kept:
            sys.modules.pop(name, None)


def _is_ours(name: str) -> bool:
    return name.split(".")[0] == "typer" or name.startswith("maskwright.cli")


@pytest.fixture(scope="module")
def kept() -> dict[str, Any]:
    """The program's modules as they are where typer is not installed."""
    modules: dict[str, Any] = {}
    with no_typer(modules):
        assert type(sys.modules["maskwright.cli"].app).__module__ == "maskwright.cli.plain"
    return modules


@pytest.fixture
def without(kept: dict[str, Any], here: Here, monkeypatch: pytest.MonkeyPatch) -> Here:
    """Runs it as `here` runs the other."""

    def go(*words: str) -> Ran:
        with no_typer(kept), monkeypatch.context() as patch:
            patch.setattr("maskwright.__main__.app", sys.modules["maskwright.cli"].app)
            return here(*words)

    return go


@pytest.mark.parametrize(
    "words",
    [
        ["--version"],
        ["show", "causal()", "-n", "4"],
        ["show", "-n4", "--", "causal()"],
        ["show", "causal()", "--tokens", "我 喜欢 喝 茶", "--format=json"],
        ["show", "causal()", "--q-start", "-2", "-n", "3", "--keys", "3"],
        ["diff", "causal()", "--size", "4", "window(back=1)"],
        ["explain", "causal()", "--cell", "0,2", "--size", "4"],
        ["explain", "--tokens", "a b", "--fill", "-1e9", "--beside", "--no-unscaled"],
        ["recipes", "longformer"],
        ["lower", "causal()", "--to", "numpy", "-n", "3"],
        ["lower", "causal()", "--to", "torch.transformer", "causal()", "-n", "3", "causal()"],
        ["targets", "torch.mha"],
        ["lint", "causal()", "-n", "3", "--window", "1"],
        ["plan", "window(back=63)", "--size", "4k", "--backward"],
    ],
    ids=" ".join,
)
def test_a_line_gives_what_it_gives_with_typer(here: Here, without: Here, words: list[str]) -> None:
    assert without(*words) == here(*words)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], ""),
        (["show"], "required: expression"),
        (["nonsense"], "invalid choice: 'nonsense'"),
        (["lower", "causal()"], "required: --to"),
        (["show", "causal()", "--size"], "--size/-n: expected one argument"),
        (["show", "causal()", "--size", "many"], "invalid int value: 'many'"),
        (["show", "causal()", "--format", "gif"], "invalid choice: 'gif'"),
        (["show", "causal()", "--siez", "3"], "unrecognized arguments: --siez"),
        (["plan", "causal()", "--size", "4g"], "4g is no whole number"),
        (["show", "casual()"], "Did you mean causal?"),
    ],
    ids=str,
)
def test_a_wrong_line_is_code_2_as_with_typer(
    here: Here, without: Here, words: list[str], says: str
) -> None:
    ran = without(*words)
    assert ran.code == here(*words).code == 2
    assert says in ran.err


def test_help_names_every_verb(without: Here) -> None:
    found = re.findall(r"^    (\w[\w-]*)(?: |$)", without("--help").out, re.MULTILINE)
    assert tuple(found) == VERBS


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_tells_the_same_flags_and_examples(
    here: Here, without: Here, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    told, plain = here(verb, "-h").out, without(verb, "-h").out
    flags = [set(re.findall(r"--(?!no-)[a-z][a-z-]+", text)) for text in (told, plain)]
    assert flags[0] == flags[1]
    examples = [
        [line.strip() for line in text.splitlines() if line.strip().startswith("maskwright ")]
        for text in (told, plain)
    ]
    assert examples[0] == examples[1] != []


def test_bytes_are_printed_as_they_are(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    from maskwright.cli import plain

    plain.echo(b"\x89PNG", nl=False)
    assert capfdbinary.readouterr().out == b"\x89PNG"


def test_a_person_is_asked_until_there_is_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    from maskwright.cli import plain

    monkeypatch.setattr(sys, "stdin", io.StringIO("hello\n"))
    assert plain.prompt("you", prompt_suffix="> ") == "hello"
    with pytest.raises(plain.Abort):
        plain.prompt("you")
