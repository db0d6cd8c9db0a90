"""Draw the import graph of a part of the repository: which module imports which, or which room which.

Usage: python tools/import_graph.py [core|integrations|lab] [--rooms] [--svg FILE]

With ``--svg`` it is a picture of the rooms: each is above those that it imports, and a line that follows from
others is left out. ``make pages`` draws docs/images/imports.svg.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = {"alrao": ROOT / "src" / "alrao", "alrao_lab": ROOT / "lab" / "src" / "alrao_lab"}


def modules(part: str = "core") -> dict[str, Path]:
    """The modules of one part by dotted name, without the name of the package."""
    source = PACKAGES["alrao_lab" if part == "lab" else "alrao"]
    found = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source).with_suffix("").parts
        if part == "lab" or (parts[0] == "integrations") == (part == "integrations"):
            found[".".join(parts)] = path
    return found


def _package(path: Path) -> str:
    return next(name for name, source in PACKAGES.items() if path.is_relative_to(source))


def imports(path: Path) -> set[str]:
    """What a module imports, in functions too: ``torch``, ``alrao.rates``, ``alrao.optim.sgd``."""
    package = _package(path)
    home = (package, *path.relative_to(PACKAGES[package]).with_suffix("").parts)
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = home[: len(home) - node.level] if node.level else ()
            base = ".".join([*start, *([node.module] if node.module else [])])
            inside = {f"{base}.{alias.name}" for alias in node.names}
            found |= {name for name in inside if _exists(name)} or {base}
    return found


def _exists(name: str) -> bool:
    package, *rest = name.split(".")
    path = PACKAGES.get(package, ROOT / "nowhere").joinpath(*rest)
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def graph(part: str = "core") -> dict[str, set[str]]:
    """For each module the modules of its package that it imports; a package stands for its ``__init__``."""
    known = modules(part)
    edges = {}
    for name, path in known.items():
        prefix = f"{_package(path)}."
        inside = {each.removeprefix(prefix) for each in imports(path) if each.startswith(prefix)}
        edges[name] = {f"{each}.__init__" if f"{each}.__init__" in known else each for each in inside}
    return edges


def draw(part: str = "core", *, rooms: bool = False) -> str:
    """The graph as text, a line a module; with ``rooms``, a line a folder."""
    lines: dict[str, set[str]] = {}
    for name, needed in graph(part).items():
        home = _room(name, part) if rooms else name
        others = {_room(each, part) if rooms else each for each in needed} - {home}
        lines.setdefault(home, set()).update(others)
    width = max(map(len, lines))
    shown = []
    for name, needed in lines.items():
        others = ", ".join(sorted(each.removesuffix(".__init__") for each in needed)) or "-"
        shown.append(f"{name.removesuffix('.__init__').ljust(width)}  ->  {others}")
    return "\n".join(shown)


def _room(name: str, part: str) -> str:
    parts = name.split(".")
    return ".".join(parts[: 2 if parts[0] in ("contrib", "integrations") else 1])


# A picture.

WIDE, HIGH, GAP = 118, 24, 34


def _below(name: str, rooms: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    new = {name}
    while new:
        new = {each for other in new for each in rooms[other]} - found
        found |= new
    return found


def levels(rooms: dict[str, set[str]]) -> dict[str, int]:
    """Return how high each room stands: one above the highest of those that it imports."""
    found: dict[str, int] = {}
    while len(found) < len(rooms):
        ready = {name for name, needed in rooms.items() if name not in found and needed <= found.keys()}
        if not ready:
            raise ValueError(f"a cycle of imports among {sorted(rooms.keys() - found.keys())}")
        found |= {name: 1 + max((found[each] for each in rooms[name]), default=-1) for name in ready}
    return found


def svg(part: str = "core") -> str:
    """Return the graph of the rooms as a picture."""
    rooms: dict[str, set[str]] = {}
    for name, needed in graph(part).items():
        if name != "__init__":
            others = {_room(each, part) for each in needed} - {_room(name, part)}
            rooms.setdefault(_room(name, part), set()).update(others)
    height = levels(rooms)
    rows = [
        sorted(name for name in rooms if height[name] == each) for each in range(max(height.values()) + 1)
    ]
    width = max(map(len, rows)) * WIDE
    place = {
        name: ((i + 0.5) * width / len(row), (len(rows) - 1 - high) * (HIGH + GAP) + HIGH)
        for high, row in enumerate(rows)
        for i, name in enumerate(row)
    }
    size = f'viewBox="0 0 {width} {len(rows) * (HIGH + GAP)}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="system-ui, sans-serif" font-size="13">',
        f"<title>Imports among the rooms of {part}; a room is above those that it imports</title>",
        f'<rect width="{width}" height="{len(rows) * (HIGH + GAP)}" fill="#ffffff"/>',
    ]
    for name, needed in rooms.items():
        implied = {each for other in needed for each in _below(other, rooms)}
        for other in sorted(needed - implied):
            (x1, y1), (x2, y2) = place[name], place[other]
            y1, y2 = y1 + HIGH / 2, y2 - HIGH / 2
            middle = (y1 + y2) / 2
            path = f"M{x1:.0f},{y1:.0f} C{x1:.0f},{middle:.0f} {x2:.0f},{middle:.0f} {x2:.0f},{y2:.0f}"
            parts.append(f'<path d="{path}" fill="none" stroke="#8a929c"/>')
    for name, (x, y) in place.items():
        corner = f'x="{x - WIDE / 2 + 5:.0f}" y="{y - HIGH / 2:.0f}"'
        look = 'rx="5" fill="#eef2fb" stroke="#3f6fe8"'
        parts.append(f'<rect {corner} width="{WIDE - 10}" height="{HIGH}" {look}/>')
        shown = name.removeprefix("contrib.")
        parts.append(f'<text x="{x:.0f}" y="{y + 4:.0f}" text-anchor="middle" fill="#1f2328">{shown}</text>')
    return "\n".join([*parts, "</svg>", ""])


if __name__ == "__main__":
    words = sys.argv[1:]
    file = words.pop(words.index("--svg") + 1) if "--svg" in words else None
    asked = [word for word in words if not word.startswith("-")][:1]
    if file is None:
        sys.stdout.write(draw(*asked, rooms="--rooms" in words) + "\n")
    else:
        Path(file).write_text(svg(*asked), "utf-8")
