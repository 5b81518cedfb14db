"""The file of the results."""

from __future__ import annotations

from pathlib import Path

RESULTS = Path(__file__).parent / "results.json"
