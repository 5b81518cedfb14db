"""One vocabulary everywhere: a query may see a key or it is hidden from it, and targets take masks."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TEXTS = [
    *sorted((ROOT / "src").rglob("*.py")),
    *sorted((ROOT / "src").rglob("*.js")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
]
INSTEAD = {
    r"masked[- ]out": "hidden",
    r"\b(in|un)visible\b": "hidden",
    r"\bunmasked\b": "may be seen",
    r"\battend(s|ed|ing)? to\b": "sees",
    r"\bexport(er|ers|s) (a|the|this|of) masks?\b": "target",
    r"\bblocked (cells?|keys?|positions?|tokens?)\b": "hidden",
    r"\b(allowed|permitted|legal) (cells?|keys?|positions?|tokens?)\b": "that may be seen",
}


@pytest.mark.parametrize("stray", INSTEAD)
def test_other_words_are_not_used(stray: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in TEXTS
        for match in re.finditer(stray, path.read_text(encoding="utf-8"), re.IGNORECASE)
    ]
    assert found == [], f"say: {INSTEAD[stray]}"
