"""The page of probes and causes, read from the registry and the source of the probes.

The source is parsed, not imported: importing the probes needs PyTorch.
"""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import NamedTuple

from maskwright.auditing.probes import PROBES
from maskwright.linting.codes import CODES
from maskwright.messages import messages

FOLDER = Path(__file__).parent.parent / "src" / "maskwright" / "auditing" / "probes"


class Probe(NamedTuple):
    """What a probe does, its file, and when it does not apply."""

    text: str
    file: str
    skips: list[str]


def sections() -> str:
    """A heading for each probe, in the order in which they run."""
    lines = []
    for name in PROBES:
        probe = _probe(name)
        lines += [f"### {name}", "", probe.text, ""]
        if probe.skips:
            lines += ["Not applicable if:", "", *(f"- {reason};" for reason in probe.skips)]
            lines[-1] = lines[-1].removesuffix(";") + "."
            lines += [""]
        lines += [f"Source: `auditing/probes/{probe.file}`.", ""]
    return "\n".join(lines).rstrip()


def causes() -> str:
    """A row for each cause that a diagnosis names."""
    codes = sorted((code for code in CODES.values() if code.audit), key=lambda code: code.name)
    rows = [f"| `{code.name}` | {code.meaning} | {code.fix} |" for code in codes]
    return "\n".join(["| cause | meaning | fix |", "|---|---|---|", *rows])


def _probe(name: str) -> Probe:
    module, _, function = PROBES.entries[name].partition(":")
    path = FOLDER / f"{module}.py"
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            text = inspect.cleandoc(ast.get_docstring(node) or "")
            return Probe(text, path.name, _skips(node))
    raise LookupError(f"{path} has no function {function}")


def _skips(function: ast.FunctionDef) -> list[str]:
    """The texts of the constant notes with which a probe is skipped, in order."""
    found = []
    for call in ast.walk(function):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "skip":
            found += [node for node in ast.walk(call) if _is_code(node)]
    codes = dict.fromkeys(node.value for node in sorted(found, key=lambda node: node.lineno))
    texts = [messages("en")[code] for code in codes]
    return [text for text in texts if "{" not in text]


def _is_code(node: ast.AST) -> bool:
    return isinstance(node, ast.Constant) and str(node.value).startswith("audit.")
