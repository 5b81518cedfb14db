"""The page of the command line: the help of each command, with its examples and options."""

from __future__ import annotations

from typing import Any

import typer

from maskwright.cli import app


def sections() -> str:
    """A section per command, in the order of `--help`."""
    verbs: dict[str, Any] = typer.main.get_command(app).commands
    lines = []
    for name, verb in verbs.items():
        lines += [f"## {name}", "", verb.help, ""]
        if verb.epilog:
            examples = [line.strip() for line in verb.epilog.splitlines()[1:] if line.strip()]
            lines += ["```bash", *examples, "```", ""]
        given = [one for one in verb.params if one.help]
        rows = [f"| {_named(one)} | {_celled(one.help)} |" for one in given]
        if rows:
            lines += ["| argument or option | meaning |", "|---|---|", *rows, ""]
    return "\n".join(lines).rstrip()


def _named(given: Any) -> str:
    if given.param_type_name == "argument":
        return f"`{given.metavar or given.name.upper()}`"
    return ", ".join(f"`{option}`" for option in [*given.opts, *given.secondary_opts])


def _celled(text: str) -> str:
    """Text for a cell of a table, in which a bar would end it."""
    return text.replace("|", "\\|")
