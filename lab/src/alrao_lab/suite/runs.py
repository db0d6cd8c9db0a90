"""The runs of the suite, and a table of them: a row a run.

One workload is trained after the other: searches with three seeds, then all seeds of what is best.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import inf
from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped]

from ..errors import LabError
from ..records import SUFFIX, Record, find_runs, read
from ..resolve import resolve
from ..runset import RunSet
from ..settings import Settings
from ..store import Run
from .contenders import SEARCH_SEEDS, Candidate, Contender
from .workloads import Workload

WHEN = ("chosen", "last")
"""The epoch with the lowest validation loss, and the last step."""
COLUMNS = ["workload", "contender", "candidate", "rate", "seed", "failed", "steps", "cpu", "seconds", "curve"]
COLUMNS += [f"{what} {when}" for when in WHEN for what in ("valid", "test", "score")]
COLUMNS += ["measures", "historical", "commit"]


def require_allowed(workload: Workload, contenders: Sequence[Contender], *, final: bool) -> None:
    """Refuse to run methods of this library on a workload that is held out, unless they are ``final``."""
    if ours := [each.name for each in contenders if each.ours and not (workload.chosen_on or final)]:
        raise LabError(
            f"{workload.name} is held out, and {', '.join(ours)} may run on it once, at the end: "
            "choose other --contenders, or give --final"
        )


class Search(RunSet):
    """Every contender on a workload: first what the searches start with, then what they call for."""

    def __init__(
        self,
        workload: Workload,
        contenders: Sequence[Contender],
        common: Settings,
        *,
        seeds: int,
        roots: list[Path],
        final: bool = False,
    ) -> None:
        require_allowed(workload, contenders, final=final)
        super().__init__(workload.settings(common), roots)
        self.workload, self.contenders, self.seeds = workload, contenders, seeds
        self._own: dict[str, dict[Path, Run]] = {contender.name: {} for contender in contenders}
        self.choose()

    def choose(self) -> None:
        for contender in self.contenders:
            candidates, seeds = called_for(contender, self.frame(contender))
            for candidate in candidates:
                for seed in range(min(seeds, self.seeds)):
                    run = self.plan(contender.settings(self.settings, candidate, seed)).run
                    self._own[contender.name][run.path] = run

    def frame(self, contender: Contender) -> pd.DataFrame:
        """Return the finished runs of a contender, a row each."""
        found = read(self._own[contender.name].values()).records
        rows = [_row(self.workload, contender, record) for record in found if record.ended]
        return pd.DataFrame(rows, columns=COLUMNS)


def every(searches: Iterable[Search]) -> pd.DataFrame:
    """Return the finished runs on some workloads, a row each."""
    found = [search.frame(contender) for search in searches for contender in search.contenders]
    return pd.concat([runs for runs in found if len(runs)] or [pd.DataFrame(columns=COLUMNS)])


def recorded(
    roots: Iterable[Path], workloads: Sequence[Workload], contenders: Sequence[Contender], common: Settings
) -> pd.DataFrame:
    """Return the finished runs in some directories, a row each, without a look at the data of the workloads.

    A run belongs to a workload and to a contender if all of its settings are theirs.
    """
    listed = {each.settings(common).experiment: each for each in workloads}
    places = [place for root in roots for place in sorted(root.glob(f"workload-*{SUFFIX}")) or [root]]
    rows, known = [], set()
    for record in read(find_runs(places)).records:
        workload = listed.get(record.settings.experiment)
        if workload is None or not record.ended:
            continue
        for contender in contenders:
            if _belongs(record, workload, contender, common):
                row = _row(workload, contender, record)
                run = (workload.name, contender.name, row["candidate"], row["seed"])
                if run in known:
                    raise LabError(f"{record.run.path}: the same run is there with other data: keep one")
                known.add(run)
                rows.append(row)
    return pd.DataFrame(rows, columns=COLUMNS)


def _belongs(record: Record, workload: Workload, contender: Contender, common: Settings) -> bool:
    own = record.settings
    candidate = Candidate(own.method.name, own.method.lr, own.weight_decay)
    if not contender.tries(candidate):
        return False
    settings = contender.settings(workload.settings(common), candidate, own.seed)
    return resolve(settings)[1].key() == own.key()


def _row(workload: Workload, contender: Contender, record: Record) -> dict[str, Any]:
    """The figures of a run; its losses are infinite if it failed.

    ``score`` is the last of its measures: accuracy, or R². ``curve`` has the steps, the processor's seconds
    and the validation loss of each evaluation.
    """
    settings, result, measures = record.settings, record.result, record.measures
    spec, lines = settings.method, record.lines
    lines = [line for line in lines if line["valid"].get(measures[0]) is not None]
    row: dict[str, Any] = {
        "workload": workload.name,
        "contender": contender.name,
        "candidate": Candidate(spec.name, spec.lr, settings.weight_decay),
        "rate": spec.lr,
        "seed": settings.seed,
        "failed": record.diverged,
        "steps": result["steps"],
        "cpu": result.get("cpu", result["seconds"]),
        "seconds": result["seconds"],
        "curve": [
            (line["step"], line.get("cpu", line["seconds"]), line["valid"][measures[0]]) for line in lines
        ],
        "measures": (measures[0], measures[-1]),
        "historical": record.run.historical,
        "commit": (record.run.config or {}).get("commit"),
    }
    for when, figures in zip(WHEN, (result, lines[-1] if lines else {}), strict=True):
        parts = {part: figures.get(part) or {} for part in ("valid", "test")}
        for part, values in parts.items():
            value = values.get(measures[0])
            row[f"{part} {when}"] = inf if record.diverged or value is None else value
        row[f"score {when}"] = parts["test"].get(measures[-1])
    return row


def lacking(
    runs: pd.DataFrame, workloads: Sequence[Workload], contenders: Sequence[Contender], seeds: int
) -> dict[tuple[str, str], int]:
    """Return how many runs each contender still lacks on each workload, where any are lacking.

    Of a search that is not over, these are the runs that it calls for next; more may follow.
    """
    groups = dict(iter(runs.groupby(["workload", "contender"])))
    found = {}
    for workload in workloads:
        for contender in contenders:
            own = groups.get((workload.name, contender.name), runs.iloc[:0])
            if count := _lacking(own, contender, min(seeds, contender.seeds)):
                found[workload.name, contender.name] = count
    return found


def _lacking(runs: pd.DataFrame, contender: Contender, seeds: int) -> int:
    candidates, count = called_for(contender, runs)
    found = [Candidate(*each) for each in runs["candidate"]]
    return sum(max(0, min(count, seeds) - found.count(each)) for each in candidates)


def called_for(contender: Contender, runs: pd.DataFrame) -> tuple[list[Candidate], int]:
    """Return what a contender trains next, given its runs, and with how many seeds.

    It is what the searches at each time try next, then what is best at each on validation data.
    """
    losses = [validation(runs, when) for when in WHEN] if contender.tuned else []
    if following := [each for some in losses for each in contender.next_candidates(some)]:
        return list(dict.fromkeys(following)), SEARCH_SEEDS
    best = [min(some, key=lambda each: (some[each], each)) for some in losses] or contender.first
    return list(dict.fromkeys(best)), contender.seeds


def validation(runs: pd.DataFrame, when: str) -> dict[Candidate, float]:
    """Return the mean validation loss of each candidate over the seeds of a search, at a time."""
    few = runs[runs["seed"] < SEARCH_SEEDS]
    return dict(_means(few, f"valid {when}"))


def _means(runs: pd.DataFrame, column: str) -> Iterator[tuple[Candidate, float]]:
    for candidate, group in runs.groupby("candidate", sort=False):
        yield Candidate(*candidate), float(group[column].mean())
