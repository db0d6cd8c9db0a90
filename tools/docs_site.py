"""A hook of MkDocs for the documentation site; `mkdocs.yml` lists it.

- Links that leave `docs/` lead to pages generated from the files.
- Formulas become MathML, which browsers render without a script and without a download.
- A public name without a page or a docstring causes a warning, which fails a strict build.
"""

from __future__ import annotations

import ast
import html
import json
import logging
import posixpath
import re
from collections.abc import Callable, Iterable, Iterator
from io import BytesIO
from pathlib import Path
from typing import Any
from zlib import decompress

import griffe
from latex2mathml.converter import convert
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, InclusionLevel

log = logging.getLogger("mkdocs.hooks.docs_site")

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "benchmarks/README.md": "benchmarks.md",
    "examples": "examples.md",
    "examples/tutorial.ipynb": "tutorial.md",
}
"""Files outside of `docs/`, and their pages."""

LANGUAGES = {".py": "python", ".toml": "toml", ".sh": "sh", ".cff": "yaml", ".yml": "yaml", ".json": "json"}

_LINK = re.compile(r"(?<=\]\()(?P<path>[^)\s#]+)(?P<anchor>#[^)\s]*)?(?=\))")
_FENCE = re.compile(r"^\s*(```|~~~)")


# Links that leave docs/.


def outside_code(markdown: str, change: Callable[[str], str]) -> str:
    """Apply a change to the lines that are not in a code block."""
    lines, inside = [], False
    for line in markdown.split("\n"):
        fence = bool(_FENCE.match(line))
        lines.append(line if inside or fence else change(line))
        inside ^= fence
    return "\n".join(lines)


def targets(markdown: str, folder: str) -> Iterator[str]:
    """Yield the files, relative to the repository's root, that a page in ``folder`` links to."""
    found: list[str] = []

    def look(line: str) -> str:
        found.extend(match["path"] for match in _LINK.finditer(line))
        return line

    outside_code(markdown, look)
    for path in found:
        if "://" not in path and not path.startswith(("/", "mailto:")):
            yield posixpath.normpath(posixpath.join(folder, path))


def page_of(path: str) -> str | None:
    """Return the page of a file, relative to `docs/`, or None if it has none."""
    if path in PAGES:
        return PAGES[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path.startswith("..") or not (ROOT / path).is_file():
        return None
    return f"source/{path}.md"


def relinked(markdown: str, folder: str, page: str) -> str:
    """Return the Markdown of a file in ``folder`` with its links rewritten for ``page`` of the site."""

    def change(match: re.Match[str]) -> str:
        path = match["path"]
        if "://" in path or path.startswith(("/", "mailto:")):
            return match[0]
        target = page_of(posixpath.normpath(posixpath.join(folder, path)))
        if target is None:
            return match[0]  # MkDocs reports it as broken
        return posixpath.relpath(target, posixpath.dirname(page) or ".") + (match["anchor"] or "")

    return outside_code(markdown, lambda line: _LINK.sub(change, line))


def on_files(files: Any, config: Any) -> Any:
    """Add pages for the files outside of `docs/` that are linked to, directly or not."""
    new = [path for path in PAGES if path != "README.md"]
    for file in list(files.documentation_pages()):
        new.extend(targets(file.content_string, posixpath.join("docs", posixpath.dirname(file.src_uri))))
    done = {"README.md"}
    while new:
        path = new.pop()
        page = None if path in done or path.startswith("docs/") else page_of(path)
        done.add(path)
        if page is None or not (ROOT / path).exists():
            continue
        text = page_from(path)
        if path.endswith(".md"):
            new.extend(targets(text, posixpath.dirname(path)))
        elif path == "examples":
            new.extend(targets(text, ""))
        inclusion = InclusionLevel.INCLUDED if path in PAGES else InclusionLevel.NOT_IN_NAV
        files.append(File.generated(config, page, content=text, inclusion=inclusion))
        _MADE[page] = "" if path == "examples" else posixpath.dirname(path)
    return files


_MADE: dict[str, str] = {}
"""The generated pages, and the folder that their links are relative to."""


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Rewrite the links to lead to pages of the site."""
    uri = page.file.src_uri
    return relinked(markdown, _MADE.get(uri, posixpath.join("docs", posixpath.dirname(uri))), uri)


# Pages generated from files.


def page_from(path: str) -> str:
    """Return the Markdown of the page that shows a file."""
    file = ROOT / path
    if file.is_dir():
        return _listing(path)
    if file.suffix == ".md":
        return file.read_text("utf-8")
    if file.suffix == ".ipynb":
        return notebook_page(json.loads(file.read_text("utf-8")), path)
    text = file.read_text("utf-8").rstrip("\n")
    return f"# {file.name}\n\n`{path}`\n\n````{LANGUAGES.get(file.suffix, 'text')}\n{text}\n````\n"


def _listing(path: str) -> str:
    rows = ["# Examples", "", "Short, complete scripts to start from. The tests run all of them.", ""]
    for file in sorted((ROOT / path).glob("*.py")):
        about = ast.get_docstring(ast.parse(file.read_text("utf-8"))) or ""
        rows.append(f"- [`{file.name}`]({path}/{file.name}): {about.partition(chr(10))[0]}")
    rows.append(f"- [`tutorial.ipynb`]({path}/tutorial.ipynb): the paper's tutorial, as a notebook.")
    return "\n".join(rows) + "\n"


def notebook_page(notebook: dict[str, Any], path: str) -> str:
    """Return a notebook as Markdown: text, code and printed output."""
    parts = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
        elif cell["cell_type"] == "code" and source:
            parts.append(f"```python\n{source}\n```")
            printed = "".join(_printed(cell.get("outputs", [])))
            if printed.strip():
                parts.append(f"```text\n{printed.rstrip()}\n```")
    parts.append(f"---\n\nThis page shows the notebook `{path}` with its stored outputs.")
    return "\n\n".join(parts) + "\n"


def _printed(outputs: Iterable[dict[str, Any]]) -> Iterator[str]:
    for output in outputs:
        text = output.get("text") or output.get("data", {}).get("text/plain", "")
        yield "".join(text)


# Formulas.

_ARITHMATEX = re.compile(r'<(span|div) class="arithmatex">\s*\\([(\[])(.*?)\\[)\]]\s*</\1>', re.DOTALL)


def mathml(formula: str, *, block: bool = False) -> str:
    """Convert a LaTeX formula to MathML."""
    formula = formula.replace("{aligned}", "{align*}")
    formula = re.sub(r"\\(mathrm|operatorname)\{(\w\w+)\}", r"\\text{\2}", formula)
    drawn = convert(formula, display="block" if block else "inline")
    return re.sub(r"<mi>(log|exp)</mi>(?!<mo|<mrow><mo)", r'<mi>\1</mi><mspace width="0.17em" />', drawn)


def on_page_content(content: str, page: Any, config: Any, files: Any) -> str:
    """Convert the formulas of a page, including those from docstrings."""
    return _ARITHMATEX.sub(lambda m: mathml(html.unescape(m[3]), block=m[2] == "["), content)


# Every public name.


def public_names(source: Path = ROOT / "src") -> dict[str, griffe.Object]:
    """Return the public names of `alrao` and of the public modules of `alrao.integrations`."""
    package = griffe.load("alrao", search_paths=[str(source)])
    integrations = package["integrations"]
    modules = [package, *(m for name, m in integrations.modules.items() if not name.startswith("_"))]
    found = {}
    for module in modules:
        for name in map(str, module.exports or []):
            obj = module[name]
            if obj.is_module:  # a module that has given its name to what is imported from it
                obj = obj[name]
            found[f"{module.path}.{name}"] = obj.final_target if obj.is_alias else obj
    return found


def undocumented(names: dict[str, griffe.Object]) -> Iterator[str]:
    """Yield the public names, and their public methods, without a docstring."""
    for path, obj in names.items():
        if not obj.has_docstring:
            yield path
        if obj.is_class:
            for name, member in obj.members.items():
                code = member.is_function or "property" in member.labels
                if code and not name.startswith("_") and not member.has_docstring:
                    yield f"{path}.{name}"


def inventory(file: Path) -> set[str]:
    """Return the names in an `objects.inv`, the list of what a site documents."""
    data = BytesIO(file.read_bytes())
    for _ in range(4):
        data.readline()
    return {line.split(" ", 1)[0] for line in decompress(data.read()).decode().splitlines() if line}


def complaints(names: dict[str, griffe.Object], documented: set[str]) -> list[str]:
    """Return a message for each public name without a page or a docstring."""
    missing = [
        f"{path} is public, but on none of the pages in docs/api"
        for path, obj in names.items()
        if documented.isdisjoint((path, obj.path))
    ]
    return missing + [f"{path} is public, but has no docstring" for path in undocumented(names)]


@event_priority(-100)  # after mkdocstrings has written its list
def on_post_build(config: Any) -> None:
    """Warn about undocumented public names."""
    for complaint in complaints(public_names(), inventory(Path(config["site_dir"]) / "objects.inv")):
        log.warning(complaint)
