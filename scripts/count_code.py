"""Count the lines of Python code in src/, without blank lines, comments and docstrings.

python scripts/count_code.py            lines of each package
python scripts/count_code.py COMMIT     and the difference to a commit
"""

from __future__ import annotations

import ast
import io
import subprocess
import sys
import tokenize
from collections import Counter
from pathlib import Path

SOURCE = Path("src/maskwright")
IGNORED = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}


def code_lines(text: str) -> int:
    """The number of lines with code."""
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in IGNORED:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            lines -= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines)


def package_of(path: Path) -> str:
    """The package or module of maskwright that a file belongs to."""
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def count_files() -> Counter[str]:
    """Lines of the working tree by package."""
    found: Counter[str] = Counter()
    for path in SOURCE.rglob("*.py"):
        found[package_of(path)] += code_lines(path.read_text())
    return found


def count_commit(commit: str) -> Counter[str]:
    """Lines of a commit by package."""

    def git(*words: str) -> str:
        done = subprocess.run(["git", *words], check=False, capture_output=True, text=True)
        return done.stdout if done.returncode == 0 else sys.exit(done.stderr.strip())

    found: Counter[str] = Counter()
    for name in git("ls-tree", "-r", "--name-only", commit, str(SOURCE)).splitlines():
        if name.endswith(".py"):
            found[package_of(Path(name))] += code_lines(git("show", f"{commit}:{name}"))
    return found


def main() -> None:
    """Print a table."""
    now = count_files()
    before = count_commit(sys.argv[1]) if len(sys.argv) > 1 else now
    for name in sorted({*now, *before}, key=lambda name: -now[name]):
        print(f"{name:20}{now[name]:8,}{now[name] - before[name]:+8,}")
    print(f"{'total':20}{now.total():8,}{now.total() - before.total():+8,}")


if __name__ == "__main__":
    main()
