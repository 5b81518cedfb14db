"""Checks that apply to a release only: `make release-check`.

- Every result in benchmarks/results was measured with the present code: its commit contains the last
  commit that changed the kernel, the engine or what they read (src/maskwright/engine, core and bias, and
  setup.py), or what else this result measures (ALSO in benchmarks/staleness.py), without uncommitted
  changes. Without the git history this is a warning.
- The generated pages show the present results, and each result is shown by a page.

Exit code 1 if a check fails.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.staleness import NoHistoryError, stale_results
from docs import generate


def pages() -> list[str]:
    """Generated pages that differ from their sources, and results that no page shows."""
    try:
        current = generate.pages()
    except generate.MissingResultError as error:
        return [str(error)]
    stale = [path.name for path, text in current.items() if path.read_text() != text]
    problems = [f"{name} is not current: run `make docs`" for name in stale]
    return problems + [
        f"{name}.json is not shown by any page" for name in generate.unused_results()
    ]


def main() -> int:
    """Print all problems."""
    problems = pages()
    try:
        problems += stale_results()
    except NoHistoryError as error:
        print(f"warning: {error}")
    for problem in problems:
        print(f"release-check: {problem}")
    print("release-check: " + (f"{len(problems)} problems" if problems else "no problems"))
    return int(bool(problems))


if __name__ == "__main__":
    if sys.argv[1:]:
        print(__doc__)
        sys.exit(0 if sys.argv[1:] in (["-h"], ["--help"]) else 2)
    sys.exit(main())
