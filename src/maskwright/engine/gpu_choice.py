"""The backend that `maskwright doctor --verify` stored for a GPU.

On CUDA and ROCm `attention` uses SDPA and FlexAttention until the Triton kernels were verified
there. A choice is stored per device name, torch and Triton version.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

from maskwright._atomic_write import create_folder, write_atomic
from maskwright._optional_deps import require


def choice_path() -> Path:
    """The file with the stored choices, maskwright/gpu.json in XDG_CACHE_HOME or ~/.cache."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root, "maskwright", "gpu.json")


def stored_choice() -> str | None:
    """The backend that was stored for the current GPU and these versions, or None."""
    path = choice_path()
    if not path.exists():
        return None
    key = device_key()
    if key is None:
        return None
    try:
        stored = json.loads(path.read_text())
    except (OSError, ValueError):
        return None  # a file that was not written by `store` decides nothing
    choice = stored.get(key) if isinstance(stored, dict) else None
    return choice if choice in ("triton", "default") else None


def device_key() -> str | None:
    """Name of the current GPU with the versions of torch and Triton; None without a GPU."""
    import torch

    if not torch.cuda.is_available():
        return None
    packages = versions()
    name = torch.cuda.get_device_name()
    return f"{name}, torch {packages['torch']}, triton {packages['triton']}"


def versions() -> dict[str, str]:
    """The versions of torch and Triton."""
    with require('impl="triton"'):
        import torch
        import triton
    return {"torch": str(torch.__version__), "triton": str(triton.__version__)}


def store(key: str, choice: str) -> None:
    """Store the backend of a device; other devices keep theirs."""
    path = choice_path()
    create_folder(path.parent)
    stored = json.loads(path.read_text()) if path.exists() else {}
    write_atomic(path, json.dumps({**stored, key: choice}, indent=2, sort_keys=True))
