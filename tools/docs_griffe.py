"""Convert Sphinx roles, formulas and examples in docstrings to Markdown for the site."""

from __future__ import annotations

import re
from textwrap import dedent
from typing import Any

import griffe

__all__ = ["Roles", "as_markdown"]

_ROLE = re.compile(r":(?:class|meth|func|attr|mod):`~?\.?([^`]+)`")
_MATH = re.compile(r":math:`([^`]+)`")
_BLOCK = re.compile(r"^\.\. math::[ \t]*(.*)\n((?:[ \t]*\n|[ \t]+\S.*\n?)*)", re.MULTILINE)
_CODE = re.compile(r"^\.\. code-block:: (\w+)\n\n((?:[ \t]*\n|[ \t]+\S.*\n?)+)", re.MULTILINE)
_EXAMPLE = re.compile(r"^Example:$", re.MULTILINE)
_REFERENCE = re.compile(r"^Reference: ", re.MULTILINE)


def as_markdown(text: str, known: dict[str, str]) -> str:
    """Return a docstring with links, formulas and sections in Markdown.

    Args:
        text: the docstring, without its indentation.
        known: the names that can be linked, and where: ``{"SGD": "alrao.SGD"}``.
    """

    def role(match: re.Match[str]) -> str:
        name = match[1]
        first, dot, rest = name.removeprefix("alrao.").partition(".")
        return f"[`{name}`][{known[first]}{dot}{rest}]" if first in known else f"`{name}`"

    def block(match: re.Match[str]) -> str:
        formula = " ".join(f"{match[1]}\n{match[2]}".split())
        if "&" in formula:
            formula = rf"\begin{{aligned}} {formula} \end{{aligned}}"
        return f"$$\n{formula}\n$$\n\n"

    def code(match: re.Match[str]) -> str:
        return f"```{match[1]}\n{dedent(match[2]).strip()}\n```\n\n"

    text = _CODE.sub(code, text + "\n")
    text = _BLOCK.sub(block, text).rstrip("\n")
    text = _MATH.sub(lambda match: f"${' '.join(match[1].split())}$", text)
    text = _EXAMPLE.sub("Examples:", text)
    text = _REFERENCE.sub("**Reference:** ", text)
    return _ROLE.sub(role, text)


class Roles(griffe.Extension):
    """Apply :func:`as_markdown` to every docstring of the package."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Rewrite the docstrings once the whole package is loaded."""
        self._rewrite(pkg, {str(name): f"{pkg.path}.{name}" for name in pkg.exports or []})

    def _rewrite(self, obj: griffe.Object | griffe.Alias, known: dict[str, str]) -> None:
        if obj.is_alias:
            return
        if obj.is_module:
            known = {**{str(name): f"{obj.path}.{name}" for name in obj.exports or []}, **known}
        elif obj.is_class:
            # Show alrao.LogUniform, not alrao.rates.LogUniform.
            path = known.get(obj.name, obj.path)
            known = {**{name: f"{path}.{name}" for name in obj.members if not name.startswith("_")}, **known}
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value, known)
        for member in list(obj.members.values()):
            self._rewrite(member, known)
