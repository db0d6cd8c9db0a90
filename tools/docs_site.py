"""What MkDocs does not do by itself for the documentation's site; `mkdocs.yml` names this file as a hook.

- Links that leave `docs/` work on a code-hosting site; in the built one they lead to pages made of the files.
- Formulas become MathML, which browsers draw by themselves: no script, nothing fetched.
- A public name that is on no page, or has no docstring, is a warning, which a strict build does not survive.
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
"""Files outside of `docs/` that have a page of their own, or stand for one."""

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
    """The files of the repository, relative to its root, that a page in ``folder`` links to."""
    found: list[str] = []

    def look(line: str) -> str:
        found.extend(match["path"] for match in _LINK.finditer(line))
        return line

    outside_code(markdown, look)
    for path in found:
        if "://" not in path and not path.startswith(("/", "mailto:")):
            yield posixpath.normpath(posixpath.join(folder, path))


def page_of(path: str) -> str | None:
    """The page of the site, relative to `docs/`, for a file of the repository; None if there is none."""
    if path in PAGES:
        return PAGES[path]
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path.startswith("..") or not (ROOT / path).is_file():
        return None
    return f"source/{path}.md"


def relinked(markdown: str, folder: str, page: str) -> str:
    """The Markdown of a file in ``folder`` of the repository, with links as ``page`` of the site needs."""

    def change(match: re.Match[str]) -> str:
        path = match["path"]
        if "://" in path or path.startswith(("/", "mailto:")):
            return match[0]
        target = page_of(posixpath.normpath(posixpath.join(folder, path)))
        if target is None:
            return match[0]  # MkDocs says that it is broken
        return posixpath.relpath(target, posixpath.dirname(page) or ".") + (match["anchor"] or "")

    return outside_code(markdown, lambda line: _LINK.sub(change, line))


def on_files(files: Any, config: Any) -> Any:
    """Add pages for the files outside of `docs/` that the pages link to, and for those that they link to."""
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
"""The pages made of files, and the folder that the links in them start from."""


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Let the links lead to pages of the site."""
    uri = page.file.src_uri
    return relinked(markdown, _MADE.get(uri, posixpath.join("docs", posixpath.dirname(uri))), uri)


# Pages made of files.


def page_from(path: str) -> str:
    """The Markdown of the page that shows a file of the repository."""
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
    rows = ["# Examples", "", "Short scripts to copy from; the tests run all of them.", ""]
    for file in sorted((ROOT / path).glob("*.py")):
        about = ast.get_docstring(ast.parse(file.read_text("utf-8"))) or ""
        rows.append(f"- [`{file.name}`]({path}/{file.name}): {about.partition(chr(10))[0]}")
    rows.append(f"- [`tutorial.ipynb`]({path}/tutorial.ipynb): the paper's tutorial, as a notebook.")
    return "\n".join(rows) + "\n"


def notebook_page(notebook: dict[str, Any], path: str) -> str:
    """A notebook as Markdown: its text, its code, and what the code printed."""
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
    parts.append(f"---\n\nThis page is the notebook `{path}`, with the outputs that are stored in it.")
    return "\n\n".join(parts) + "\n"


def _printed(outputs: Iterable[dict[str, Any]]) -> Iterator[str]:
    for output in outputs:
        text = output.get("text") or output.get("data", {}).get("text/plain", "")
        yield "".join(text)


# Formulas.

_ARITHMATEX = re.compile(r'<(span|div) class="arithmatex">\s*\\([(\[])(.*?)\\[)\]]\s*</\1>', re.DOTALL)


def mathml(formula: str, *, block: bool = False) -> str:
    """A formula of LaTeX as MathML."""
    formula = formula.replace("{aligned}", "{align*}")
    formula = re.sub(r"\\(mathrm|operatorname)\{(\w\w+)\}", r"\\text{\2}", formula)
    drawn = convert(formula, display="block" if block else "inline")
    return re.sub(r"<mi>(log|exp)</mi>(?!<mo|<mrow><mo)", r'<mi>\1</mi><mspace width="0.17em" />', drawn)


def on_page_content(content: str, page: Any, config: Any, files: Any) -> str:
    """Draw the formulas of a page, those of docstrings included."""
    return _ARITHMATEX.sub(lambda m: mathml(html.unescape(m[3]), block=m[2] == "["), content)


# Every public name.


def public_names(source: Path = ROOT / "src") -> dict[str, griffe.Object]:
    """What a user may import: the names of `alrao` and of the public modules of `alrao.integrations`."""
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
    """The public names without a docstring, and the public methods of classes among them."""
    for path, obj in names.items():
        if not obj.has_docstring:
            yield path
        if obj.is_class:
            for name, member in obj.members.items():
                code = member.is_function or "property" in member.labels
                if code and not name.startswith("_") and not member.has_docstring:
                    yield f"{path}.{name}"


def inventory(file: Path) -> set[str]:
    """The names in an `objects.inv`, the list of what a site documents."""
    data = BytesIO(file.read_bytes())
    for _ in range(4):
        data.readline()
    return {line.split(" ", 1)[0] for line in decompress(data.read()).decode().splitlines() if line}


def complaints(names: dict[str, griffe.Object], documented: set[str]) -> list[str]:
    """What keeps the documentation from being complete."""
    missing = [
        f"{path} is public, but on none of the pages in docs/api"
        for path, obj in names.items()
        if documented.isdisjoint((path, obj.path))
    ]
    return missing + [f"{path} is public, but has no docstring" for path in undocumented(names)]


@event_priority(-100)  # after mkdocstrings has written its list
def on_post_build(config: Any) -> None:
    """Warn of public names that are not documented."""
    for complaint in complaints(public_names(), inventory(Path(config["site_dir"]) / "objects.inv")):
        log.warning(complaint)
