"""Runs every notebook, and keeps what it shows: `make notebooks`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from nbclient import NotebookClient
from traitlets.config import Config

HERE = Path(__file__).parent
NOTEBOOKS = sorted(HERE.glob("*.ipynb"))
SECONDS = 120  # for one cell


def run(path: Path) -> Any:
    """The notebook with fresh outputs, from a kernel of its own."""
    os.environ.setdefault("JUPYTER_PLATFORM_DIRS", "1")  # or Jupyter warns that it will ask for it
    notebook = nbformat.read(path, as_version=4)
    with TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook,
            timeout=SECONDS,
            kernel_name="python3",
            record_timing=False,
            coalesce_streams=True,
            resources={"metadata": {"path": str(HERE)}},
            # By files, so that no port is opened.
            config=Config(KernelManager={"transport": "ipc", "ip": f"{folder}/kernel"}),
        )
        client.execute()
    notebook.metadata.language_info = {
        "name": "python"
    }  # the version would change with the machine
    return notebook


def main() -> None:
    """Run them all, and write each anew."""
    for path in NOTEBOOKS:
        print(path.name, file=sys.stderr, flush=True)
        nbformat.write(run(path), path)


if __name__ == "__main__":
    main()
