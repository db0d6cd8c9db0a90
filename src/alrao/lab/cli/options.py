"""Command-line options, generated from the fields of the settings: one list for all commands."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

import click

from ..errors import unknown
from ..settings import Settings

__all__ = [
    "collect",
    "common",
    "jobs_option",
    "out_option",
    "pick",
    "results_option",
    "roots_of",
    "settings_options",
    "words_of",
]

Kind = TypeVar("Kind")


def settings_options(skip: Iterable[str] = ()) -> Callable[[Any], Any]:
    """Add an option for every setting except some."""
    hints = get_type_hints(Settings)
    skipped = set(skip)

    def add(command: Any) -> Any:
        for field in reversed(dataclasses.fields(Settings)):
            if field.name in skipped:
                continue
            kind = next((t for t in get_args(hints[field.name]) if t is not NoneType), hints[field.name])
            flag = f"--{field.name.replace('_', '-')}"
            text, choices = field.metadata["help"], field.metadata["choices"]
            if kind is bool:
                command = click.option(flag, is_flag=True, help=text)(command)
                continue
            kind = kind if kind in (int, float) else str  # others are read from their spelling
            command = click.option(
                flag,
                type=kind,
                default=field.default,
                show_default=field.default is not None,
                help=f"{text}: {', '.join(choices)}" if choices else text,
                metavar={int: "N", float: "X"}.get(kind, "TEXT"),
            )(command)
        return command

    return add


def common(command: Any) -> Any:
    """Add the options of commands that train many networks: the budget, and where and how to compute."""
    every = {field.name for field in dataclasses.fields(Settings)}
    return settings_options(skip=every - {"budget", "data", "device", "threads", "to_keep"})(command)


jobs_option = click.option(
    "--jobs", type=click.IntRange(1), default=1, show_default=True, metavar="N", help="runs in parallel"
)


def out_option() -> Callable[[Any], Any]:
    """Add ``--out``."""
    return click.option(
        "--out", "out_dir", default="runs", show_default=True, metavar="DIR",
        help="where run directories are written",
    )  # fmt: skip


def results_option() -> Callable[[Any], Any]:
    """Add ``--results``."""
    return click.option(
        "--results", default="results", show_default=True, metavar="DIR",
        help="where finished runs are looked up as well, if it exists",
    )  # fmt: skip


def roots_of(out_dir: str, results: str) -> list[Path]:
    """The directories to look for runs in; new runs are written to the first."""
    return [Path(out_dir), *([Path(results)] if Path(results).is_dir() else [])]


def collect(values: dict[str, Any]) -> Settings:
    """Make settings of those values of a command that are settings."""
    names = {field.name for field in dataclasses.fields(Settings)}
    return Settings(**{name: value for name, value in values.items() if name in names})


def words_of(text: str) -> list[str]:
    """Split a list at its commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def pick(names: str, known: Mapping[str, Kind], what: str) -> list[Kind]:
    """Return the named objects, in the order in which they are known.

    Raises:
        LabError: a name is unknown.
    """
    wanted = words_of(names)
    for name in wanted:
        if name not in known:
            raise unknown(what, name, known)
    return [each for name, each in known.items() if name in wanted]
