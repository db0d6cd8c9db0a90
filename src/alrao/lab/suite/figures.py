"""The suite as figures: a dot for each method on each workload, and a performance profile."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite
from typing import Any

import pandas as pd  # type: ignore[import-untyped]

from ..report.figure import ALRAO, Figure, panels
from .contenders import Contender
from .gaps import Standings
from .workloads import Workload

COLOURS = ["#3f6fe8", "#c99700", "#1fa774", "#7b3fe4", "#8d6e63", "#d6409f", "#1a9bc7", "#78909c", "#7fa322"]
FARTHEST = 0.5
"""Larger gaps are drawn at the edge."""
COMMAND = "alrao suite --no-run --markdown docs/suite.md --figures docs/images"


def dots(standings: Standings, workloads: Sequence[Workload], contenders: Sequence[Contender]) -> Figure:
    """Draw a row for each workload, with a dot for each contender at its gap to the best tuned run."""
    names = [workload.name for workload in workloads if workload.name in standings.best]
    gaps = standings.gaps.reindex(columns=names)
    plot = panels(1, height=120 + 26 * len(names))
    for contender, look in _looks(contenders):
        found = gaps.loc[contender.name].dropna().clip(upper=FARTHEST)
        plot.add(
            "scatter",
            x=[round(100 * gap, 2) for gap in found], y=list(found.index), name=contender.name,
            mode="markers",
            marker={"color": look["color"], "size": 11 if look["ours"] else 7, "symbol": look["symbol"]},
        )  # fmt: skip
    plot.axis("x", "test loss behind the best tuned run, % (0 is as good; 50 stands for more)", zeroline=True)
    plot.axis("y", "", categoryorder="array", categoryarray=list(reversed(names)))
    words = "Left of 0 is better than the best tuned run. Dots at the right edge are 50 % behind or more."
    return Figure("suite-dots", "Every method on every workload", words, COMMAND, plot, gaps.reset_index())


def profile(standings: Standings, workloads: Sequence[Workload], contenders: Sequence[Contender]) -> Figure:
    """Draw on which part of the workloads a contender is within a gap to the best tuned run.

    Contenders that have not run on all of them are left out.
    """
    names = [workload.name for workload in workloads if workload.name in standings.best]
    gaps = standings.gaps.reindex(columns=names)
    plot = panels(1)
    rows: list[dict[str, Any]] = []
    for contender, look in _looks(contenders):
        if gaps.loc[contender.name].isna().any():
            continue
        found = sorted(100 * gap for gap in gaps.loc[contender.name].dropna() if isfinite(gap))
        edge = 100 * FARTHEST
        steps = [(-edge, 0.0), *((gap, (i + 1) / len(names)) for i, gap in enumerate(found) if gap < edge)]
        steps.append((edge, steps[-1][1]))
        line = {
            "color": look["color"],
            "width": 4 if look["ours"] else 2,
            "shape": "hv",
            "dash": look["dash"],
        }
        plot.scatter(steps, name=contender.name, mode="lines", line=line)
        rows += [{"contender": contender.name, "gap": gap, "part": part} for gap, part in steps]
    plot.axis("x", "test loss behind the best tuned run, at most, %")
    plot.axis("y", "part of the workloads", range=[0, 1.02])
    words = "The higher a line, the more workloads a method solves within a gap. At 0 it ties with tuning."
    return Figure("suite-profile", "Performance profile", words, COMMAND, plot, pd.DataFrame(rows))


def _looks(contenders: Sequence[Contender]) -> list[tuple[Contender, dict[str, Any]]]:
    """The look of each contender; ours stand out and are drawn last."""
    looks = []
    for i, contender in enumerate(contenders):
        ours = contender.method.startswith("auto")
        colour = ALRAO if ours else COLOURS[i % len(COLOURS)]
        symbol = ("circle-open" if contender.method == "auto-steps" else "circle") if ours else "diamond"
        dash = "dot" if contender.method == "auto-steps" else "solid"
        looks.append((contender, {"color": colour, "ours": ours, "symbol": symbol, "dash": dash}))
    return sorted(looks, key=lambda item: item[1]["ours"])
