"""The page of probes, read from their source: importing them would need PyTorch."""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import NamedTuple

from maskwright.linting.codes import CODES

AUDITING = Path(__file__).parent.parent / "src" / "maskwright" / "auditing"


class Probe(NamedTuple):
    """What a probe does, where it is written, and where it has nothing to ask."""

    text: str
    file: str
    skips: list[str]


def sections() -> str:
    """A heading for every probe, in the order in which they are asked."""
    lines = []
    for name in _order():
        probe = _probe(name)
        lines += [f"### {name}", "", probe.text, ""]
        if probe.skips:
            lines += ["Not asked where:", "", *(f"- {reason};" for reason in probe.skips)]
            lines[-1] = lines[-1].removesuffix(";") + "."
            lines += [""]
        lines += [f"Written in `auditing/probes/{probe.file}`.", ""]
    return "\n".join(lines).rstrip()


def causes() -> str:
    """A row for every cause that a diagnosis names."""
    codes = sorted((code for code in CODES.values() if code.audit), key=lambda code: code.name)
    rows = [f"| `{code.name}` | {code.meaning} | {code.fix} |" for code in codes]
    return "\n".join(["| cause | what is wrong | what to do |", "|---|---|---|", *rows])


def _order() -> list[str]:
    for node in ast.parse((AUDITING / "case.py").read_text()).body:
        if isinstance(node, ast.AnnAssign) and ast.unparse(node.target) == "PROBES":
            return [word.value for word in ast.walk(node) if _is_text(word)]
    raise LookupError("auditing/case.py has no PROBES any more")


def _probe(name: str) -> Probe:
    for path in sorted((AUDITING / "probes").glob("*.py")):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name == name:
                text = inspect.cleandoc(ast.get_docstring(node) or "")
                return Probe(text, path.name, list(_skips(node)))
    raise LookupError(f"no file of auditing/probes/ has a function {name}")


def _skips(function: ast.FunctionDef) -> dict[str, None]:
    """The reasons that are written out, in order; a set that keeps it."""
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    named = [call for call in calls if ast.unparse(call.func) == "skip"]
    named.sort(key=lambda call: call.lineno)
    return dict.fromkeys(call.args[1].value for call in named if _is_text(call.args[1]))


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and isinstance(node.value, str)
