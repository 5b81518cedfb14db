"""The packages of the package and what they import, read from the code, as a table and a picture."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

from maskwright.draw.palette import DARK, LIGHT

SOURCE = Path(__file__).parent.parent / "src" / "maskwright"
FRONT = "maskwright"  # __init__.py, the flat public API
LEFT_OUT = {
    "_version",
    "_registry",
    "_optional_deps",
    "_atomic_write",
    "_memory",
    "_torch_state",
    "__main__",
}
WIDTH, HEIGHT = 112, 34  # of a package
ACROSS, DOWN = 24, 46  # between packages
EDGE = 16


@cache
def imports() -> dict[str, frozenset[str]]:
    """For every package, the packages that its files import."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted(SOURCE.rglob("*.py")):
        package = _package(path.relative_to(SOURCE).parts[0].removesuffix(".py"))
        found[package] |= {_package(name) for name in _imported(path)}
    packages = set(found) - LEFT_OUT
    return {
        package: frozenset(found[package] & packages - {package}) for package in sorted(packages)
    }


def table() -> str:
    """A row for each package: what it is for, and what it imports."""
    rows = ["| package | what it contains | imports |", "|---|---|---|"]
    order = levels()
    for package, others in sorted(imports().items(), key=lambda pair: (order[pair[0]], pair[0])):
        named = ", ".join(f"`{other}`" for other in sorted(others)) or "nothing"
        rows.append(f"| `{package}` | {_purpose(package)} | {named} |")
    return "\n".join(rows)


def levels() -> dict[str, int]:
    """How high above the ground a package stands: one more than the highest that it imports."""
    graph = imports()

    @cache
    def level(package: str) -> int:
        return 1 + max((level(other) for other in graph[package]), default=-1)

    return {package: level(package) for package in graph}


def steps() -> set[tuple[str, str]]:
    """The imports that no way over other packages implies: what a picture has to show."""
    graph = imports()

    @cache
    def below(package: str) -> frozenset[str]:
        return graph[package].union(*(below(other) for other in graph[package]))

    return {
        (package, other)
        for package, others in graph.items()
        for other in others
        if not any(other in below(between) for between in others - {other})
    }


def picture() -> str:
    """The packages as SVG, each above what it imports."""
    order = levels()
    top = max(order.values())
    floors = [sorted(package for package in order if order[package] == n) for n in range(top + 1)]
    width = 2 * EDGE + max(len(floor) for floor in floors) * (WIDTH + ACROSS) - ACROSS
    height = 2 * EDGE + len(floors) * (HEIGHT + DOWN) - DOWN
    places = {}
    for n, floor in enumerate(floors):
        left = (width - len(floor) * (WIDTH + ACROSS) + ACROSS) / 2
        for column, package in enumerate(floor):
            places[package] = (left + column * (WIDTH + ACROSS), EDGE + (top - n) * (HEIGHT + DOWN))
    lines = [_line(places[package], places[other]) for package, other in sorted(steps())]
    boxes = [_box(package, place) for package, place in sorted(places.items())]
    told = "; ".join(f"{a} imports {b}" for a, b in sorted(steps()))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" role="img" aria-labelledby="t d" '
            'font-family="system-ui,sans-serif" font-size="13" text-anchor="middle">',
            '<title id="t">The packages of maskwright, each above what it imports</title>',
            f'<desc id="d">{told}.</desc>',
            f"<style>{_style()}</style>",
            f'<rect class="ground" width="{width}" height="{height}" rx="6"/>',
            *lines,
            *boxes,
            "</svg>",
            "",
        ]
    )


def _package(name: str) -> str:
    if name == "__init__" or not ((SOURCE / name).is_dir() or (SOURCE / f"{name}.py").exists()):
        return FRONT
    return name


def _imported(path: Path) -> set[str]:
    """What a file imports of maskwright, as the first name below it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "maskwright":
            found |= {alias.name for alias in node.names} - {"__version__"}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("maskwright."):
            found.add((node.module or "").split(".")[1])
        elif isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
            found |= {[*parts, FRONT][1] for parts in names if parts[0] == "maskwright"}
    return found


def _purpose(package: str) -> str:
    """The first line of its docstring."""
    if package == FRONT:
        return "The flat public API."
    folder = SOURCE / package / "__init__.py"
    path = folder if folder.exists() else SOURCE / f"{package}.py"
    return (ast.get_docstring(ast.parse(path.read_text())) or "").splitlines()[0]


def _line(start: tuple[float, float], end: tuple[float, float]) -> str:
    x, y = start[0] + WIDTH / 2, start[1] + HEIGHT
    to_x, to_y = end[0] + WIDTH / 2, end[1]
    middle = (y + to_y) / 2
    return f'<path class="line" d="M{x:g} {y:g}C{x:g} {middle:g} {to_x:g} {middle:g} {to_x:g} {to_y:g}"/>'


def _box(package: str, place: tuple[float, float]) -> str:
    x, y = place
    return (
        f'<rect class="package" x="{x:g}" y="{y:g}" width="{WIDTH}" height="{HEIGHT}" rx="5"/>'
        f'<text x="{x + WIDTH / 2:g}" y="{y + HEIGHT / 2 + 4.5:g}">{package}</text>'
    )


def _style() -> str:
    rules = ".ground{{fill:{0.ground}}}text{{fill:{0.text}}}.line{{fill:none;stroke:{0.faint}}}"
    rules += ".package{{fill:{0.ground};stroke:{0.text}}}"
    dark = rules.format(DARK)
    return f"{rules.format(LIGHT)}@media (prefers-color-scheme:dark){{{dark}}}"
