"""Without PyTorch, what compares with it is left out: all the rest needs numpy alone."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
TORCH = re.compile(r"^(import|from) torch\b", re.MULTILINE)

collect_ignore = (
    []
    if find_spec("torch")
    else [path.name for path in HERE.glob("test_*.py") if TORCH.search(path.read_text())]
)
