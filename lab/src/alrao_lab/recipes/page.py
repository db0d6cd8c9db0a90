"""The page of the published programs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
from scipy.stats import ttest_ind  # type: ignore[import-untyped]

from ..render import markdown as md
from .harness import VARIANTS, Recipe, missing

HEADS = ["program", "measure", "published", "own", "`Auto`, copies", "`Auto`, plain", "seconds"]
BESIDE = ["program", "variant", "better by", "verdict", "processor time", "seeds"]
TITLES = {"own": "as its authors give it", "auto": "`Auto`, copies", "plain": "`Auto`, plain"}
COLUMNS = [
    "recipe",
    "variant",
    "seed",
    "steps",
    "program",
    "figure",
    "seconds",
    "cpu",
    "diff",
    "failed",
    "commit",
]
SEEDS = 5
"""Runs of each variant that the page asks for."""
LOAD = 2.0
"""Processor times are not compared where one variant had to wait so much longer for the processor."""
COMMAND = "alrao recipes --programs DIR --only {names}{variants} --seeds 5 --to-keep"


def _spread(figures: pd.Series) -> str:
    if figures.isna().any():
        return f"failed {int(figures.isna().sum())} of {len(figures)}"
    deviation = f" ± {figures.std():.3g}" if len(figures) > 1 else ""
    few = f" ({len(figures)} of {SEEDS} seeds)" if len(figures) < SEEDS else ""
    return f"{figures.mean():.4g}{deviation}{few}"


def markdown(listed: Mapping[str, Recipe], rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the page: a table of the figures, and what was changed in each program."""
    every = pd.DataFrame(rows, columns=COLUMNS)
    table, programs, beside = [], [], []
    for name, recipe in listed.items():
        here = (every["recipe"] == name) & (every["steps"] == recipe.steps)
        groups = dict(iter(every[here & (every["program"] == recipe.commit)].groupby("variant")))
        cells = [
            _spread(groups[each]["figure"].astype(float))
            if each in groups
            else f"none: {recipe.without[each]}"
            if each in recipe.without
            else "not run"
            for each in VARIANTS
        ]
        listed_here = [each for each in VARIANTS if each not in recipe.without]
        times = [f"{groups[each]['cpu'].mean():.0f}" if each in groups else "–" for each in listed_here]
        seconds = " / ".join(times) if groups else ""
        published = "none" if recipe.published is None else f"{recipe.published:g}"
        better = "higher is better" if recipe.higher else "lower is better"
        link = f"[{name}](#{name})"
        table.append([link, f"{recipe.measure} ({better})", published, *cells, seconds or "not run"])
        diffs = [groups[each]["diff"].iloc[0] for each in VARIANTS[1:] if each in groups]
        programs.append((name, recipe, _runs(groups), every_run(recipe), [diff for diff in diffs if diff]))
        beside += [
            (*compared, link, TITLES[each])
            for each in VARIANTS[1:]
            for compared in _beside(recipe, groups, each)
        ]
    runs = missing(listed.values(), SEEDS, rows, short=False)
    absent = Counter((recipe.name, variant) for recipe, variant, _ in runs)
    left = {variant: [name for name, each in absent if each == variant] for variant in VARIANTS}
    commands = [
        (TITLES[variant], sum(absent[name, variant] for name in names),
         COMMAND.format(names=",".join(names), variants=f" --variants {variant}"))
        for variant, names in left.items() if names
    ]  # fmt: skip
    return md.filled(
        __package__,
        "page.md.j2",
        table=md.table(HEADS, table, left=2),
        programs=programs,
        beside=md.table(BESIDE, [[link, title, *cells] for _, cells, link, title in sorted(beside)], left=2)
        if beside
        else "",
        commands=commands,
        compared=len(beside),
        waiting=list(dict.fromkeys(name for name, _ in absent)),
        count=len(listed),
        commits=_commits(every),
        seeds=SEEDS,
    )


def _beside(
    recipe: Recipe, groups: Mapping[str, pd.DataFrame], variant: str
) -> list[tuple[float, list[str]]]:
    """How much better a variant is in percent of the own mean, and the cells that say so.

    Empty where one of the two has fewer than two runs, or a run that failed.
    """
    both = [groups[each] for each in ("own", variant) if each in groups]
    if len(both) < 2 or any(len(runs) < 2 or runs["figure"].isna().any() for runs in both):
        return []
    own, auto = (runs["figure"].astype(float) for runs in both)
    rest = [_cost(*both), f"{len(own)}, {len(auto)}"]
    scale = 100 * (1 if recipe.higher else -1) / abs(float(own.mean()))
    percent = scale * float(auto.mean() - own.mean())
    interval = 0.0
    if own.nunique() + auto.nunique() > 2:  # else there is no deviation to tell it from
        low, high = ttest_ind(auto, own, equal_var=False).confidence_interval(0.95)
        interval = abs(scale) * float(high - low) / 2
    undecided = "undecided" if interval else "equal"
    verdict = undecided if abs(percent) <= interval else "better" if percent > 0 else "**worse**"
    said = f"{round(percent, 1) + 0.0:+.1f} % ± {interval:.1f}".replace("-", "−")
    return [(percent, [said, verdict, *rest])]


def _cost(own: pd.DataFrame, auto: pd.DataFrame) -> str:
    """The ratio of processor times, where runs of both had about the same share of the processor."""
    waits = [float((runs["seconds"] / runs["cpu"]).median()) for runs in (own, auto)]
    if max(waits) > LOAD * min(waits):
        return "other load"
    return f"{auto['cpu'].mean() / own['cpu'].mean():.2f}"


def _commits(every: pd.DataFrame) -> str:
    """The commits that runs of Auto are of."""
    found = every["commit"][every["variant"] != "own"].dropna()
    return ", ".join(dict.fromkeys(str(each)[:7] for each in found))


def every_run(recipe: Recipe) -> str:
    """Return what is changed in every run, also in the one that is called the authors' own."""
    lines = []
    for name, old, new in recipe.edits.get("all", ()):
        old_lines, new_lines = old.splitlines(), new.replace("{{", "{").replace("}}", "}").splitlines()
        kept = [line for line in old_lines if line in new_lines]
        lines += [f"--- {name}"]
        lines += [f"-{line}" for line in old_lines if line not in kept]
        lines += [f"+{line}" for line in new_lines if line not in kept]
    return "\n".join(lines)


def _runs(groups: Mapping[str, pd.DataFrame]) -> str:
    """Every figure of a program, with its times and commits."""
    rows = []
    for variant in (each for each in VARIANTS if each in groups):
        own = groups[variant].sort_values("seed")
        figures = ", ".join("failed" if pd.isna(each) else f"{each:.4g}" for each in own["figure"])
        commits = ", ".join(dict.fromkeys(str(each)[:7] for each in own["commit"]))
        times = [f"{own[which].mean():.0f}" for which in ("cpu", "seconds")]
        rows.append([TITLES[variant], figures, *times, commits])
    heads = ["variant", "figure of each seed", "processor seconds", "wall-clock seconds", "commit"]
    return md.table(heads, rows, left=2) if rows else "Not run."
