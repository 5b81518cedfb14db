"""The command line: a thin layer over the library. Anything heavy is imported where it is used.

What may enter: verbs, each a function of a few lines that calls the library and prints. The verbs
stand in the order of the help.
"""

from __future__ import annotations

from importlib import import_module

from maskwright.cli.app import app

__all__ = ["app"]

for verbs in ("seeing", "handing", "running", "checking", "using", "teaching"):
    import_module(f"maskwright.cli.{verbs}")
