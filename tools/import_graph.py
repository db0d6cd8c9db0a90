"""Draw the import graph of a part of the repository: which module imports which, or which room which.

Usage: python tools/import_graph.py [core|integrations|lab] [--rooms]
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
    return ".".join(parts[: 2 if part == "integrations" and parts[0] == part else 1])


if __name__ == "__main__":
    asked = [word for word in sys.argv[1:] if not word.startswith("-")]
    sys.stdout.write(draw(*asked[:1], rooms="--rooms" in sys.argv) + "\n")
