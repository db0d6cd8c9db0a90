"""The suite's tables and figures, for the terminal and for the documentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, inf, isfinite, isnan, nan
from types import MappingProxyType
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
from rich import box
from rich.table import Table

from ..render import markdown as md
from ..render.terminal import plain_table
from ..report.figure import ALRAO, Figure, panels
from ..table import historical_note
from .contenders import ADAMW, SEARCH_SEEDS, Candidate, Contender
from .runs import WHEN
from .standings import Standings
from .workloads import WORKLOADS, Workload

HALVES = {"held out": False, "used for choosing": True}
"""The workloads that are shown together, and whether they are those that defaults were chosen on."""
SHOWN = (ADAMW, "muon", "auto", "auto-plain")
"""The contenders whose gap on each workload stands in one table; the others' losses are further down."""


RUNS = 268
"""What all runs on a workload cost, in runs of AdamW: 180 to 200 of references and peers cost 207 to 212 such
runs on the first four workloads, and 18 of higher decays as many; ours are 20 runs, at most twice as long."""
MOST = 10.0
"""Larger gaps are shown as larger than this."""


class Suite:
    """The standings at both times."""

    def __init__(self, runs: pd.DataFrame, contenders: Sequence[Contender]) -> None:
        self.every = runs
        self.at = {when: Standings(runs, contenders, when) for when in WHEN}
        self.chosen, self.last = (self.at[when] for when in WHEN)
        runs = runs.drop_duplicates(["workload", "candidate", "seed", "cpu"])
        self.spent = float(runs["cpu"].sum())
        """Processor seconds of all runs."""
        self.times = self.last.targets().groupby(["workload", "contender"])[["step", "second"]].median()
        """When half of the runs have come to tuned AdamW's last loss."""

    def highest_decay(self, workloads: Sequence[Workload]) -> list[str]:
        """Return the names of the workloads where the highest weight decay that was tried is the best."""
        found = set()
        for at in self.at.values():
            for contender in at.contenders:
                highest = max((decay for _, decay in contender.others), default=0.0)
                own = at.chosen[at.chosen["contender"] == contender.name]
                decays = own["candidate"].map(lambda each: each[2])
                found |= set(own["workload"][decays == highest]) if highest else set()
        return [each.name for each in workloads if each.name in found]

    def noise(self, workloads: Sequence[Workload]) -> float:
        """Return the largest ratio of AdamW's processor seconds on a workload, of the 90 % to the 10 %."""
        own = self.every[(self.every["contender"] == ADAMW) & ~self.every["failed"].astype(bool)]
        own = own[own["workload"].isin([each.name for each in workloads])].groupby("workload")["cpu"]
        return float((own.quantile(0.9) / own.quantile(0.1)).max())

    def ready(self, workloads: Sequence[Workload]) -> list[Workload]:
        """Return the workloads where all searches are over, at both times."""
        return [each for each in workloads if all(each.name in at.best for at in self.at.values())]


def _percent(gap: float) -> str:
    if not isfinite(gap):
        return "missing" if isnan(gap) else "failed"
    if gap >= MOST:
        return f"> {100 * MOST:.0f}"
    return f"{100 * gap:+.1f}" if abs(gap) < 1 else f"{100 * gap:+.0f}"


def _part(value: float) -> str:
    return "never" if isnan(value) else f"{value:.2f}"


def _interval(suite: Suite, name: str, workloads: Sequence[Workload], *, fixed: bool) -> str:
    found = suite.chosen.interval(name, workloads, fixed=fixed)
    if found is not None:
        return " … ".join(map(_percent, found))
    gaps = suite.chosen.gaps.reindex(columns=[each.name for each in workloads]).loc[name]
    return "failed" if (gaps == inf).any() else "missing"


def _reached(part: float) -> str:
    return "missing" if isnan(part) else f"{100 * part:.0f}"


LOSSES = ["mean", "median", "worst", "over seeds", "over workloads", "mean, last", "worst, last"]
COSTS = ["score", "reached", "steps", "seconds", "tried", "failed", "at chance"]


def _summed(suite: Suite, workloads: Sequence[Workload]) -> tuple[list[list[str]], list[list[str]]]:
    """The losses and the costs of the contenders on some workloads together."""
    losses, costs = [], []
    last = suite.last.over(workloads)
    for name, row in suite.chosen.over(workloads).iterrows():
        intervals = [_interval(suite, name, workloads, fixed=fixed) for fixed in (True, False)]
        gaps = [_percent(row[each]) for each in ("mean", "median", "worst")]
        behind = [_percent(each) for each in (last.loc[name, "mean"], last.loc[name, "worst"])]
        losses.append([name, *gaps, *intervals, *behind])
        if isnan(row["mean"]):  # a count of the runs that are there would pass for one of all
            costs.append([name, *["missing"] * len(COSTS)])
            continue
        counts = [f"{row[count]:.0f}" for count in ("tried", "failed")]
        chance = " / ".join(f"{each:.0f}" for each in (row["at chance"], last.loc[name, "at chance"]))
        takes = map(_part, (row["steps"], row["cpu"]))
        costs.append([name, _percent(row["score"]), _reached(row["reached"]), *takes, *counts, chance])
    return losses, costs


def table(suite: Suite, workloads: Sequence[Workload], title: str) -> Table:
    """Return what the contenders achieved on some workloads together, for the terminal."""
    caption = "per cent behind the best tuned test loss"
    look: dict[str, Any] = {"title": title, "caption": caption, "box": box.SIMPLE_HEAD, "padding": 0}
    names, rows = ["contender", *LOSSES], _summed(suite, workloads)[0]
    kept = [place for place, name in enumerate(names) if name != "over seeds"]  # 80 columns
    shown = plain_table([names[i] for i in kept], [[row[i] for i in kept] for row in rows], **look)
    shown.columns[0].no_wrap = True
    return shown


def markdown(
    suite: Suite,
    workloads: Sequence[Workload],
    title: str = "The suite",
    missing: Mapping[tuple[str, str], int] = MappingProxyType({}),
) -> str:
    """Return a page: all workloads of a half together, each of them, and every figure.

    ``missing`` are the runs of a workload and a contender that are still to come.
    """
    ready = suite.ready(workloads)
    halves = {which: [each for each in ready if each.chosen_on == chosen] for which, chosen in HALVES.items()}
    totals = {which: sum(each.chosen_on == chosen for each in workloads) for which, chosen in HALVES.items()}
    listed = [
        [each.name, "no" if each.chosen_on else "yes", each.what, *_sizes(suite, each)] for each in workloads
    ]
    heads = ["workload", "held out", "what", "steps", "batch", "deviation"]
    left_out = [
        each.name for each in suite.chosen.contenders if suite.chosen.gaps.loc[each.name].isna().any()
    ]
    return md.filled(
        __package__,
        "page.md.j2",
        title=title,
        count=len(workloads),
        held_out=totals["held out"],
        resnet=f"{_steps(WORKLOADS['resnet']):,}",
        gpt=f"{_steps(WORKLOADS['gpt']):,}",
        covered=len(ready),
        search_seeds=SEARCH_SEEDS,
        tuned=", ".join(f"`{each.name}`" for each in suite.chosen.contenders if each.tuned),
        note=historical_note(suite.every),
        complete={which: len(some) for which, some in halves.items()},
        pairs=len({(each.data, each.network) for each in ready}),
        highest=suite.highest_decay(ready),
        noise=f"{100 * (suite.noise(ready) - 1):.0f}" if ready else "",
        unseen=[each.name for each in suite.chosen.contenders if each.ours and _lacks(suite, each, ready)],
        listed=md.table(heads, listed, left=3),
        waiting=[workload.name for workload in workloads if workload not in ready],
        commits=_commits(suite),
        missing=_missing(missing, workloads),
        total=sum(missing.values()),
        left_out=left_out,
        hours=ceil(sum(each.seconds for each in workloads) * RUNS / 2 / 3600),
        spent=suite.spent / 3600,
        gaps=[
            (which, len(some), totals[which], *_gaps(suite, some)) for which, some in halves.items() if some
        ],
        figures=[(each, *shown) for each in workloads if (shown := _figures(suite, each))],
    )


def _lacks(suite: Suite, contender: Contender, ready: Sequence[Workload]) -> bool:
    """Whether one of ours has not run on all workloads held out where the others have."""
    held_out = [each.name for each in ready if not each.chosen_on]
    return not held_out or bool(suite.chosen.gaps.loc[contender.name, held_out].isna().any())


def _commits(suite: Suite) -> str:
    """The commits that runs of our methods are of, which should be one, and those of the others."""
    ours = [each.name for each in suite.chosen.contenders if each.ours]
    of_ours = suite.every["contender"].isin(ours)
    found, others = (
        [str(each)[:7] for each in suite.every["commit"][which].dropna().unique()]
        for which in (of_ours, ~of_ours)
    )
    said = f"Runs of {', '.join(ours)} are of commit {', '.join(found)}." if found else ""
    if len(found) > 1:
        said = said.replace("commit", "different commits, and are no single method:", 1)
    return f"{said} Those of the others are of {', '.join(others)}.".strip() if others else said


def _missing(missing: Mapping[tuple[str, str], int], workloads: Sequence[Workload]) -> str:
    """Where contenders have not run, or not with all seeds: a row for those that lack the same."""
    places: dict[tuple[str, ...], list[str]] = {}
    for name in dict.fromkeys(contender for _, contender in missing):
        on = tuple(each.name for each in workloads if (each.name, name) in missing)
        places.setdefault(on, []).append(name)
    rows = []
    for on, names in places.items():
        where = "all workloads" if len(on) == len(workloads) else ", ".join(on)
        count = sum(missing[each, name] for each in on for name in names)
        rows.append([", ".join(names), where, f"{count:,}"])
    return md.table(["contenders", "missing on", "runs, at least"], rows, left=2) if rows else ""


def _steps(workload: Workload) -> int:
    return int(workload.mini["epochs"] * workload.mini["every"])


def _sizes(suite: Suite, workload: Workload) -> list[str]:
    known = workload.name in suite.chosen.best
    deviation = f"{100 * suite.chosen.deviation(workload.name):.1f}" if known else "not run"
    return [f"{_steps(workload):,}", str(workload.mini.get("batch", "the task's")), deviation]


def _gaps(suite: Suite, workloads: Sequence[Workload]) -> tuple[str, str, str]:
    """The contenders on all workloads together, what they cost, and some of them on each."""
    losses, costs = _summed(suite, workloads)
    names = [name for name in SHOWN if name in suite.chosen.names]
    rows = []
    for workload in workloads:
        best = suite.chosen.best[workload.name]
        cells = [
            " / ".join(_percent(suite.at[when].gaps.loc[name, workload.name]) for when in WHEN)
            for name in names
        ]
        rows.append([workload.name, f"`{best}`", *cells])
    return (
        md.table(["contender", *LOSSES], losses),
        md.table(["contender", *COSTS], costs),
        md.table(["workload", "best tuned", *(f"`{name}`" for name in names)], rows, left=2),
    )


def _figures(suite: Suite, workload: Workload) -> tuple[list[str], str] | None:
    """The measures on a workload and what every contender has of them, if any has run on it."""
    rows, measures = [], ["loss", "accuracy"]
    for contender in suite.chosen.contenders:
        cells, count, cpu, named = [], 0, nan, list[str]()
        for when in WHEN:
            runs = suite.at[when].chosen
            runs = runs[(runs["workload"] == workload.name) & (runs["contender"] == contender.name)]
            if len(runs):
                measures = list(runs["measures"].iloc[0])
                count, cpu = len(runs), runs["cpu"].mean()
                named.append(str(Candidate(*runs["candidate"].iloc[0])))
                good = runs[~runs["failed"].astype(bool)]
                cells += [_spread(good[f"test {when}"], 4), _spread(good[f"score {when}"].astype(float), 3)]
        if cells:
            best = "; last ".join(dict.fromkeys(named))
            name = f"{contender.name}: {best}" if contender.tuned else contender.name
            rows.append([name, *cells, _reached_at(suite, workload, contender), str(count), f"{cpu:.1f}"])
    if not rows:
        return None
    heads = [f"{measure}{at}" for at in ("", ", last") for measure in measures]
    return measures, md.table(["contender", *heads, "at AdamW's", "seeds", "seconds"], rows)


def _reached_at(suite: Suite, workload: Workload, contender: Contender) -> str:
    """The step and the second at which half of the runs have come to tuned AdamW's last loss."""
    if (workload.name, contender.name) not in suite.times.index:
        return "unknown"  # tuned AdamW is missing
    step, second = suite.times.loc[workload.name, contender.name]
    return f"{step:,.0f} / {second:.1f}" if isfinite(step) else "never"


def _spread(values: pd.Series, digits: int) -> str:
    if not len(values):
        return "failed"
    deviation = f" ± {values.std():.{digits}f}" if len(values) > 1 else ""
    return f"{values.mean():z.{digits}f}{deviation}"


COLOURS = ["#3f6fe8", "#c99700", "#1fa774", "#7b3fe4", "#8d6e63", "#d6409f", "#1a9bc7", "#78909c", "#7fa322"]
OURS = {"auto": ("circle", "solid"), "auto-plain": ("cross", "dash")}
"""The marks and lines of our methods, all in one colour."""
FARTHEST = 0.5
"""Larger gaps are drawn at the edge."""
SYMBOLS = ("diamond", "square", "triangle-up")
DASHES = ("solid", "dot", "dashdot")
"""The marks and lines of the others: the next one where colours begin again."""
VALLEYS = {"adamw": "#3f6fe8", "muon": "#1fa774"}
"""The references whose loss is drawn against the rate, and their colours."""
COMMAND = "alrao suite --no-run --markdown docs/suite.md --figures docs/images"


def figures(suite: Suite, workloads: Sequence[Workload]) -> list[Figure]:
    """Return a dot plot, the performance profile, and the valleys."""
    ready = suite.ready(workloads)
    return [dots(suite.chosen, ready), profile(suite.chosen, ready), sensitivity(suite.chosen, ready)]


def dots(standings: Standings, workloads: Sequence[Workload]) -> Figure:
    """Draw a row for each workload, with a dot for each contender at its gap to the best tuned run."""
    held_out = {each.name: f"{each.name} (held out)" for each in workloads if not each.chosen_on}
    names = [*held_out.values(), *(each.name for each in workloads if each.chosen_on)]
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
    return Figure("suite-dots", COMMAND, plot, gaps.reset_index())


def profile(standings: Standings, workloads: Sequence[Workload]) -> Figure:
    """Draw on which part of the workloads a contender is within a gap to the best tuned run.

    Contenders that have not run on all of them are left out.
    """
    names = [workload.name for workload in workloads]
    gaps = standings.gaps.reindex(columns=names)
    plot = panels(1, height=max(420, 100 + 20 * len(standings.contenders)))
    rows: list[dict[str, Any]] = []
    edge = 100 * FARTHEST
    for contender, look in _looks(standings.contenders):
        if gaps.loc[contender.name].isna().any():
            continue
        found = sorted(100 * gap for gap in gaps.loc[contender.name].dropna() if isfinite(gap))
        steps = [(-edge, 0.0), *((gap, (i + 1) / len(names)) for i, gap in enumerate(found) if gap < edge)]
        steps.append((edge, steps[-1][1]))
        width = 4 if look["ours"] else 2
        line = {"color": look["color"], "width": width, "shape": "hv", "dash": look["dash"]}
        plot.scatter(steps, name=contender.name, mode="lines", line=line, legendrank=look["rank"])
        rows += [{"contender": contender.name, "gap": gap, "part": part} for gap, part in steps]
    plot.axis("x", "test loss behind the best tuned run, at most, %", range=[-edge / 2, edge])
    plot.axis("y", "part of the workloads", range=[0, 1.02])
    return Figure("suite-profile", COMMAND, plot, pd.DataFrame(rows))


def sensitivity(standings: Standings, workloads: Sequence[Workload], most: int = 4) -> Figure:
    """Draw the loss of the references at each rate, and those of ours, which are given none, as lines.

    The workloads are the last of the list.
    """
    names = [workload.name for workload in workloads][-most:]
    rates = standings.sensitivity(tuple(VALLEYS))
    rates = rates[rates["workload"].isin(names)]
    plot = panels(max(1, len(names)))
    means = standings.losses.groupby("workload").mean()
    for panel, name in enumerate(names):
        own = rates[(rates["workload"] == name) & rates[f"test {standings.when}"].map(isfinite)]
        for contender, colour in VALLEYS.items():
            points = own[own["contender"] == contender][["rate", f"test {standings.when}"]]
            plot.scatter(
                points.itertuples(index=False), panel, name=contender, mode="lines+markers",
                line={"color": colour}, legendgroup=contender, showlegend=not panel,
            )  # fmt: skip
        for contender, (_, dash) in OURS.items():
            if contender in means and len(own) and isfinite(loss := means.loc[name, contender]):
                ends = [(own["rate"].min(), loss), (own["rate"].max(), loss)]
                line = {"color": ALRAO, "width": 3, "dash": dash}
                plot.scatter(
                    ends, panel, name=contender, mode="lines", line=line,
                    legendgroup=contender, showlegend=not panel,
                )  # fmt: skip
        plot.axis("x", f"rate, {name}", panel, type="log", dtick=2, exponentformat="power")
        plot.axis("y", "test loss" if not panel else "", panel)
    return Figure("suite-sensitivity", COMMAND, plot, rates)


def _looks(contenders: Sequence[Contender]) -> list[tuple[Contender, dict[str, Any]]]:
    """The look of each contender; ours stand out, are drawn last, and come first in the legend."""
    looks = []
    for i, contender in enumerate(contenders):
        ours = contender.name in OURS
        colour = ALRAO if ours else COLOURS[i % len(COLOURS)]
        again = i // len(COLOURS) % len(SYMBOLS)
        symbol, dash = OURS[contender.name] if ours else (SYMBOLS[again], DASHES[again])
        rank = i if ours else len(contenders) + i
        look = {"color": colour, "ours": ours, "symbol": symbol, "dash": dash, "rank": rank}
        looks.append((contender, look))
    return sorted(looks, key=lambda item: item[1]["ours"])
