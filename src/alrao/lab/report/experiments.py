"""Runs sorted into experiments, and their methods into what each figure is about."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from math import inf
from typing import Any

from ..errors import LabError
from ..table import HIGHER_IS_BETTER, Group, Row, experiment, group, label, title
from ..values import Interval
from .records import Reading, Record

__all__ = ["Experiment", "experiments", "interval", "positive", "rate", "spoken"]

NAMES = {
    "sgd": "SGD",
    "adam": "Adam",
    "adamw": "AdamW",
    "alrao": "Alrao",
    "alrao-adam": "Alrao-Adam",
    "alrao-zoom": "Alrao-Zoom",
    "frozen": "Frozen",
    "prodigy": "Prodigy",
    "dog": "DoG",
    "schedulefree": "Schedule-Free",
    "dadapt-sgd": "D-Adapt SGD",
    "dadapt-adam": "D-Adapt Adam",
}
ORDER = ("alrao", "sgd", "adam", "alrao-adam", "alrao-zoom")
ADAM_DEFAULT = 1e-3
INTERVAL = re.compile(r"(alrao|alrao-adam) \(([^ ,():]+:[^ ,():]+)\)")
MANY = 3
"""From so many intervals on, they are a matter for the triangle and not for the curves."""


def spoken(name: str) -> str:
    """A method's label for reading: ``SGD 0.1`` for ``sgd@0.1``."""
    method, at, value = name.partition("@")
    first, space, rest = method.partition(" ")
    return f"{NAMES.get(first, first)}{space}{rest}{' ' if at else ''}{value}"


def rate(name: str, method: str) -> float | None:
    """The rate of ``sgd@0.1``; Adam without one is at its default."""
    first, at, value = name.partition("@")
    if first != method:
        return None
    if not at:
        return ADAM_DEFAULT if method == "adam" else None
    return positive(value)


def positive(text: str) -> float | None:
    """A finite number above zero, or None: names of runs may hold anything."""
    try:
        found = float(text)
    except ValueError:
        return None
    return found if 0 < found < inf else None


def interval(name: str, settings: dict[str, Any]) -> tuple[str, str, str] | None:
    """Method, lowest and highest rate of a run of Alrao that differs from the default in these alone."""
    found = INTERVAL.fullmatch(name)
    method, text = found.groups() if found else (name, settings["lr"])
    if method not in ("alrao", "alrao-adam") or not text:
        return None
    try:
        found_interval = Interval.parse(text)
    except LabError:
        return None
    return method, f"{found_interval.low:g}", f"{found_interval.high:g}"


@dataclass
class Experiment:
    """Runs that differ in method and seed alone: the table of those that ended, and all of them."""

    name: str
    """For the address of its section."""
    settings: dict[str, Any]
    title: str
    table: Group | None
    methods: dict[str, list[Record]] = field(default_factory=dict)
    """All runs of each method, by its label."""

    @property
    def measure(self) -> str:
        """What decides; ``loss`` mostly."""
        return next((record.measures[0] for record in self.records if record.measures), "loss")

    @property
    def higher(self) -> bool:
        """Whether more of it is better."""
        said = [record.result.get("higher_is_better") for record in self.records if record.ended]
        return bool(said and said[0]) or self.measure in HIGHER_IS_BETTER

    @property
    def records(self) -> list[Record]:
        """All runs."""
        return [record for records in self.methods.values() for record in records]

    def rows(self) -> dict[str, Row]:
        """Every method that has a run that ended, SGD at every rate."""
        if self.table is None:
            return {}
        return {row.label: row for row in [*self.table.grid, *self.table.rows]}

    def intervals(self) -> set[str]:
        """Labels of runs of Alrao that are there for the triangle: in another interval, one of many."""
        found = {name for name in self.methods if INTERVAL.fullmatch(name)}
        return found if len(found) >= MANY else set()

    def compared(self) -> list[str]:
        """The labels that are compared with one another: not Adam's rates, fractions, intervals."""
        aside = self.intervals()
        return [
            name for name in self.methods if name not in aside and not name.startswith(("adam@", "frozen@"))
        ]


def experiments(reading: Reading) -> list[Experiment]:
    """The experiments among the runs; what cannot be sorted is noted as left out."""
    found: dict[tuple[Any, ...], list[Record]] = {}
    for record in reading.records:
        try:
            key = (*experiment(record.settings), json.dumps(record.about, sort_keys=True, default=str))
            found.setdefault(key, []).append(record)
        except TypeError as error:
            reading.left_out.append(f"{record.path}: left out: {error}")
    made: list[Experiment] = []
    for _, records in sorted(found.items(), key=lambda item: repr(item[0])):
        ended = _of_one_kind([record for record in records if record.ended], reading)
        kept = [*ended, *(record for record in records if not record.ended)]
        if kept:
            made.append(_experiment(f"e{len(made) + 1}", kept, ended))
    return made


def _of_one_kind(records: list[Record], reading: Reading) -> list[Record]:
    """Those with the measures that most have."""
    kinds = [tuple(record.measures) for record in records]
    if len(set(kinds)) <= 1:
        return records
    usual = max(set(kinds), key=kinds.count)
    for record, kind in zip(records, kinds, strict=True):
        if kind != usual:
            reading.left_out.append(
                f"{record.path}: left out: it measures {', '.join(kind)}, the others {', '.join(usual)}"
            )
    return [record for record, kind in zip(records, kinds, strict=True) if kind == usual]


def _experiment(name: str, records: list[Record], ended: list[Record]) -> Experiment:
    methods: dict[str, list[Record]] = {}
    for record in sorted(records, key=_order):
        methods.setdefault(label(record.settings), []).append(record)
    settings = records[0].settings
    return Experiment(name, settings, title(settings), group(ended) if ended else None, methods)


def _order(record: Record) -> tuple[Any, ...]:
    name = record.settings["method"]
    method, _, value = name.partition("@")
    place = ORDER.index(method) if method in ORDER else len(ORDER)
    try:
        at = float(value.partition(":")[0] or 0)
    except ValueError:
        at = 0.0
    return place, method, at, name, str(record.settings["lr"]), record.settings["seed"]
