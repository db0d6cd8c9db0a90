"""The page of the published programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd  # type: ignore[import-untyped]

from ..render import markdown as md
from .harness import VARIANTS, Recipe

HEADS = ["program", "measure", "published", "own", "`Auto`, copies", "`Auto`, plain", "seconds", "seeds"]


def _spread(figures: pd.Series) -> str:
    if figures.isna().any():
        return f"failed {int(figures.isna().sum())} of {len(figures)}"
    deviation = f" ± {figures.std():.3g}" if len(figures) > 1 else ""
    return f"{figures.mean():.4g}{deviation}"


def markdown(listed: Mapping[str, Recipe], rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the page: a table of the figures, and what was changed in each program."""
    every = pd.DataFrame(
        rows, columns=["recipe", "variant", "seed", "steps", "figure", "cpu", "diff", "failed"]
    )
    table, changes = [], []
    for name, recipe in listed.items():
        own = every[(every["recipe"] == name) & (every["steps"] == recipe.steps)]
        groups = dict(iter(own.groupby("variant")))
        cells = [
            _spread(groups[each]["figure"].astype(float)) if each in groups else recipe.without.get(each, "–")
            for each in VARIANTS
        ]
        seconds = " / ".join(
            f"{groups[each]['cpu'].mean():.0f}" if each in groups else "–" for each in VARIANTS
        )
        published = "–" if recipe.published is None else f"{recipe.published:g}"
        better = "higher is better" if recipe.higher else "lower is better"
        seeds = str(own.groupby("variant")["seed"].nunique().min()) if len(own) else "0"
        link = f"[{name}](#{name})"
        table.append([link, f"{recipe.measure} ({better})", published, *cells, seconds, seeds])
        diffs = [(each, groups[each]["diff"].iloc[0]) for each in VARIANTS[1:] if each in groups]
        changes.append((name, recipe, [(each, diff) for each, diff in diffs if diff]))
    return md.filled(__package__, "page.md.j2", table=md.table(HEADS, table, left=2), changes=changes)
