"""What the workbench says when it cannot go on."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["LabError", "missing", "unknown"]


class LabError(Exception):
    """An error of the user's making, or of the machine's: one line that says the rule and the remedy."""


def unknown(kind: str, name: str, known: Iterable[str]) -> LabError:
    """The error for a name that is not known, with the nearest one that is."""
    names = sorted(known)
    close = get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(names)}"
    return LabError(f"unknown {kind} {name!r}: {hint}")


def missing(package: str, extra: str, purpose: str) -> LabError:
    """The error for an optional package that is not installed."""
    return LabError(
        f"{purpose} needs the package {package}, which is not installed: pip install 'alrao[{extra}]'"
    )
