"""Write the parts of docs/ that come from the code: `python -m docs.generate`.

A page says by two comments where such a part begins and ends. What stands between them is made
here, and a test compares.
"""

from __future__ import annotations

import re
from pathlib import Path

from docs import commands, lint_codes, packages, probes, tables

HERE = Path(__file__).parent
PARTS = {
    "masks.md": {"atoms": tables.atoms, "recipes": tables.recipes},
    "targets.md": {"targets": tables.targets},
    "lint-codes.md": {"codes": lint_codes.sections},
    "probes.md": {"probes": probes.sections, "causes": probes.causes},
    "design.md": {"packages": packages.table},
    "reference/command-line.md": {"verbs": commands.sections},
}


def pages() -> dict[Path, str]:
    """Every file with a generated part, as it should read."""
    made = {HERE / "images" / "packages.svg": packages.picture()}
    for name, parts in PARTS.items():
        text = (HERE / name).read_text()
        for part, make in parts.items():
            text = filled(text, part, make())
        made[HERE / name] = text
    return made


def filled(text: str, name: str, content: str, by: str = "docs") -> str:
    """The text with the part between its two markers replaced; `by` is the target that makes it."""
    begin, end = f"<!-- {name}: made by `make {by}` -->", f"<!-- end of {name} -->"
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    assert pattern.search(text), f"the markers of {name} are missing"
    return pattern.sub(lambda _: f"{begin}\n{content}\n{end}", text)


if __name__ == "__main__":
    for page, content in pages().items():
        page.write_text(content)
