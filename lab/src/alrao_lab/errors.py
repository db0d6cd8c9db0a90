"""Errors of the workbench: one line each, with the remedy."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches
from importlib import import_module
from typing import Any


class LabError(Exception):
    """An error that the user can correct; the command line prints it as one line.

    Whatever checks what a user gave, or reads or writes the user's files, raises it.
    """


def unknown(kind: str, name: str, known: Iterable[str]) -> LabError:
    """Return the error for an unknown name, with the nearest known one."""
    names = sorted(set(known))
    close = get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]}?" if close else f"there are: {', '.join(names)}"
    return LabError(f"unknown {kind} {name!r}: {hint}")


def missing(package: str, extra: str, purpose: str) -> LabError:
    """Return the error for a package that is not installed, of an extra or ("") of the workbench itself."""
    wanted = f"'alrao-lab[{extra}]'" if extra else "alrao-lab"
    return LabError(f"{purpose} needs the package {package}, which is not installed: pip install {wanted}")


def optional(module: str, extra: str, purpose: str, package: str | None = None) -> Any:
    """Import a module of an optional package; ``package`` is its name if the module has another."""
    package = package or module
    try:
        return import_module(module)
    except Exception as error:  # an installed package may raise anything, such as torchvision's RuntimeError
        absent = error.name if isinstance(error, ModuleNotFoundError) else None
        if absent and absent.partition(".")[0] in (package, module.partition(".")[0]):
            raise missing(package, extra, purpose) from None
        reason = str(error).partition("\n")[0]
        raise LabError(
            f"{purpose} needs the package {package}, which is installed and cannot be imported "
            f"({type(error).__name__}: {reason}): install a version of it that fits the other packages"
        ) from error
