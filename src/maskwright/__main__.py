"""Where `maskwright` and `python -m maskwright` begin."""

from __future__ import annotations

import sys
from typing import NoReturn

from maskwright.errors import MaskError


def main() -> None:
    """Run the command line; a wrong mask or a missing extra is one sentence, not a traceback."""
    try:
        from maskwright.cli import app
    except ModuleNotFoundError as error:
        _fail(f"the command line needs {error.name}. Run: pip install 'maskwright[cli]'")
    try:
        app()
    except MaskError as error:
        _fail(str(error))
    except ModuleNotFoundError as error:
        if error.name != "wcwidth":
            raise
        _fail("pictures need wcwidth. Run: pip install 'maskwright[cli]'")


def _fail(sentence: str) -> NoReturn:
    print(f"maskwright: {sentence}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
