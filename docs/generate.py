"""Generates the parts of docs/ and README that come from the code: `python -m docs.generate`.

Two comments mark where a generated part begins and ends. A test compares the pages with the code.
"""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks import gpu
from docs import commands, lint_codes, packages, probes, tables
from maskwright._atomic_write import write_atomic

HERE = Path(__file__).parent
PARTS = {
    "masks.md": {"atoms": tables.atoms, "recipes": tables.recipes},
    "targets.md": {"overview": tables.target_overview, "targets": tables.target_sections},
    "../README.md": {"headline": tables.headline, "performance": tables.performance},
    "../README.zh-CN.md": {"headline": tables.headline_zh, "performance": tables.performance_zh},
    "reference/functions.md": {"functions": tables.api},
    "lint-codes.md": {"codes": lint_codes.sections},
    "probes.md": {"probes": probes.sections, "causes": probes.causes},
    "audit.md": {"cost": tables.audit_cost},
    "apps.md": {"training": tables.training},
    "gpu.md": {"compiled": gpu.compiled, "roofline": gpu.roofline},
    "design.md": {"packages": packages.table},
    "reference/command-line.md": {"verbs": commands.sections},
}


def pages() -> dict[Path, str]:
    """The current contents of all files with generated parts."""
    made = {HERE / "images" / "packages.svg": packages.picture()}
    for name, parts in PARTS.items():
        text = (HERE / name).read_text()
        for part, make in parts.items():
            text = filled(text, part, make())
        made[(HERE / name).resolve()] = text
    return made


def filled(text: str, name: str, content: str, by: str = "docs") -> str:
    """The text with the part between its markers replaced; `by` is the make target."""
    begin, end = f"<!-- {name}: made by `make {by}` -->", f"<!-- end of {name} -->"
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    assert pattern.search(text), f"the markers of {name} are missing"
    return pattern.sub(lambda _: f"{begin}\n{content}\n{end}", text)


if __name__ == "__main__":
    for page, content in pages().items():
        write_atomic(page, content)
