"""Command-line options, generated from the fields of the settings: one list for all commands."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

import click

from ..errors import unknown
from ..settings import GROUPS, Settings, flag

Kind = TypeVar("Kind")


class Command(click.Command):
    """A command whose options are grouped in the help."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        heading = {name: group for group, names in GROUPS.items() for name in names.split()}
        sections: dict[str, list[tuple[str, str]]] = {section: [] for section in ("Options", *GROUPS)}
        for parameter in self.get_params(ctx):
            record = parameter.get_help_record(ctx)
            if isinstance(parameter, click.Option) and record is not None:
                sections[heading.get(parameter.name or "", "Options")].append(record)
        for section, records in sections.items():
            if records:
                with formatter.section(section):
                    formatter.write_dl(records)


def settings_options(skip: Iterable[str] = (), **defaults: Any) -> Callable[[Any], Any]:
    """Add an option for every setting except some; the command receives them as ``settings``.

    ``defaults`` are those that differ for this command.
    """
    hints = get_type_hints(Settings)
    fields = dataclasses.fields(Settings)

    def add(command: Any) -> Any:
        @wraps(command)
        def collected(**values: Any) -> Any:
            given = {field.name: values.pop(field.name) for field in fields if field.name in values}
            return command(settings=Settings(**given), **values)

        for field in reversed(fields):
            if field.name in ("former", *skip):
                continue
            kind = next((t for t in get_args(hints[field.name]) if t is not NoneType), hints[field.name])
            text, choices = field.metadata["help"], field.metadata["choices"]
            options: dict[str, Any] = {"is_flag": True, "help": text}
            if kind is not bool:
                options = {
                    "type": kind if kind in (int, float) else str,  # others are read from their spelling
                    "default": defaults.get(field.name, field.default),
                    "show_default": field.default is not None,
                    "help": f"{text}: {', '.join(choices)}" if choices else text,
                    "metavar": {int: "N", float: "X"}.get(kind, "TEXT"),
                }
            click.option(flag(field.name), **options)(collected)
        return collected

    return add


def common(command: Any) -> Any:
    """Add the options of commands that train many networks: the budget, and where and how to compute."""
    every = {field.name for field in dataclasses.fields(Settings)}
    return settings_options(skip=every - {"budget", "data", "device", "threads", "to_keep"})(command)


def spread_options(command: Any) -> Any:
    """Add ``--jobs``, ``--backend`` and ``--gpus``; the command receives them as ``spread``."""

    @wraps(command)
    def spread(*, backend: str, jobs: int | None, gpus: float | None, **values: Any) -> Any:
        from ..spread import pick_spread

        return command(spread=pick_spread(backend, jobs, gpus), **values)

    jobs = "runs in parallel  [default: 1; on Ray, as many as there is room for]"
    backend = "where runs are trained: joblib (this machine), ray (a Ray cluster)"
    gpus = "GPUs of each run, such as 0.25 (Ray)"
    click.option("--gpus", type=float, metavar="X", help=gpus)(spread)
    click.option("--backend", default="joblib", show_default=True, help=backend)(spread)
    click.option("--jobs", type=click.IntRange(1), metavar="N", help=jobs)(spread)
    return spread


def places(command: Any) -> Any:
    """Add ``--out`` and ``--results``; the command receives as ``roots`` where to look for runs."""

    @wraps(command)
    def located(*, out_dir: str, results: str, **values: Any) -> Any:
        roots = [Path(out_dir), *([Path(results)] if Path(results).is_dir() else [])]
        return command(roots=roots, **values)

    folder: dict[str, Any] = {"show_default": True, "metavar": "DIR"}
    looked_up = "where finished runs are looked up as well, if it exists"
    click.option("--results", default="results", help=looked_up, **folder)(located)
    click.option("--out", "out_dir", default="runs", help="where runs are written", **folder)(located)
    return located


def words_of(text: str) -> list[str]:
    """Split a list at its commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def pick(names: Iterable[str], known: Mapping[str, Kind], what: str) -> list[Kind]:
    """Return the named objects, all if none is named, in the order in which they are known."""
    wanted = set(names)
    for name in sorted(wanted - set(known)):
        raise unknown(what, name, known)
    return [each for name, each in known.items() if name in (wanted or known)]
