"""Runs all notebooks and stores their outputs: `make notebooks`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from nbclient import NotebookClient
from traitlets.config import Config

from maskwright._atomic_write import write_atomic

HERE = Path(__file__).parent
NOTEBOOKS = sorted(HERE.glob("*.ipynb"))
SECONDS = 120  # timeout per cell


def run(path: Path) -> Any:
    """Returns the notebook with new outputs, run in a kernel of its own."""
    os.environ.setdefault("JUPYTER_PLATFORM_DIRS", "1")  # otherwise Jupyter warns
    notebook = nbformat.read(path, as_version=4)
    with TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook,
            timeout=SECONDS,
            kernel_name="python3",
            record_timing=False,
            coalesce_streams=True,
            resources={"metadata": {"path": str(HERE)}},
            # IPC, which opens no port.
            config=Config(KernelManager={"transport": "ipc", "ip": f"{folder}/kernel"}),
        )
        client.execute()
    notebook.metadata.language_info = {
        "name": "python"
    }  # the version would change with the machine
    return notebook


def main() -> None:
    """Runs all notebooks and writes them with their outputs."""
    for path in NOTEBOOKS:
        print(path.name, file=sys.stderr, flush=True)
        write_atomic(path, nbformat.writes(run(path)) + "\n")


if __name__ == "__main__":
    main()
