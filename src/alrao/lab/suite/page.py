"""The suite's tables and figures, for the terminal and for the documentation."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite, isnan, nan
from statistics import mean, stdev
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
from rich import box
from rich.table import Table

from ..render import markdown as md
from ..render.terminal import plain_table
from ..report.figure import ALRAO, Figure, panels
from ..settings import spelled
from ..table import historical_note, spread, summary
from .contenders import Contender
from .runs import Standings
from .workloads import Workload


def _percent(gap: float) -> str:
    if not isfinite(gap):
        return "–" if isnan(gap) else "failed"
    return f"{100 * gap:+.1f}" if abs(gap) < 1 else f"{100 * gap:+.0f}"


SUMMED = ["worst", "mean", "95 % interval", "failed", "at chance", "runs"]


def _summed(standings: Standings, workloads: Sequence[Workload]) -> list[list[str]]:
    rows = []
    for name, row in standings.over(workloads).iterrows():
        interval = " … ".join(map(_percent, standings.interval(name, workloads) or (nan,)))
        counts = [f"{row[count]:.0f}" for count in ("failed", "at chance", "runs")]
        rows.append([name, _percent(row["worst"]), _percent(row["mean"]), interval, *counts])
    return rows


def table(standings: Standings, workloads: Sequence[Workload], title: str) -> Table:
    """Return what the contenders achieved on some workloads together, for the terminal."""
    caption = "per cent behind the best tuned test loss; runs: to find the rate"
    rows = _summed(standings, workloads)
    look: dict[str, Any] = {"title": title, "caption": caption, "box": box.SIMPLE_HEAD, "padding": 0}
    shown = plain_table(["contender", *SUMMED], rows, **look)
    shown.columns[0].no_wrap = True
    return shown


PAIR = ("auto", "sgd")
"""The contenders that are compared seed by seed."""
HALVES = {"held out": False, "used for choosing": True}
"""The workloads that are shown together, and whether they are those that defaults were chosen on."""


def markdown(standings: Standings, workloads: Sequence[Workload], title: str = "The suite") -> str:
    """Return a page: gaps on the workloads that are held out, on the others, and losses."""
    ready = [workload for workload in workloads if workload.name in standings.best]
    halves = {which: [each for each in ready if each.chosen_on == chosen] for which, chosen in HALVES.items()}
    return md.filled(
        __package__,
        "page.md.j2",
        title=title,
        tuned=", ".join(f"`{contender.name}`" for contender in standings.contenders if contender.tuned),
        note=historical_note(standings.every),
        waiting=[workload.name for workload in workloads if workload not in ready],
        gaps=[(which, *_gaps(standings, some)) for which, some in halves.items() if some],
        pair=PAIR,
        paired=_paired(standings, ready),
        losses=[shown for workload in workloads if (shown := _losses(standings, workload))],
    )


def _gaps(standings: Standings, workloads: Sequence[Workload]) -> tuple[str, str]:
    """The contenders on all workloads together, and on each."""
    names = [contender.name for contender in standings.contenders]
    gaps = standings.gaps.reindex(index=names, columns=[workload.name for workload in workloads])
    each = [[name, *map(_percent, gaps[name])] for name in gaps]
    together = md.table(["contender", *SUMMED], _summed(standings, workloads))
    return together, md.table(["workload", *names], each)


def _paired(standings: Standings, workloads: Sequence[Workload]) -> str:
    """The differences of the pair; nothing where one of them was not run."""
    if not {contender.name for contender in standings.contenders} >= set(PAIR):
        return ""
    rows = []
    for workload in workloads:
        found = standings.differences(workload.name, *PAIR)
        if found:
            deviation = f" ± {100 * stdev(found):.1f}" if len(found) > 1 and isfinite(sum(found)) else ""
            chosen, below = "yes" if workload.chosen_on else "no", sum(gap < 0 for gap in found)
            gap = _percent(mean(found)) + deviation
            rows.append([workload.name, chosen, gap, str(len(found)), str(below)])
    return md.table(["workload", "used for choosing", "difference", "seeds", "below"], rows, left=2)


def _losses(standings: Standings, workload: Workload) -> tuple[Workload, str, str] | None:
    """The losses of the contenders on a workload after its steps, if any has run on it."""
    runs = standings.chosen[standings.chosen["workload"] == workload.name]
    if runs.empty:
        return None
    rows, groups = [], dict(iter(runs.groupby("contender")))
    for contender in standings.contenders:
        if contender.name in groups:
            row = summary(groups[contender.name]).iloc[0]
            name = f"{contender.name} at {spelled(row['rate'])}" if contender.tuned else contender.name
            losses = [spread(row, part, 4) for part in ("valid", "test")]
            rows.append([name, *losses, str(row["seeds"]), f"{row['seconds']:.1f}"])
    record = runs["record"].iloc[0]
    measures = [f"{part} {record.measures[0]}" for part in ("validation", "test")]
    shown = md.table(["contender", *measures, "seeds", "seconds per run"], rows)
    return workload, f"{record.result['steps']:,}", shown


COLOURS = ["#3f6fe8", "#c99700", "#1fa774", "#7b3fe4", "#8d6e63", "#d6409f", "#1a9bc7", "#78909c", "#7fa322"]
OURS = {"auto": ("circle", "solid"), "auto-steps": ("circle-open", "dot"), "auto-plain": ("cross", "dash")}
"""The marks and lines of our methods, all in one colour."""
FARTHEST = 0.5
"""Larger gaps are drawn at the edge."""
SYMBOLS = ("diamond", "square", "triangle-up")
"""The marks of the others: the next one where colours begin again."""
COMMAND = "alrao suite --no-run --markdown docs/suite.md --figures docs/images"


def figures(standings: Standings, workloads: Sequence[Workload]) -> list[Figure]:
    """Return the dot plots of the workloads held out and of all, and the performance profile."""
    held_out = [workload for workload in workloads if not workload.chosen_on]
    some = [dots(standings, held_out, "suite-held-out")] if held_out else []
    return [*some, dots(standings, workloads), profile(standings, workloads)]


def dots(standings: Standings, workloads: Sequence[Workload], name: str = "suite-dots") -> Figure:
    """Draw a row for each workload, with a dot for each contender at its gap to the best tuned run."""
    ready = [workload for workload in workloads if workload.name in standings.best]
    held_out = {each.name: f"{each.name} (held out)" for each in ready if not each.chosen_on}
    names = [*held_out.values(), *(each.name for each in ready if each.chosen_on)]
    gaps = standings.gaps.rename(columns=held_out).reindex(columns=names)
    plot = panels(1, height=max(120 + 26 * len(names), 100 + 20 * len(standings.contenders)))
    for contender, look in _looks(standings.contenders):
        found = gaps.loc[contender.name].dropna().clip(upper=FARTHEST)
        plot.add(
            "scatter",
            x=[round(100 * gap, 2) for gap in found], y=list(found.index), name=contender.name,
            mode="markers", legendrank=look["rank"],
            marker={"color": look["color"], "size": 11 if look["ours"] else 7, "symbol": look["symbol"]},
        )  # fmt: skip
    plot.axis("x", "test loss behind the best tuned run, % (0 is as good; 50 stands for more)", zeroline=True)
    plot.axis("y", "", categoryorder="array", categoryarray=list(reversed(names)))
    return Figure(name, COMMAND, plot, gaps.reset_index())


def profile(standings: Standings, workloads: Sequence[Workload]) -> Figure:
    """Draw on which part of the workloads a contender is within a gap to the best tuned run.

    Contenders that have not run on all of them are left out.
    """
    names = [workload.name for workload in workloads if workload.name in standings.best]
    gaps = standings.gaps.reindex(columns=names)
    plot = panels(1, height=max(420, 100 + 20 * len(standings.contenders)))
    rows: list[dict[str, Any]] = []
    for contender, look in _looks(standings.contenders):
        if gaps.loc[contender.name].isna().any():
            continue
        found = sorted(100 * gap for gap in gaps.loc[contender.name].dropna() if isfinite(gap))
        edge = 100 * FARTHEST
        steps = [(-edge, 0.0), *((gap, (i + 1) / len(names)) for i, gap in enumerate(found) if gap < edge)]
        steps.append((edge, steps[-1][1]))
        width = 4 if look["ours"] else 2
        line = {"color": look["color"], "width": width, "shape": "hv", "dash": look["dash"]}
        plot.scatter(steps, name=contender.name, mode="lines", line=line, legendrank=look["rank"])
        rows += [{"contender": contender.name, "gap": gap, "part": part} for gap, part in steps]
    plot.axis("x", "test loss behind the best tuned run, at most, %")
    plot.axis("y", "part of the workloads", range=[0, 1.02])
    return Figure("suite-profile", COMMAND, plot, pd.DataFrame(rows))


def _looks(contenders: Sequence[Contender]) -> list[tuple[Contender, dict[str, Any]]]:
    """The look of each contender; ours stand out, are drawn last, and come first in the legend."""
    looks = []
    for i, contender in enumerate(contenders):
        ours = contender.method in OURS
        colour = ALRAO if ours else COLOURS[i % len(COLOURS)]
        symbol, dash = OURS[contender.method] if ours else (SYMBOLS[i // len(COLOURS) % 3], "solid")
        rank = i if ours else len(contenders) + i
        look = {"color": colour, "ours": ours, "symbol": symbol, "dash": dash, "rank": rank}
        looks.append((contender, look))
    return sorted(looks, key=lambda item: item[1]["ours"])
