"""pip with a progress line: a failure is reported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent.parent.parent / "scripts" / "install.py"


def test_failure_shows_output_of_pip(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--no-index", str(tmp_path / "nothing-here")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "nothing-here" in done.stderr
    assert done.stdout == ""
