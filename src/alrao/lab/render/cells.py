"""The cells of a comparison's table, the same in the terminal, in Markdown and in the report."""

from __future__ import annotations

from collections.abc import Sequence
from math import isnan
from typing import Any

from ..methods import METHODS
from ..table import Experiment, spread

AS_PERCENT = ("accuracy",)
DIGITS = {"return": 1}
"""Behind the decimal point; three elsewhere."""


def value_text(name: str, value: float | None) -> str:
    """Return the value of a measure; accuracy in per cent."""
    if value is None:
        return "–"
    return f"{100 * value:.1f} %" if name in AS_PERCENT else f"{value:.4g}"


def measure_text(name: str, value: float | None) -> str:
    """Return a measure with its name."""
    return f"{name} {value_text(name, value)}"


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


def is_alrao(row: Any) -> bool:
    """Return whether a row is of one of Alrao's methods."""
    return row["method"] in METHODS and METHODS[row["method"]].ours


def row_name(name: str, row: Any) -> str:
    """Return the label of a row, with the number of rates that were searched."""
    return f"{name}, best of {row['searched']}" if row["searched"] > 1 else name


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
