"""What commands share: their options, generated from the fields of the settings, and how they fail."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import wraps
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, get_args, get_type_hints

import click

from ..errors import unknown
from ..render.terminal import warn
from ..settings import FIELDS, GROUPS, Settings, flag
from ..spread import pick_spread

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


NAMES = [name for name in FIELDS if name != "former"]
FEW = ("budget", "threads", "data", "device", "to_keep")
"""The settings of commands that choose tasks, networks and methods themselves."""


def options(
    only: Iterable[str] = NAMES, skip: Iterable[str] = (), *, many: bool = True, **defaults: Any
) -> Callable[[Any], Any]:
    """Add the options of a command that trains: settings, where runs are, and where ``many`` are trained.

    The command receives them as ``settings``, ``roots`` and ``spread``. ``defaults`` are those that differ
    for this command.
    """
    hints = get_type_hints(Settings)

    def add(command: Any) -> Any:
        @wraps(command)
        def collected(*, out_dir: str, results: str, **values: Any) -> Any:
            if many:
                values["spread"] = pick_spread(*(values.pop(name) for name in ("backend", "jobs", "gpus")))
            given = {name: values.pop(name) for name in NAMES if name in values}
            roots = [Path(out_dir), *([Path(results)] if Path(results).is_dir() else [])]
            return command(settings=Settings(**given), roots=roots, **values)

        def option(*names: str, **about: Any) -> None:
            click.option(*names, **about)(collected)

        looked_up = "where finished runs are looked up as well, if it exists"
        option("--results", default="results", show_default=True, metavar="DIR", help=looked_up)
        written = "where runs are written"
        option("--out", "out_dir", default="runs", show_default=True, metavar="DIR", help=written)
        for name in reversed([name for name in only if name not in skip]):
            field, hint = FIELDS[name], hints[name]
            kind = next((kind for kind in get_args(hint) if kind is not NoneType), hint)
            text, choices = field.metadata["help"], field.metadata["choices"]
            if kind is bool:
                option(flag(name), is_flag=True, help=text)
                continue
            option(
                flag(name),
                type=kind if kind in (int, float) else str,  # others are read from their spelling
                default=defaults.get(name, field.default),
                show_default=field.default is not None,
                help=f"{text}: {', '.join(choices)}" if choices else text,
                metavar={int: "N", float: "X"}.get(kind, "TEXT"),
            )
        if many:
            option("--gpus", type=float, metavar="X", help="GPUs of each run, such as 0.25 (Ray)")
            where = "where runs are trained: joblib (this machine), ray (a Ray cluster)"
            option("--backend", default="joblib", show_default=True, help=where)
            jobs = "runs in parallel  [default: 1; on Ray, as many as there is room for]"
            option("--jobs", type=click.IntRange(1), metavar="N", help=jobs)
        return collected

    return add


def fail_if(failed: Mapping[Path, str]) -> None:
    """Print the runs that failed, and exit with code 1 if there are any."""
    for path, error in failed.items():
        warn(f"failed: {path}: {error}", "red")
    if failed:
        raise SystemExit(1)


def words_of(text: str) -> list[str]:
    """Split a list at its commas."""
    return [word.strip() for word in text.split(",") if word.strip()]


def pick(names: Iterable[str], known: Mapping[str, Kind], what: str) -> list[Kind]:
    """Return the named objects, all if none is named, in the order in which they are known."""
    wanted = set(names)
    for name in sorted(wanted - set(known)):
        raise unknown(what, name, known)
    return [each for name, each in known.items() if name in (wanted or known)]
