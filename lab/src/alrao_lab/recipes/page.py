"""The page of the published programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd  # type: ignore[import-untyped]

from ..render import markdown as md
from .harness import VARIANTS, Recipe

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
COMMAND = "alrao recipes --programs DIR --only {names}{variants} --seeds 5 --to-keep"


def _spread(figures: pd.Series) -> str:
    if figures.isna().any():
        return f"failed {int(figures.isna().sum())} of {len(figures)}"
    deviation = f" ± {figures.std():.3g}" if len(figures) > 1 else ""
    few = f" ({len(figures)} of {SEEDS} seeds)" if len(figures) < SEEDS else ""
    return f"{figures.mean():.4g}{deviation}{few}"


def lacking(listed: Mapping[str, Recipe], rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, str], int]:
    """Return how many seeds of each program and variant are not among the rows, where any are not."""
    own = [(row["recipe"], row["variant"], row["steps"], row["program"]) for row in rows]
    found = {
        (name, variant): SEEDS - own.count((name, variant, recipe.steps, recipe.commit))
        for name, recipe in listed.items()
        for variant in recipe.variants
    }
    return {key: count for key, count in found.items() if count > 0}


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
            (*_beside(recipe, groups["own"], groups[each]), link, TITLES[each])
            for each in VARIANTS[1:]
            if min(_whole(groups, "own"), _whole(groups, each)) > 1
        ]
    missing = lacking(listed, rows)
    left = {variant: [name for name, each in missing if each == variant] for variant in VARIANTS}
    commands = [
        (TITLES[variant], sum(missing[name, variant] for name in names),
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
        seeds=SEEDS,
    )


def _whole(groups: Mapping[str, pd.DataFrame], variant: str) -> int:
    """The number of runs, or 0 where one failed."""
    runs = groups.get(variant)
    return 0 if runs is None or runs["figure"].isna().any() else len(runs)


def _beside(recipe: Recipe, own: pd.DataFrame, auto: pd.DataFrame) -> tuple[float, list[str]]:
    """How much better Auto is in percent of the own mean, which is what rows are sorted by, and its cells."""
    means = [float(runs["figure"].mean()) for runs in (own, auto)]
    variances = [float(runs["figure"].var()) / len(runs) for runs in (own, auto)]
    better = (means[1] - means[0]) * (1 if recipe.higher else -1)
    percent, error = (100 * each / abs(means[0]) for each in (better, sum(variances) ** 0.5))
    verdict = "level" if abs(percent) <= 2 * error else "better" if percent > 0 else "**worse**"
    cost = float(auto["cpu"].mean() / own["cpu"].mean())
    seeds = f"{len(own)}, {len(auto)}"
    return percent, [f"{percent:+.1f} % ± {error:.1f}".replace("-", "−"), verdict, f"{cost:.2f}", seeds]


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
