"""The entry point of `maskwright` and `python -m maskwright`."""

from __future__ import annotations

import sys

from maskwright._optional_deps import missing


def main() -> None:
    """Runs the command line, which the extra `cli` installs."""
    try:
        from maskwright.cli.main import main as run
    except ModuleNotFoundError as error:
        message = missing("maskwright", error)
        if message is None:
            raise
        print(message, file=sys.stderr)
        sys.exit(2)
    run()


if __name__ == "__main__":
    main()
