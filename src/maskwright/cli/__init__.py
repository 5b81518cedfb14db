"""The command line: one function per command, which calls the library and prints the result.

Everything heavy is imported in the command that uses it.
"""

from __future__ import annotations

from importlib import import_module

from maskwright.cli.main import app

__all__ = ["app"]

for commands in ("inspect", "convert", "attention", "audit", "apps", "learn"):  # order of --help
    import_module(f"maskwright.cli.{commands}")
