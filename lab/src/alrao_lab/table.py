"""One frame of results, a row per run; tables are group-bys over it."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cached_property
from math import inf, isnan, nan
from typing import Any

import pandas as pd  # type: ignore[import-untyped]

from .methods import METHODS
from .records import Reading, Record
from .resolve import OF_METHOD, divergence, label, title, varied
from .settings import MethodSpec
from .store import DEVIATION, PARTS

HIGHER_IS_BETTER = ("return", "accuracy")
TYPED = ["spec", "method", "ours", "rate", "fraction", "low", "high", "varied"]
"""The columns of a method and its settings."""
COLUMNS = ["experiment", "label", *TYPED, "seed", "ended", "diverged", "diverged_at", "seconds", *PARTS]
COLUMNS += ["historical", "record"]


def frame(records: Iterable[Record]) -> pd.DataFrame:
    """Return a row per run, in the order of methods, rates and seeds.

    Its columns: the experiment, the method and its settings (``TYPED``), the label, how the run ended, and
    its figures, without a value where it failed: ``test`` is the first measure on the test data, whatever its
    name, ``test accuracy`` that measure.
    """
    rows = sorted(map(_row, records), key=lambda row: row["order"])
    typed = dict.fromkeys(("rate", "fraction", "low", "high", "seconds", "diverged_at", *PARTS), float)
    found = pd.DataFrame(rows) if rows else pd.DataFrame(columns=COLUMNS)
    return found.astype({**typed, "ours": bool})


def _row(record: Record) -> dict[str, Any]:
    settings, result = record.settings, record.result
    spec, interval = settings.method, settings.lr
    method = METHODS.get(spec.name)
    rate = spec.lr if spec.lr is not None or method is None else method.default_rate
    low, high = (interval.low, interval.high) if interval is not None else (nan, nan)
    common = [item for item in settings.key().items() if item[0] not in (*OF_METHOD, "seed")]
    names, shown = list(METHODS), ",".join(varied(settings))
    place = names.index(spec.name) if spec.name in names else len(names)
    order = (place, spec.name, spec.lr or 0.0, spec.fraction or 0.0, shown != "", low, high)
    figures: dict[str, float | None] = {}
    for part in PARTS if record.ended else ():
        values = {} if record.diverged else result[part]
        figures |= {f"{part} {measure}": values.get(measure) for measure in result[part]}
        figures[part] = values.get(record.measures[0])
    return {
        "experiment": repr((*common, record.data)),
        "label": label(settings),
        "spec": spec,
        "method": spec.name,
        "ours": method is not None and method.ours,
        "rate": rate,
        "fraction": spec.fraction,
        "low": low,
        "high": high,
        "varied": shown,
        "seed": settings.seed,
        "ended": record.ended,
        "diverged": record.diverged,
        "diverged_at": result.get("diverged_at"),
        "seconds": result.get("seconds"),
        "historical": record.run.historical,
        "record": record,
        **dict.fromkeys(PARTS),
        "order": (*(0.0 if value != value else value for value in order), label(settings), settings.seed),
        **figures,
    }


def summary(runs: pd.DataFrame) -> pd.DataFrame:
    """Return a row per method: its typed columns, seeds, failures, time, and the mean of every measure.

    The deviation of ``test loss`` over the seeds is the column ``test loss ±``.
    """
    by = runs.groupby("label", sort=False)
    figures = [column for column in runs.columns if column.startswith(PARTS)]
    numbers = runs[figures].astype(float).groupby(runs["label"], sort=False)
    found = by[TYPED].first()
    found["seeds"], found["failed"], found["seconds"] = by.size(), by["diverged"].sum(), by["seconds"].mean()
    found["historical"] = by["historical"].sum()
    found["searched"], found["search_seconds"] = 1, nan
    return found.join(numbers.mean()).join(numbers.std().add_suffix(f" {DEVIATION}"))


def best_rate(runs: pd.DataFrame, *, higher: bool = False) -> str:
    """Return the label that fails least and is then best on validation, over the seeds that all have."""
    seeds = runs.groupby("label")["seed"].agg(set)
    common = set.intersection(*seeds)
    by = (runs[runs["seed"].isin(common)] if common else runs).groupby("label", sort=False)
    loss = by["valid"].mean() * (-1 if higher else 1)
    found = pd.DataFrame({"failed": by["diverged"].sum(), "loss": loss.fillna(inf)})
    return str(found.sort_values(["failed", "loss"], kind="stable").index[0])


def spread(row: Any, column: str, digits: int = 3, scale: float = 1.0) -> str:
    """Return the mean ± standard deviation of a column of a summary."""
    mean, deviation = (scale * row.get(name, nan) for name in (column, f"{column} ±"))
    if isnan(mean):
        return "–"
    return f"{mean:z.{digits}f}" + ("" if isnan(deviation) else f" ± {deviation:.{digits}f}")


def historical_note(runs: pd.DataFrame) -> str:
    """Return a sentence about the historical runs among some, or nothing."""
    count = int(runs["historical"].sum())
    if not count:
        return ""
    are = "run is" if len(runs) == 1 else "runs are" if count > 1 else "runs is"
    return f"{count} of these {len(runs)} {are} historical: no clean commit was recorded at their start."


class Experiment:
    """Runs that differ in method and seed only."""

    def __init__(self, runs: pd.DataFrame) -> None:
        self.runs = runs
        self.ended = runs[runs["ended"]]
        first: Record = runs["record"].iloc[0]
        self.settings, self.about = first.settings, first.about
        self.title = title(first.settings, first.about.get("source"))
        measures = next((record.measures for record in runs["record"] if record.measures), ["loss"])
        self.measures: list[str] = measures
        self.measure = measures[0]
        said = [record.result.get("higher_is_better") for record in self.ended["record"]]
        self.higher = bool(said and said[0]) or self.measure in HIGHER_IS_BETTER

    @cached_property
    def methods(self) -> pd.DataFrame:
        """The summary of all runs, of those in progress too."""
        return summary(self.runs)

    @cached_property
    def every(self) -> pd.DataFrame:
        """The summary of the runs that ended, SGD at every rate."""
        return summary(self.ended)

    @property
    def grid(self) -> pd.DataFrame:
        """The rows of SGD, a rate each, where several were run."""
        found = self.every[self.every["method"] == "sgd"]
        return found if len(found) > 1 else found.iloc[:0]

    @cached_property
    def rows(self) -> pd.DataFrame:
        """The same as ``every``, SGD at its best rate only."""
        sgd = self.ended[self.ended["method"] == "sgd"]
        if sgd.empty:
            return self.every
        best = best_rate(sgd, higher=self.higher)
        shown = self.every[(self.every["method"] != "sgd") | (self.every.index == best)].copy()
        shown.loc[best, "searched"] = sgd["label"].nunique()
        shown.loc[best, "search_seconds"] = sgd.groupby("label")["seconds"].first().sum()  # one seed of each
        return shown

    @property
    def failures(self) -> list[str]:
        lost = self.ended.loc[self.ended["diverged"], ["label", "seed", "diverged_at"]]
        return [f"{name}, seed {seed}: {divergence(step)}" for _, (name, seed, step) in lost.iterrows()]

    @property
    def note(self) -> str:
        return historical_note(self.ended)

    def records(self, name: str) -> list[Record]:
        return list(self.runs.loc[self.runs["label"] == name, "record"])

    @cached_property
    def main(self) -> str | None:
        """The label of the method that the experiment is about: Auto, else the paper's, at its defaults."""
        found = (self.plain(name) for name in ("auto", "auto-plain", "alrao", "alrao-adam"))
        return next((name for name in found if name is not None), None)

    def plain(self, method: str) -> str | None:
        """Return the label of a method at its defaults, if it was run."""
        found = self.methods[(self.methods["spec"] == MethodSpec(method)) & (self.methods["varied"] == "")]
        return None if found.empty else str(found.index[0])


def experiments(reading: Reading) -> list[Experiment]:
    """Sort runs into experiments; those that measure something else than the others are left out."""
    made = []
    every = frame(reading.records)
    for _, runs in every.groupby("experiment"):
        kinds = runs["record"].map(lambda record: tuple(record.measures) if record.ended else None)
        known = kinds.dropna()
        usual = known.mode().iloc[0] if len(known) else None
        for record, kind in zip(runs["record"], kinds, strict=True):
            if kind not in (None, usual):
                own, others = ", ".join(kind), ", ".join(usual or ())
                reading.left_out.append(
                    f"{record.run.path}: left out: it measures {own}, the others {others}"
                )
        kept = runs[[kind in (None, usual) for kind in kinds]]
        if len(kept):
            made.append(Experiment(kept))
    return made
