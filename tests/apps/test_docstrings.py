from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from maskwright.apps import docstrings
from maskwright.apps.docstrings import (
    COPIED,
    cut_in_two,
    found_in,
    share_of,
    source_files,
    split_by_module,
    stretches,
    unlike,
)

if TYPE_CHECKING:
    from pathlib import Path

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
    found = list(found_in([("sums", path), ("broken", tmp_path / "broken.py")]))
    assert [summary for _, _, summary in found] == [
        "Sums of many kinds.",
        "Keep a sum.",
        "Add one more.",
    ]
    assert found[0] == ("sums", BODY, "Sums of many kinds.")


def test_the_files_come_in_order_and_are_not_too_many() -> None:
    before = set(sys.modules)
    files = source_files()
    assert files == source_files()
    assert 100 < len(files) <= docstrings.MOST_FILES * (1 + len(docstrings.PACKAGES))
    assert any(module.startswith("numpy.") for module, _ in files)
    assert not any("tests" in path.parts for _, path in files)
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
def test_what_is_too_short_or_too_long_is_left_out(text: str) -> None:
    assert cut_in_two(text) is None


def test_no_module_and_no_copy_is_on_both_sides() -> None:
    found = list(unlike(found_in(source_files()[:80])))
    training, held_out = split_by_module(found)
    assert len(training) > len(held_out) > 0
    home = {(body, summary): module for module, body, summary in found}
    assert not {home[pair] for pair in training} & {home[pair] for pair in held_out}
    learned = {stretch for body, _ in training for stretch in stretches(body)}
    assert all(share_of(stretches(body), learned) < COPIED for body, _ in held_out)
    assert not {summary for _, summary in training} & {summary for _, summary in held_out}
