"""Model types of transformers that cannot run on another attention implementation, and why.

The tests compare the list with all model types of the installed release: those that are refused when they
run, and those whose modules define attention layers that do not use the attention interface.
"""

from __future__ import annotations

from typing import Final

UNSUPPORTED_MODELS: Final[dict[str, str]] = {}
