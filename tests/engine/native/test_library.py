"""The C library without Python: its header, and the example of the documentation."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SOURCES = [str(path) for path in (ROOT / "csrc").glob("*.c") if path.name != "module.c"]
PAGE = (ROOT / "docs/attention.md").read_text()

pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="there is no C compiler")


def test_example_of_the_documentation_prints_what_it_says(tmp_path: Path) -> None:
    (code,) = re.findall(r"^```c\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (expected,) = re.findall(r"\./a\.out\n(.*)\n", PAGE)
    source, program = tmp_path / "example.c", tmp_path / "example"
    source.write_text(code)
    flags = ["-std=gnu11", "-Wall", "-Wextra", "-Werror", "-Wno-psabi", f"-I{ROOT / 'csrc'}"]
    libraries = ["-lm", "-pthread", "-ldl"]
    command = ["cc", *flags, str(source), *SOURCES, *libraries, "-o", str(program)]
    subprocess.run(command, check=True)
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == expected


def test_header_is_cpp(tmp_path: Path) -> None:
    source = tmp_path / "caller.cpp"
    source.write_text(
        '#include "maskwright.h"\nint64_t call() { mw_args args{}; return mw_forward(&args); }\n'
    )
    flags = ["-x", "c++", "-std=c++11", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'csrc'}"]
    compiler = shutil.which("c++") or pytest.skip("there is no C++ compiler")
    subprocess.run([compiler, *flags, "-c", str(source), "-o", str(tmp_path / "o")], check=True)
