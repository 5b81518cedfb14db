"""Accumulators stay in registers, whichever compiler builds the kernel."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[3] / "csrc"
FLAGS = ["-std=gnu11", "-O3", "-fno-math-errno", "-fno-trapping-math", "-Wno-psabi"]
COMPILERS = [name for name in ("cc", "gcc", "clang", "clang-14", "clang-16") if shutil.which(name)]
# Moves of vectors between registers and the stack per multiply-add in inner loops: GCC 12 has 0.08,
# Clang 14 and 16 0.29. Where arrays stay in memory, it is 1, and attention takes up to 4 times as long.
MAX_MOVES = 0.5


def inner_loops(assembly: str) -> list[list[str]]:
    """The blocks that jump to themselves, and multiply and add vectors."""
    loops, label, block = [], "", []
    for line in assembly.splitlines():
        if found := re.match(r"(\.L\w+):", line):
            label, block = found[1], []
            continue
        block.append(line)
        if label and re.match(rf"\s+j\w+\s+{re.escape(label)}\b", line):
            loops.append(block)
            label = ""
    return [loop for loop in loops if any("vfmadd" in line for line in loop)]


@pytest.mark.skipif(platform.machine() != "x86_64", reason="reads the assembly of x86")
@pytest.mark.parametrize("isa", ["avx2", "avx512"])
@pytest.mark.parametrize("compiler", COMPILERS)
def test_accumulators_of_inner_loops_stay_in_registers(compiler: str, isa: str) -> None:
    command = [compiler, *FLAGS, "-S", str(SOURCES / f"{isa}.c"), "-o", "-"]
    assembly = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    lines = [line for loop in inner_loops(assembly) for line in loop]
    moves = sum(bool(re.search(r"vmov.*\(%r[sb]p", line)) for line in lines)
    products = sum("vfmadd" in line for line in lines)
    assert products > 500
    assert moves / products < MAX_MOVES
