"""The rooms of the package and what they import, read from the code, as a table and a picture."""

from __future__ import annotations

import ast
from collections import defaultdict
from functools import cache
from pathlib import Path

from maskwright.draw.palette import DARK, LIGHT

SOURCE = Path(__file__).parent.parent / "src" / "maskwright"
FRONT = "maskwright"  # __init__.py, the flat public API
LEFT_OUT = {"_version", "__main__"}  # a number, and three lines that call cli
WIDTH, HEIGHT = 112, 34  # of a room
ACROSS, DOWN = 24, 46  # between rooms
EDGE = 16


@cache
def imports() -> dict[str, frozenset[str]]:
    """For every room, the rooms that its files import."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted(SOURCE.rglob("*.py")):
        room = _room(path.relative_to(SOURCE).parts[0].removesuffix(".py"))
        found[room] |= {_room(name) for name in _imported(path)}
    rooms = set(found) - LEFT_OUT
    return {room: frozenset(found[room] & rooms - {room}) for room in sorted(rooms)}


def table() -> str:
    """A row for each room: what it is for, and what it imports."""
    rows = ["| room | what it is for | imports |", "|---|---|---|"]
    order = levels()
    for room, others in sorted(imports().items(), key=lambda pair: (order[pair[0]], pair[0])):
        named = ", ".join(f"`{other}`" for other in sorted(others)) or "nothing"
        rows.append(f"| `{room}` | {_purpose(room)} | {named} |")
    return "\n".join(rows)


def levels() -> dict[str, int]:
    """How high above the ground a room stands: one more than the highest that it imports."""
    graph = imports()

    @cache
    def level(room: str) -> int:
        return 1 + max((level(other) for other in graph[room]), default=-1)

    return {room: level(room) for room in graph}


def steps() -> set[tuple[str, str]]:
    """The imports that no way over other rooms implies: what a picture has to show."""
    graph = imports()

    @cache
    def below(room: str) -> frozenset[str]:
        return graph[room].union(*(below(other) for other in graph[room]))

    return {
        (room, other)
        for room, others in graph.items()
        for other in others
        if not any(other in below(between) for between in others - {other})
    }


def picture() -> str:
    """The rooms as SVG, each above what it imports."""
    order = levels()
    top = max(order.values())
    floors = [sorted(room for room in order if order[room] == n) for n in range(top + 1)]
    width = 2 * EDGE + max(len(floor) for floor in floors) * (WIDTH + ACROSS) - ACROSS
    height = 2 * EDGE + len(floors) * (HEIGHT + DOWN) - DOWN
    places = {}
    for n, floor in enumerate(floors):
        left = (width - len(floor) * (WIDTH + ACROSS) + ACROSS) / 2
        for column, room in enumerate(floor):
            places[room] = (left + column * (WIDTH + ACROSS), EDGE + (top - n) * (HEIGHT + DOWN))
    lines = [_line(places[room], places[other]) for room, other in sorted(steps())]
    boxes = [_box(room, place) for room, place in sorted(places.items())]
    told = "; ".join(f"{a} imports {b}" for a, b in sorted(steps()))
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" role="img" aria-labelledby="t d" '
            'font-family="system-ui,sans-serif" font-size="13" text-anchor="middle">',
            '<title id="t">The rooms of maskwright, each above what it imports</title>',
            f'<desc id="d">{told}.</desc>',
            f"<style>{_style()}</style>",
            f'<rect class="ground" width="{width}" height="{height}" rx="6"/>',
            *lines,
            *boxes,
            "</svg>",
            "",
        ]
    )


def _room(name: str) -> str:
    if name == "__init__" or not ((SOURCE / name).is_dir() or (SOURCE / f"{name}.py").exists()):
        return FRONT
    return name


def _imported(path: Path) -> set[str]:
    """What a file imports of maskwright, as the first name below it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "maskwright":
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("maskwright."):
            found.add((node.module or "").split(".")[1])
        elif isinstance(node, ast.Import):
            names = [alias.name.split(".") for alias in node.names]
            found |= {[*parts, FRONT][1] for parts in names if parts[0] == "maskwright"}
    return found


def _purpose(room: str) -> str:
    """The first line of its docstring."""
    if room == FRONT:
        return "The flat public API."
    folder = SOURCE / room / "__init__.py"
    path = folder if folder.exists() else SOURCE / f"{room}.py"
    return (ast.get_docstring(ast.parse(path.read_text())) or "").splitlines()[0]


def _line(start: tuple[float, float], end: tuple[float, float]) -> str:
    x, y = start[0] + WIDTH / 2, start[1] + HEIGHT
    to_x, to_y = end[0] + WIDTH / 2, end[1]
    middle = (y + to_y) / 2
    return f'<path class="line" d="M{x:g} {y:g}C{x:g} {middle:g} {to_x:g} {middle:g} {to_x:g} {to_y:g}"/>'


def _box(room: str, place: tuple[float, float]) -> str:
    x, y = place
    return (
        f'<rect class="room" x="{x:g}" y="{y:g}" width="{WIDTH}" height="{HEIGHT}" rx="5"/>'
        f'<text x="{x + WIDTH / 2:g}" y="{y + HEIGHT / 2 + 4.5:g}">{room}</text>'
    )


def _style() -> str:
    rules = ".ground{{fill:{0.ground}}}text{{fill:{0.text}}}.line{{fill:none;stroke:{0.faint}}}"
    rules += ".room{{fill:{0.ground};stroke:{0.text}}}"
    dark = rules.format(DARK)
    return f"{rules.format(LIGHT)}@media (prefers-color-scheme:dark){{{dark}}}"
