"""What the verbs are made with: typer, or where it is not installed the plain form of it."""

from __future__ import annotations

try:
    import typer
except ModuleNotFoundError:
    from maskwright.cli import plain as typer  # type: ignore[no-redef]

__all__ = ["typer"]
