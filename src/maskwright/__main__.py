"""Where `maskwright` and `python -m maskwright` begin."""

from __future__ import annotations

import sys
from typing import NoReturn

from maskwright._optional_deps import missing
from maskwright.cli import app
from maskwright.errors import MaskError


def main() -> None:
    """Run the command line; a wrong mask or a missing extra is one sentence, not a traceback."""
    try:
        app()
    except MaskError as error:
        _fail(str(error))
    except ModuleNotFoundError as error:
        told = missing(sys.argv[1], error)
        if told is None:
            raise
        _fail(str(told))


def _fail(sentence: str) -> NoReturn:
    print(f"maskwright: {sentence}", file=sys.stderr)
    sys.exit(2)


if __name__ == "__main__":
    main()
