"""Draw the package's import graph: which module imports which, room by room.

Usage: python tools/import_graph.py [core|lab|integrations] [--rooms]
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src" / "alrao"
APART = ("lab", "integrations")


def modules(part: str = "core") -> dict[str, Path]:
    """The modules of one part of the package by dotted name, without ``alrao``."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        home = parts[0] if len(parts) > 1 and parts[0] in APART else "core"
        if home == part:
            found[".".join(parts)] = path
    return found


def imports(path: Path) -> set[str]:
    """What a module imports, in functions too: ``torch``, ``alrao.rates``, ``alrao.optim.sgd``."""
    home = ("alrao", *path.relative_to(SOURCE).with_suffix("").parts)
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
    path = SOURCE.parent.joinpath(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def graph(part: str = "core") -> dict[str, set[str]]:
    """For each module the modules of the package that it imports; a package stands for its ``__init__``."""
    known = modules(part)
    edges = {}
    for name, path in known.items():
        inside = {each.removeprefix("alrao.") for each in imports(path) if each.startswith("alrao.")}
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
    return ".".join(parts[: 2 if part != "core" and parts[0] == part else 1])


if __name__ == "__main__":
    asked = [word for word in sys.argv[1:] if not word.startswith("-")]
    sys.stdout.write(draw(*asked[:1], rooms="--rooms" in sys.argv) + "\n")
