"""Command-line options made from the fields of the settings: one list for all commands."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from types import NoneType
from typing import Any, get_args, get_type_hints

import click

from .settings import Settings

__all__ = ["collect", "common", "jobs_option", "out_option", "results_option", "roots_of", "settings_options"]


def settings_options(skip: Iterable[str] = ()) -> Callable[[Any], Any]:
    """Add an option for every setting but some."""
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
            if choices:
                text = f"{text}: {', '.join(choices)}"
            shown = field.default is not None
            command = click.option(
                flag, type=kind, default=field.default, show_default=shown, help=text, metavar=_metavar(kind)
            )(command)
        return command

    return add


def roots_of(out_dir: str, results: str) -> list[Path]:
    """Where runs are: new ones go to the first; finished ones are looked for in the second too, if there."""
    return [Path(out_dir), *([Path(results)] if Path(results).is_dir() else [])]


jobs_option = click.option(
    "--jobs", type=click.IntRange(1), default=1, show_default=True, metavar="N", help="runs at a time"
)


def out_option(default: str = "runs") -> Callable[[Any], Any]:
    """Add ``--out``."""
    return click.option(
        "--out", "out_dir", default=default, show_default=True, metavar="DIR", help="where run directories go"
    )


def results_option(default: str = "results") -> Callable[[Any], Any]:
    """Add ``--results``."""
    return click.option(
        "--results", default=default, show_default=True, metavar="DIR",
        help="finished runs to use as well, where it exists",
    )  # fmt: skip


def common(command: Any) -> Any:
    """Add what commands that train many networks share: the budget, and where and how it is computed."""
    every = {field.name for field in dataclasses.fields(Settings)}
    return settings_options(skip=every - {"budget", "data", "device", "threads"})(command)


def _metavar(kind: type) -> str:
    return {int: "N", float: "X"}.get(kind, "TEXT")


def collect(values: dict[str, Any]) -> Settings:
    """The settings among the values of a command, which are taken out."""
    names = [field.name for field in dataclasses.fields(Settings) if field.name in values]
    return Settings(**{name: values.pop(name) for name in names})
