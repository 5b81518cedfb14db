"""pip with a line that tells how far it is: when it fails, that is told."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent.parent.parent / "scripts" / "install.py"


def test_all_that_pip_said_and_its_exit_code_when_it_fails(tmp_path: Path) -> None:
    command = [sys.executable, str(SCRIPT), "--no-index", str(tmp_path / "nothing-here")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "nothing-here" in done.stderr
    assert done.stdout == ""
