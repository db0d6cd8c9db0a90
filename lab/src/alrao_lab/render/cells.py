"""The cells of a comparison's table and the commands that repeat it, the same wherever they are shown."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from math import isfinite, isnan
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
from scipy.stats import ttest_ind  # type: ignore[import-untyped]

from ..errors import LabError
from ..resolve import OF_METHOD, unusual
from ..settings import MethodSpec, Settings, flag, spelled
from ..table import Experiment, spread
from ..tasks import get_task

MANY = 3
"""From this number of SGD's rates on, ``sgd`` selects the grid."""
AS_PERCENT = ("accuracy",)
ROUNDING = 1e-6
"""Losses above minus this are not negative."""
DIGITS = {"return": 1}
"""Behind the decimal point; three elsewhere."""


def not_below_zero(value: float) -> float:
    """Return 0 for a loss of 0 that float32 made slightly negative, else the value."""
    return 0.0 if -ROUNDING < value < 0 else value


def measure_text(name: str, value: float | None) -> str:
    """Return a measure with its name; accuracy in per cent."""
    if value is None:
        return f"{name} –"
    return f"{name} {100 * value:.1f} %" if name in AS_PERCENT else f"{name} {not_below_zero(value):.4g}"


def duration(seconds: float) -> str:
    """Return a time with its unit."""
    if seconds < 90:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def columns(measures: Sequence[str]) -> list[str]:
    """Return the headings of the measures' columns."""
    return [f"{name} %" if name in AS_PERCENT else f"test {name}" for name in measures]


def cells(row: Any, measures: Sequence[str]) -> list[str]:
    """Return the test measures of a row of a summary, mean ± deviation; ``diverged`` if every run failed."""
    if row["failed"] == row["seeds"]:
        return ["diverged", *["–"] * (len(measures) - 1)]
    return [
        spread(row, f"test {name}", 1, 100.0)
        if name in AS_PERCENT
        else spread(row, f"test {name}", DIGITS.get(name, 3))
        for name in measures
    ]


def shown(experiment: Experiment, rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows of a summary as text: the columns from which every table of a comparison takes its own."""
    figures, gaps = [cells(row, experiment.measures) for _, row in rows.iterrows()], behind(experiment)
    found = pd.DataFrame(figures, rows.index, columns(experiment.measures))
    searched = [f", best of {count}" if count > 1 else "" for count in rows["searched"]]
    found.insert(0, "method", [f"{name}{best}" for name, best in zip(rows.index, searched, strict=True)])
    found["behind SGD"] = [gaps.get(name, "") for name in rows.index]
    found["seeds"], found["failed"], found["runs to tune"] = rows["seeds"], rows["failed"], rows["searched"]
    found["seconds"] = rows["seconds"].map("{:.1f}".format)
    found["minutes per run"] = (rows["seconds"] / 60).map("{:.1f}".format)
    found["time per run"] = rows["seconds"].map(duration)
    return found.astype(str)


def behind(experiment: Experiment) -> dict[str, str]:
    """Return by how much each method's first measure is worse than that of SGD at its best rate."""
    column = f"test {experiment.measure}"
    sgd = experiment.rows[experiment.rows["searched"] > 1]
    if sgd.empty or isnan(reference := sgd[column].iloc[0]):
        return {}
    more = (experiment.rows[column] - reference).drop(sgd.index).dropna()
    digits = DIGITS.get(experiment.measure, 3)
    return {
        str(name): f"{-value if experiment.higher else value:+.{digits}f}" for name, value in more.items()
    }


def _options(settings: Settings) -> list[str]:
    """What the runs of an experiment have in common and is not the default, and their data, as options."""
    words: list[str] = []
    for name, value in unusual(settings):
        if name not in ("task", "seed", *OF_METHOD):
            words += [flag(name)] if value is True else [flag(name), str(value)]
    return words if settings.data is None else [*words, "--data", settings.data]


def compare_command(experiment: Experiment, names: Iterable[str]) -> str:
    """Return the ``alrao compare`` that runs the methods of some labels, Alrao's at their defaults."""
    methods = experiment.methods.loc[list(names)]
    specs: list[MethodSpec] = list(methods["spec"])
    many = sum(spec.name == "sgd" for spec in specs) >= MANY
    chosen = dict.fromkeys("sgd" if many and spec.name == "sgd" else str(spec) for spec in specs)
    words = ["compare", experiment.settings.task, "--methods", ",".join(chosen)]
    seeds, usual = int(methods["seeds"].max()), None
    with suppress(LabError, KeyError):  # of a task of another version
        usual = get_task(experiment.settings.task).budgets[experiment.settings.budget].seeds
    words += [] if seeds == usual else ["--seeds", str(seeds)]
    return shlex.join(["alrao", *words, *_options(experiment.settings)])


def triangle_command(experiment: Experiment, method: str, rates: Iterable[float]) -> str:
    """Return the ``alrao triangle`` over some rates."""
    words = ["triangle", experiment.settings.task, "--rates", ",".join(map(spelled, rates))]
    words += [] if method == "alrao" else ["--method", method]  # which is its default
    return shlex.join(["alrao", *words, *_options(experiment.settings)])


def data_notes(about: Mapping[str, Any]) -> dict[str, str]:
    """Return what was missing or left out of a run's data, in words."""
    found = {}
    for what, which in about.items():
        if what.startswith(("missing", "left out", "rows without")):
            names = (
                [f"{name} ({count})" for name, count in which.items()] if isinstance(which, dict) else which
            )
            found[what] = ", ".join(names) if isinstance(names, list) else str(names)
    return found


def verdict(experiment: Experiment) -> str:
    """Return a sentence about which method won on the test data, and by how much."""
    column = f"test {experiment.measure}"
    rows = experiment.rows[experiment.rows["failed"] == 0].dropna(subset=[column])
    if len(rows) < 2:
        return "no verdict: fewer than two methods finished all their runs"
    rows = rows.sort_values(column, ascending=not experiment.higher, kind="stable")
    best, next_ = rows.iloc[0], rows.iloc[1]
    gap, seeds = abs(best[column] - next_[column]), f"{best['seeds']} and {next_['seeds']} seeds"
    word = "highest" if experiment.higher else "lowest"
    names = [
        f"{row.name}{f' (best of {n} rates)' if (n := row['searched']) > 1 else ''}" for row in (best, next_)
    ]
    said = f"{names[0]} has the {word} {column}, {best[column]:.4g}; next is {names[1]}, {next_[column]:.4g}"
    scores = [experiment.ended.loc[experiment.ended["label"] == row.name, column] for row in (best, next_)]
    if min(map(len, scores)) < 2:
        return f"{said}: a difference of {gap:.2g}, without an uncertainty (it takes two seeds of each)"
    interval = ttest_ind(*map(list, scores), equal_var=False).confidence_interval(0.95)
    low, high = sorted(each if experiment.higher else -each for each in interval)
    size = f"a difference of {gap:.2g}"
    if isfinite(low):
        size += f" (95 % interval over {seeds}: {low:.2g} to {high:.2g})"
    return f"{said}: {size}" if low > 0 else f"{said}: no clear winner, {size}"
