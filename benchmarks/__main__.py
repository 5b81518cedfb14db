"""`make bench`: all measurements, one after the other."""

from __future__ import annotations

from benchmarks import core

core.run()
