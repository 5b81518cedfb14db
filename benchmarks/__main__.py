"""`make bench`: all measurements, one after the other; `python -m benchmarks targets` for one."""

from __future__ import annotations

import sys

from benchmarks import core, targets

ALL = {"core": core.run, "targets": targets.run}

for name in sys.argv[1:] or ALL:
    ALL[name]()
