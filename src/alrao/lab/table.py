"""Tables of runs: one group for each experiment, one row for each method, mean and deviation over seeds."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import mean, stdev
from typing import Any

from .errors import LabError
from .methods import METHODS
from .resolve import OF_ALRAO
from .settings import Settings
from .store import RunDirectory
from .tasks import Task, get_task

__all__ = [
    "HIGHER_IS_BETTER",
    "Finished",
    "Group",
    "Row",
    "best_of",
    "experiment",
    "group",
    "groups",
    "label",
    "spread",
    "title",
]

OF_METHOD = ("method", "lr", *OF_ALRAO)
NEEDED = ("task", "model", "method", "seed", "budget", "epochs")
RESULT = ("status", "diverged_at", "measures", "seconds", "valid", "test")
ORDER = ("sgd", "adam", "alrao", "alrao-adam", "alrao-zoom")
HIGHER_IS_BETTER = ("return", "accuracy")


@dataclass(frozen=True)
class Finished:
    """A run that has ended."""

    settings: dict[str, Any]
    result: dict[str, Any]
    about: dict[str, Any]

    @property
    def diverged(self) -> bool:
        """Whether it failed."""
        return bool(self.result["status"] != "finished")


@dataclass
class Row:
    """A method, with all its seeds."""

    label: str
    runs: list[Finished] = field(default_factory=list)
    searched: int = 1
    """Runs that it takes to find its rate."""
    search_seconds: float = 0.0
    """What these took, with one seed each."""

    @property
    def good(self) -> list[Finished]:
        """The runs that did not fail."""
        return [run for run in self.runs if not run.diverged]

    @property
    def failures(self) -> list[str]:
        """A sentence for each run that failed."""
        said = []
        for run in self.runs:
            if run.diverged:
                step = run.result["diverged_at"]
                when = f"at step {step}" if step else "(no finite validation loss)"
                said.append(f"{self.label}, seed {run.settings['seed']}: diverged {when}")
        return said

    @property
    def higher_is_better(self) -> bool:
        """Of the first measure."""
        result = self.runs[0].result
        return bool(result.get("higher_is_better", result["measures"][0] in HIGHER_IS_BETTER))

    def values(self, part: str, measure: str) -> list[float]:
        """A measure of every run that did not fail."""
        return [run.result[part][measure] for run in self.good if run.result[part][measure] is not None]

    @property
    def seconds(self) -> float:
        """Mean time of a run."""
        return mean(run.result["seconds"] for run in self.runs)


@dataclass
class Group:
    """Runs that differ in method and seed alone."""

    task: str
    model: str
    title: str
    measures: list[str]
    about: dict[str, Any]
    rows: list[Row]
    """The methods, SGD at its best rate only."""
    grid: list[Row]
    """SGD at every rate that was tried."""

    @property
    def failures(self) -> list[str]:
        """A sentence for each run that failed."""
        said = [failure for row in [*self.grid, *self.rows] for failure in row.failures]
        return list(dict.fromkeys(said))


def spread(values: Sequence[float], digits: int = 3, scale: float = 1.0) -> str:
    """Mean ± standard deviation."""
    if not values:
        return "–"
    scaled = [scale * value for value in values]
    deviation = f" ± {stdev(scaled):.{digits}f}" if len(scaled) > 1 else ""
    return f"{mean(scaled):.{digits}f}{deviation}"


def groups(directories: Iterable[RunDirectory]) -> tuple[list[Group], list[str]]:
    """The experiments among some runs, and a sentence for each run that had to be left out."""
    found: dict[tuple[Any, ...], list[Finished]] = {}
    left_out = []
    for directory in directories:
        try:
            config, result = directory.config, directory.result
            if config is None or result is None:
                left_out.append(f"{directory.path}: not finished")
                continue
            run = _finished(config, result)
            key = (*experiment(run.settings), json.dumps(run.about, sort_keys=True))
        except LabError as error:
            left_out.append(f"{directory.path}: {error}")
            continue
        found.setdefault(key, []).append(run)
    return [group(runs) for _, runs in sorted(found.items(), key=lambda item: repr(item[0]))], left_out


def _finished(config: dict[str, Any], result: dict[str, Any]) -> Finished:
    """A run as its files tell it.

    Settings that came after it have their defaults, as it had them.

    Raises:
        LabError: something is missing, or unknown here.
    """
    settings, about = config.get("settings"), config.get("data", {})
    if not isinstance(settings, dict) or not isinstance(about, dict):
        raise LabError("config.json has no settings")
    if lacking := [name for name in NEEDED if settings.get(name) is None]:
        raise LabError(f"config.json does not say the run's {', '.join(lacking)}")
    known = {name: field.default for name, field in Settings.__dataclass_fields__.items()}
    if foreign := sorted(set(settings) - set(known)):
        raise LabError(f"made by another version, whose settings have {', '.join(foreign)}")
    if lacking := [name for name in RESULT if name not in result]:
        raise LabError(f"result.json does not say the run's {', '.join(lacking)}")
    get_task(settings["task"])
    return Finished(Settings(**settings).words(), result, about)


def experiment(settings: dict[str, Any]) -> tuple[Any, ...]:
    """What the runs of a group have in common: everything but method and seed."""
    known = Settings(
        **{name: value for name, value in settings.items() if name in Settings.__dataclass_fields__}
    )
    return tuple((name, value) for name, value in known.key().items() if name not in (*OF_METHOD, "seed"))


def group(runs: Sequence[Finished]) -> Group:
    """The table of runs that differ in method and seed alone."""
    first = runs[0].settings
    rows: dict[str, Row] = {}
    for run in sorted(runs, key=lambda run: run.settings["seed"]):
        name = label(run.settings)
        rows.setdefault(name, Row(name)).runs.append(run)
    grid = sorted((row for name, row in rows.items() if name.startswith("sgd@")), key=_rate)
    shown = [row for row in rows.values() if row not in grid]
    if grid:
        shown.append(best_of(grid))
    shown.sort(key=lambda row: (_place(row.label), row.label))
    return Group(
        first["task"], first["model"], title(first), runs[0].result["measures"], runs[0].about, shown, grid
    )


def label(settings: dict[str, Any]) -> str:
    """The method, and what was chosen for it that is not the default."""
    name: str = settings["method"]
    task = _task(settings["task"])
    if name.startswith("alrao") and task is not None:
        low, high = task.interval_of(name)
        said = []
        if settings["lr"] != f"{low:g}:{high:g}":
            said.append(settings["lr"])
        if settings["copies"] != task.copies:
            said.append(f"{settings['copies']} copies")
        said += [
            f"{option} {settings[option]}"
            for option in ("averaging", "theta")
            if settings[option] != Settings.__dataclass_fields__[option].default
        ]
        usual = METHODS[name].evidence if name in METHODS else "mean"
        evidence = settings["evidence"] or usual
        said += [f"evidence {evidence}"] if evidence != usual else []
        zoom = settings.get("zoom")  # which older runs do not have
        said += [f"zoom {zoom}"] if zoom and (name != "alrao-zoom" or zoom != "default") else []
        said += [f"body {settings['body_lr']}"] if settings.get("body_lr") else []
        said += [f"unit {settings['normalise']}"] if settings.get("normalise") else []
        name += f" ({', '.join(said)})" if said else ""
    return name


def _task(name: str) -> Task | None:
    """A task, or None if this version has none of that name."""
    try:
        return get_task(name)
    except LabError:
        return None


def title(settings: dict[str, Any]) -> str:
    """What the runs of a group have in common, and is not the default."""
    said = [
        f"{settings['task']}, {settings['model']}, budget {settings['budget']}, {settings['epochs']} epochs"
    ]
    plain = (*OF_METHOD, "task", "model", "budget", "epochs", "batch", "seed")
    usual = {name: field.default for name, field in Settings.__dataclass_fields__.items()}
    task = _task(settings["task"])
    usual |= task.defaults if task is not None else {}
    said += [
        f"{name.replace('_', ' ')} {settings[name]}"
        for name, field in Settings.__dataclass_fields__.items()
        if name not in plain and field.metadata["repeats"] and settings.get(name, usual[name]) != usual[name]
    ]
    return ", ".join(said)


def _rate(row: Row) -> float:
    try:
        return float(row.label.partition("@")[2])
    except ValueError:  # no rate of ours
        return float("inf")


def _place(label: str) -> int:
    name = label.replace("(", "@").split("@")[0].strip()
    return ORDER.index(name) if name in ORDER else len(ORDER)


def best_of(grid: list[Row]) -> Row:
    """The row of a grid that fails least and then has the best validation loss, over the seeds all have."""
    common = set.intersection(*({run.settings["seed"] for run in row.runs} for row in grid))
    measure = grid[0].runs[0].result["measures"][0]

    def validation(row: Row) -> tuple[int, float]:
        runs = [run for run in row.runs if run.settings["seed"] in common or not common]
        values = [run.result["valid"][measure] for run in runs if not run.diverged]
        sign = -1 if row.higher_is_better else 1
        return len(runs) - len(values), sign * mean(values) if values else float("inf")

    best = min(grid, key=validation)
    seconds = sum(row.runs[0].result["seconds"] for row in grid)
    return Row(best.label, best.runs, searched=len(grid), search_seconds=seconds)
