"""Write the suite's figures into README.md, docs/comparison.md and docs/faq.md: python tools/evidence.py.

It reads ``results/workload-*.jsonl.xz`` and needs no data set. Workloads on which a search for a rate is not
over are left out; a contender that has not run on all of the others has no figures. ``hero.py`` and
``play.py`` read the records through this module.
"""

from __future__ import annotations

from functools import cache
from math import inf, isfinite, isnan
from pathlib import Path
from textwrap import fill as filled

import pandas as pd

from alrao_lab.render.markdown import table, with_table
from alrao_lab.settings import Settings
from alrao_lab.suite.contenders import ADAMW, CONTENDERS
from alrao_lab.suite.runs import WHEN, recorded
from alrao_lab.suite.standings import Standings
from alrao_lab.suite.workloads import WORKLOADS

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "results"
SCRIPT = "tools/evidence.py"
AUTO = "auto-plain"
NAMES = {
    "auto-plain": "**`Auto`**",
    "auto": "**`Auto`, with copies**",
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
    "muon-default": "Muon, defaults",
    "nadamw-calibrated": "NadamW, calibrated defaults",
    "schedulefree-calibrated": "Schedule-Free AdamW, calibrated defaults",
}
"""What contenders are called in tables."""
FEW = (AUTO, "prodigy", "schedulefree", "adamw-0.001")
"""Those of the README, beside the best tuned one."""
UNKNOWN = "–"
WIDTH = 120
"""Of lines of text."""


# The records.


@cache
def runs(results: Path = RESULTS) -> pd.DataFrame:
    """Return the runs of all workloads, a row each, as the suite's own page reads them."""
    return recorded([results], list(WORKLOADS.values()), list(CONTENDERS.values()), Settings())


class Evidence:
    """The standings at the chosen epoch, on the workloads where all searches are over.

    As soon as Auto has run on some of these, the others are left out; and as soon as it has run on all that
    are held out, so are those that its defaults were chosen on.
    """

    def __init__(self, results: Path = RESULTS) -> None:
        self.runs = runs(results)
        self.standings = Standings(self.runs, list(CONTENDERS.values()))
        ready = [each for name, each in WORKLOADS.items() if name in self.standings.best]
        with_auto = set(self.runs.loc[self.runs["contender"] == AUTO, "workload"])
        self.workloads = [each for each in ready if each.name in with_auto] or ready
        held_out = [each for each in WORKLOADS.values() if not each.chosen_on]
        if with_auto and all(each in self.workloads for each in held_out):
            self.workloads = held_out
        self.over = self.standings.over(self.workloads)
        last = Standings(self.runs, list(CONTENDERS.values()), WHEN[1]).over(self.workloads)
        self.last = last.reindex([AUTO])[["mean", "worst"]].iloc[0]
        """Auto's mean and worst gap at the last step."""
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
        tried = sum(round(each) for each in self.over.loc[tuned, "tried"])  # as they stand in the table
        return ["0", "0", "0", f"{sum(seconds) / len(seconds):.2f}", f"{tried}"]


def _percent(gap: float) -> str:
    if not isfinite(gap):
        return UNKNOWN if isnan(gap) else "failed"
    return f"{100 * gap:+.1f}".replace("-", "−") if abs(gap) < 1 else f"{100 * gap:+,.0f}"


def fill(text: str) -> str:
    """Return a paragraph in lines."""
    return filled(text, WIDTH, break_on_hyphens=False)


# The tables.

HEADS = ["", "mean", "worst", "points", "seconds", "runs"]


def scope(found: Evidence) -> str:
    """Say on which workloads the figures are."""
    count = len(found.workloads)
    held_out = {0: "none", count: "all"}.get(found.held_out, str(found.held_out))
    return f"{count} of the suite's {len(WORKLOADS)} workloads, {held_out} of them held out"


def caution(found: Evidence) -> str:
    """Say what is wrong with the figures of Auto, if anything is."""
    if found.of(AUTO)[0] == UNKNOWN:
        return " **`Auto` has not been run on them in its present form yet, so it has no figures.**"
    mean, worst = map(_percent, found.last)
    last = " Losses are those at the best epoch on validation data; at the last step `Auto` is at a mean of "
    last += f"{mean} and a worst of {worst}."
    if found.held_out == len(found.workloads):
        return last
    which = "these workloads" if not found.held_out else "those that are not held out"
    return (
        f"{last} Its rate, its decay and the start of its average were chosen by "
        f"*test* losses of {which}, so it is too good by an unknown amount."
    )


def coverage(found: Evidence) -> str:
    """Say what the figures are of, what tuned means, and whether Auto is among them."""
    return fill(
        f"On {scope(found)}: test loss in % above the best of SGD, AdamW and Muon, each *tuned*: the rate, "
        "and AdamW's decay, by the validation loss of three seeds. *Points* of accuracy, or R², above it; "
        "*seconds* of a run, which are noisy, in units of tuned AdamW's; *runs* to find the settings."
        f"{caution(found)}"
    )


def short_table(found: Evidence) -> list[str]:
    """Return the README's five rows."""
    first, *others = [[NAMES[name], *found.of(name)] for name in FEW]
    first[0] = "<b><code>Auto</code></b>"
    rows = [first, ["best tuned", *found.best_tuned()], *others]
    return [*beside(HEADS, rows), "", coverage(found)]


def beside(heads: list[str], rows: list[list[str]]) -> list[str]:
    """Return a table that stands on the right of the text after it."""
    head = "".join(f"<th>{each}</th>" for each in heads)
    lines = [
        f"<tr><td>{name}</td>" + "".join(f'<td align="right">{each}</td>' for each in cells) + "</tr>"
        for name, *cells in rows
    ]
    return ['<table align="right">', f"<tr>{head}</tr>", *lines, "</table>"]


def long_table(found: Evidence) -> list[str]:
    """Return every contender: ours, those that are tuned, and the others by their mean."""
    means = found.over["mean"].fillna(inf)
    ours = [AUTO, *(name for name, each in CONTENDERS.items() if each.ours and name != AUTO)]
    tuned = [name for name, each in CONTENDERS.items() if each.tuned]
    others = sorted(set(CONTENDERS) - {*ours, *tuned}, key=lambda name: means.get(name, inf))
    lines = [[NAMES[name], *found.of(name)] for name in (*ours, *tuned, *others)]
    return [coverage(found), "", table(HEADS, lines)]


def sentences(found: Evidence) -> list[str]:
    """Return the FAQ's answer: mean and worst gap, and what they cost."""
    lines = [
        fill(
            f"On {scope(found)}, test losses beside those of the best of SGD, AdamW and Muon, each tuned "
            "(the rate, and AdamW's decay, by the validation loss of three seeds), are:"
        ),
        "",
    ]
    for name in (AUTO, "auto"):
        mean, worst, points, seconds, tried = found.of(name)
        said = f"{mean} % on average, {worst} % at worst; {points} points of accuracy or R²;\n  "
        said += f"{seconds} times the seconds of tuned AdamW, in {tried} run"
        lines.append(f"- {NAMES[name]}: {said if mean != UNKNOWN else 'not run yet'}")
    *_, tried = found.best_tuned()
    return [*lines, "", fill(f"To find the best of the tuned takes {tried} runs.{caution(found)}")]


PAGES = {
    ROOT / "README.md": short_table,
    ROOT / "docs" / "comparison.md": long_table,
    ROOT / "docs" / "faq.md": sentences,
}


def pages() -> dict[Path, str]:
    """Return each page with its table as the records have it now."""
    found = Evidence()
    return {
        path: with_table(path.read_text("utf-8"), SCRIPT, "\n".join(made(found)))
        for path, made in PAGES.items()
    }


def main() -> None:
    """Write the tables into the pages."""
    for path, content in pages().items():
        path.write_text(content, "utf-8")


if __name__ == "__main__":
    main()
