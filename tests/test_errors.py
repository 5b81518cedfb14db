"""Every error of the package, read as a person would: what was given, which rule, what to do.

All messages stand in `errors.txt`, to be read in one place. After a change of one, write the file
anew with MASKWRIGHT_WRITE_SNAPSHOTS=1, and read the difference.
"""

from __future__ import annotations

import os
import re
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import maskwright
from tests.error_messages import Message, bare, read_messages

if TYPE_CHECKING:
    from collections.abc import Callable

SOURCE = Path(maskwright.__file__).parent.parent
LIST = Path(__file__).with_name("errors.txt")

# What the sentence that tells what to do begins with.
FIX = re.compile(
    r"(Ask|Bind|Build|Call|Check|Choose|Combine|Count|Delete|Did you mean|Draw|Explain|Export|Fill|Fix"
    r"|Flatten|Give|Go|Install|Keep|Leave|Let|Load|Look|Lower|Make|Mend|Move|Name|Negate|Number|Open|Or"
    r"|Pad|Pass|Put|Report|Resume|Run|Save|Say|See|Send|Set|Shard|Shorten|Split|Start|Take|Train|Try"
    r"|Use|Wrap|Write)\b"
)
# Words that tell a person nothing, or put the blame on them.
JARGON = re.compile(
    r"\b(invalid|illegal|unexpected|malformed|bad|cannot|must|please|sorry)\b|!(?!=)",
    re.IGNORECASE,
)
# A value or a name that is filled in; who was asked, or its argument; or the thing in words.
INPUT = re.compile(r"\{|^--|^`|^[a-z][\w.'()]*[ =]|^[\w.]+:|^(An?|Both|The|This) [A-Za-z]")

# What says no more than it does, and why.
PASSED_ON = {
    "In {expression}: {error}": "the error brings its own fix",
    "Under .T, with queries read as keys and keys as queries, {error}": "the same",
    "equals: the other mask does not fit this frame. {refused}": "the same",
    "{str(error)}": "the same",
    "{str(self)}": "a report, whose findings bring theirs",
    "{UNKNOWN.get(status, UNKNOWN[400])}": "one of a table, each with its fix",
    "{error} Or bind the whole mask and cut that: mask.on(n).rows(start, stop).": "a second fix",
    "A mask has no attribute {name}.": "as Python says it; a fix is added where there is one",
    "module 'maskwright' has no attribute {name}": "as Python says it",
    "{type(mask).__name__}": "caught where it is raised for",
    "{target.name} can say {target.says}, but not {found.brief}.": "says only every mask: never met",
    "{target.name} can say {target.says}, but not {found.brief}: {refusal}.": "the same",
}


@pytest.fixture(scope="module")
def messages() -> list[Message]:
    files = [*sorted((SOURCE / "maskwright").rglob("*.py")), SOURCE / "_maskwright_pytest.py"]
    return read_messages(files, SOURCE)


def names_the_input(message: Message) -> bool:
    return INPUT.search(message.text) is not None


def ends_in_a_fix(message: Message) -> bool:
    *rules, fix = sentences(message)
    return bool(rules) and len(rules) <= 2 and FIX.match(fix) is not None


def is_whole(message: Message) -> bool:
    """A sentence ends in a full stop or a question mark; a command to type does not."""
    command = re.search(r"\b(Run|anew|by): [^.]+", sentences(message)[-1])
    return message.text.endswith((".", "?")) or command is not None


def is_plain(message: Message) -> bool:
    return JARGON.search(bare(message.text)) is None


def sentences(message: Message) -> list[str]:
    return re.split(r"(?<=[.?]) (?=[A-Z])", bare(message.text, "X"))


def test_the_list_of_all_messages_is_current(messages: list[Message]) -> None:
    parts = [
        "\n".join([file, *(f"    {one.error}: {one.text}" for one in found)])
        for file, found in groupby(messages, key=lambda message: message.file)
    ]
    text = "\n\n".join(parts) + "\n"
    if os.environ.get("MASKWRIGHT_WRITE_SNAPSHOTS") == "1":
        LIST.write_text(text, encoding="utf-8", newline="\n")
    assert LIST.read_text(encoding="utf-8") == text, "a message changed; see this file's docstring"


def test_every_error_of_the_package_is_met(messages: list[Message]) -> None:
    kinds = {message.error for message in messages}
    assert set(maskwright.errors.__all__) - kinds == {"MaskError"}  # the base of the others
    assert len(messages) > 500


def test_what_is_passed_on_is_still_there(messages: list[Message]) -> None:
    assert set(PASSED_ON) <= {message.text for message in messages}


@pytest.mark.parametrize("judge", [names_the_input, ends_in_a_fix, is_whole, is_plain])
def test_a_message_reads_as_help(judge: Callable[[Message], bool], messages: list[Message]) -> None:
    judged = [message for message in messages if message.text not in PASSED_ON]
    assert [f"{message.file}: {message.text}" for message in judged if not judge(message)] == []


def test_a_target_that_refuses_names_others() -> None:
    # So "can say …, but not …" always ends in what to use instead.
    choosy = [
        target for target in maskwright.capabilities().values() if target.says != "every mask"
    ]
    assert choosy
    assert [target.name for target in choosy if not target.instead] == []


@pytest.mark.parametrize(
    ("text", "judge"),
    [
        ("Wrong. Give a mask.", names_the_input),
        ("{what} is negative.", ends_in_a_fix),
        ("{what} is negative. Sizes are positive.", ends_in_a_fix),
        ("{what} is negative. Give more", is_whole),
        ("{what} is an invalid size. Give more.", is_plain),
        ("{what} is negative. Give more!", is_plain),
    ],
)
def test_a_message_that_does_not_help_is_found(text: str, judge: Callable[[Message], bool]) -> None:
    assert not judge(Message("somewhere.py", "ArgumentError", text))
