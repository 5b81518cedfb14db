"""Write the parts of docs/ that come from the code: tables of atoms, recipes and targets."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import maskwright as mw
from maskwright.checks.auditing.mistakes import CAUSES, FIXES
from maskwright.checks.findings import CODES
from maskwright.core.atoms import ATOMS

HERE = Path(__file__).parent


def pages() -> dict[Path, str]:
    """Every page with a generated part, as it should read."""
    path = HERE / "masks.md"
    text = path.read_text()
    names = [*ATOMS, "where", "by_head", "by_batch"]
    text = filled(text, "atoms", table({name: getattr(mw, name) for name in names}))
    recipes = {n: getattr(mw.recipes, n) for n in mw.recipes.__all__ if n[0].islower()}
    text = filled(text, "recipes", table(recipes, prefix="recipes."))
    targets = HERE / "targets.md"
    other = filled(targets.read_text(), "targets", targets_table())
    audit = HERE / "audit.md"
    causes = [f"| `{code}` | {meaning} | {FIXES[code]} |" for code, meaning in CAUSES.items()]
    causes = ["| cause | what is wrong | what to do |", "|---|---|---|", *causes]
    return {
        path: text,
        targets: filled(other, "codes", codes_table()),
        audit: filled(audit.read_text(), "causes", "\n".join(causes)),
    }


def codes_table() -> str:
    """A row for each code of a finding."""
    rows = [f"| `{code}` | {meaning} |" for code, meaning in CODES.items()]
    return "\n".join(["| code | what is wrong |", "|---|---|", *rows])


def targets_table() -> str:
    """A row for each target: what it can say, and how it says it."""
    head = ["to", "gives", "can say", "polarity", "shape", "alignment", "a row that sees nothing"]
    rows = [f"| {' | '.join([*head, 'checked'])} |", "|---" * (len(head) + 1) + "|"]
    for name, it in mw.capabilities().items():
        cells = [f"`{name}`", it.gives, it.says, it.polarity, it.shape, it.alignment]
        rows.append(f"| {' | '.join([*cells, it.empty_rows, it.checked])} |")
    return "\n".join(rows)


def table(functions: dict[str, object], prefix: str = "") -> str:
    """A row for each function: how it is called, and the first line of its docstring."""
    rows = ["| say | a query sees |", "|---|---|"]
    for name, function in functions.items():
        assert callable(function)
        given = ", ".join(
            name if kind.default is inspect.Parameter.empty else f"{name}={default(kind)}"
            for name, kind in inspect.signature(function).parameters.items()
        )
        first = (inspect.getdoc(function) or "").splitlines()[0]
        rows.append(f"| `{prefix}{name}({given})` | {first} |")
    return "\n".join(rows)


def default(parameter: inspect.Parameter) -> str:
    """What stands for an argument that is left out."""
    return "…" if parameter.default is None else repr(parameter.default)


def filled(text: str, name: str, content: str, by: str = "docs") -> str:
    """The text with the part between its two markers replaced; `by` is the target that makes it."""
    begin, end = f"<!-- {name}: made by `make {by}` -->", f"<!-- end of {name} -->"
    pattern = re.compile(re.escape(begin) + ".*?" + re.escape(end), re.DOTALL)
    assert pattern.search(text), f"the markers of {name} are missing"
    return pattern.sub(lambda _: f"{begin}\n{content}\n{end}", text)


if __name__ == "__main__":
    for page, content in pages().items():
        page.write_text(content)
