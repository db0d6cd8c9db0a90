"""Write the tables of README.md and docs/comparison.md from the suite's records: python tools/evidence.py.

It reads ``results/workload-*.jsonl.xz`` and needs no data set. Workloads on which a search for a rate is not
over are left out; a contender that has not run on all of the others has no figures. ``hero.py`` and
``play.py`` read the records through this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from math import inf, isfinite, isnan, nan
from pathlib import Path
from typing import Any

import pandas as pd

from alrao_lab.records import SUFFIX, Record, read_runs
from alrao_lab.render.markdown import table
from alrao_lab.suite.contenders import ADAMW, CONTENDERS, Candidate, Contender
from alrao_lab.suite.runs import COLUMNS, WHEN
from alrao_lab.suite.standings import Standings
from alrao_lab.suite.workloads import WORKLOADS, Workload

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
START, END = "<!-- table: tools/evidence.py -->", "<!-- end of the table -->"
AUTO = "auto"
NAMES = {
    "auto": "**`Auto`**",
    "auto-plain": "**`Auto`, plain network**",
    "sgd": "SGD, tuned",
    "adamw": "AdamW, tuned",
    "adamw-wsd": "AdamW, warm-up–stable–decay, tuned",
    "muon": "Muon, tuned",
    "adamw-0.001": "AdamW at 0.001",
    "prodigy": "Prodigy",
    "schedulefree": "Schedule-Free AdamW",
    "schedulefree+": "ScheduleFree+",
    "prodigy-plus": "Prodigy with Schedule-Free",
    "dadapt-adam": "D-Adaptation (Adam)",
    "dog": "DoG",
    "mechanic": "Mechanic on Adam",
    "ademamix": "AdEMAMix",
    "soap": "SOAP",
    "muon-default": "Muon at 0.001",
    "nadamw-calibrated": "NadamW, calibrated defaults",
    "schedulefree-calibrated": "Schedule-Free AdamW, calibrated defaults",
}
"""What contenders are called in tables."""
FEW = (AUTO, "prodigy", "schedulefree", "adamw-0.001")
"""Those of the README, beside the best tuned one."""
UNKNOWN = "–"


# The records.


def contender_of(record: Record) -> Contender | None:
    """Return the contender that a run belongs to."""
    settings = record.settings
    for contender in CONTENDERS.values():
        methods = {contender.method, *(method for method, _ in contender.others)}
        same = (contender.schedule, contender.momentum) == (settings.schedule, settings.momentum)
        if same and settings.method.name in methods and contender.tuned == (settings.method.lr is not None):
            return contender
    return None


def rows(workload: Workload, records: Iterable[Record]) -> Iterator[dict[str, Any]]:
    """Yield the figures of each run; its losses are infinite if it failed."""
    for record in records:
        contender = contender_of(record) if record.ended else None
        if contender is None:
            continue
        settings, result, (measure, *_, score) = record.settings, record.result, record.measures
        lines = [line for line in record.lines if line["valid"].get(measure) is not None]
        row = {
            "workload": workload.name,
            "contender": contender.name,
            "candidate": Candidate(settings.method.name, settings.method.lr, settings.weight_decay),
            "rate": settings.method.lr,
            "seed": settings.seed,
            "failed": record.diverged,
            "steps": result["steps"],
            "cpu": result.get("cpu", result["seconds"]),
            "seconds": result["seconds"],
            "curve": [(each["step"], each.get("cpu", nan), each["valid"][measure]) for each in lines],
            "measures": (measure, score),
            "historical": record.run.historical,
        }
        for when, figures in zip(WHEN, (result, lines[-1] if lines else {}), strict=True):
            for part in ("valid", "test"):
                value = (figures.get(part) or {}).get(measure)
                row[f"{part} {when}"] = inf if record.diverged or value is None else value
            row[f"score {when}"] = (figures.get("test") or {}).get(score)
        yield row


@cache
def runs(results: Path = RESULTS) -> pd.DataFrame:
    """Return the runs of all workloads, a row each."""
    found: list[dict[str, Any]] = []
    for name, workload in WORKLOADS.items():
        path = results / f"workload-{name}{SUFFIX}"
        if path.exists():
            found += rows(workload, read_runs([path]).records)
    return pd.DataFrame(found, columns=COLUMNS)


class Evidence:
    """The standings at the chosen epoch, on the workloads where all searches are over.

    As soon as Auto has run on some of these, the others are left out.
    """

    def __init__(self, results: Path = RESULTS) -> None:
        self.runs = runs(results)
        self.standings = Standings(self.runs, list(CONTENDERS.values()))
        ready = [each for name, each in WORKLOADS.items() if name in self.standings.best]
        with_auto = set(self.runs.loc[self.runs["contender"] == AUTO, "workload"])
        self.workloads = [each for each in ready if each.name in with_auto] or ready
        self.over = self.standings.over(self.workloads)
        chosen = self.standings.chosen.groupby(["workload", "contender"])["cpu"].mean().unstack()
        names = [each.name for each in self.workloads]
        chosen = chosen.reindex(index=names, columns=list(CONTENDERS))
        self.seconds = chosen.div(chosen[ADAMW], axis=0)
        """Processor seconds of a run, in units of tuned AdamW's, on each workload."""

    @property
    def held_out(self) -> int:
        """How many of the workloads are held out."""
        return sum(not each.chosen_on for each in self.workloads)

    def of(self, contender: str) -> list[str]:
        """Return the cells of a contender: mean, worst, score, seconds, runs."""
        if contender not in self.over.index or isnan(self.over.loc[contender, "mean"]):
            return [UNKNOWN] * 5
        row = self.over.loc[contender]
        seconds = self.seconds[contender].mean()
        return [*map(_percent, row[["mean", "worst", "score"]]), f"{seconds:.2f}", f"{row['tried']:.0f}"]

    def best_tuned(self) -> list[str]:
        """Return the cells of the best tuned run of each workload."""
        best = self.standings.best
        seconds = [self.seconds.loc[each.name, best[each.name]] for each in self.workloads]
        tuned = [each.name for each in CONTENDERS.values() if each.tuned and each.name in self.over.index]
        tried = self.over.loc[tuned, "tried"].sum()
        return ["0", "0", "0", f"{sum(seconds) / len(seconds):.2f}", f"{tried:.0f}"]


def _percent(gap: float) -> str:
    if not isfinite(gap):
        return UNKNOWN if isnan(gap) else "failed"
    return f"{100 * gap:+.1f}".replace("-", "−") if abs(gap) < 1 else f"{100 * gap:+,.0f}"


# The tables.

HEADS = ["", "mean", "worst", "points", "seconds", "runs"]


def coverage(found: Evidence) -> str:
    """Say how many workloads a table covers, and whether Auto is among its figures."""
    count = len(found.workloads)
    words = (
        f"These figures cover {count} of the suite's {len(WORKLOADS)} workloads, {found.held_out} of them "
        "held out."
    )
    if found.of(AUTO)[0] == UNKNOWN:
        words += " **`Auto` has not been run on them in its present form yet, so its row is empty.**"
    return words


def short_table(found: Evidence) -> list[str]:
    """Return the README's five rows."""
    first, *others = [[NAMES[name], *found.of(name)] for name in FEW]
    best = ["best tuned", *found.best_tuned()]
    covered = f"{len(found.workloads)} of {len(WORKLOADS)} workloads, {found.held_out} held out"
    above = [coverage(found), ""] if UNKNOWN in first else []
    return [*above, table([covered, *HEADS[1:]], [first, best, *others])]


def long_table(found: Evidence) -> list[str]:
    """Return every contender: ours, those that are tuned, and the others by their mean."""
    means = found.over["mean"].fillna(inf)
    ours = [name for name, each in CONTENDERS.items() if each.ours]
    tuned = [name for name, each in CONTENDERS.items() if each.tuned]
    others = sorted(set(CONTENDERS) - {*ours, *tuned}, key=lambda name: means.get(name, inf))
    lines = [[NAMES[name], *found.of(name)] for name in (*ours, *tuned, *others)]
    return [coverage(found), "", table(HEADS, lines)]


PAGES = {ROOT / "README.md": short_table, ROOT / "docs" / "comparison.md": long_table}


def renewed(page: str, lines: list[str]) -> str:
    """Return a page with its table as the records have it now."""
    before, mark, rest = page.partition(START)
    if not mark:
        raise ValueError(f"the page has no line {START}")
    _, _, after = rest.partition(END)
    return "\n".join([f"{before}{START}", *lines, f"{END}{after}"])


def pages() -> dict[Path, str]:
    """Return each page with its table as the records have it now."""
    found = Evidence()
    return {path: renewed(path.read_text("utf-8"), made(found)) for path, made in PAGES.items()}


def main() -> None:
    """Write the tables into the pages."""
    for path, content in pages().items():
        path.write_text(content, "utf-8")


if __name__ == "__main__":
    main()
