"""Draw the README's figure, test loss against learning rate, from the suite's records: python tools/hero.py.

It writes docs/images/hero-light.svg and hero-dark.svg: AdamW, Muon and SGD at each rate of their searches,
and Auto, which is given no rate, as a line across. Words stay legible where the figure is 330 pixels wide.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from html import escape
from math import ceil, floor, isfinite, log10
from pathlib import Path
from statistics import mean, stdev

sys.path.insert(0, str(Path(__file__).parent))

from evidence import AUTO, RESULTS, ROOT, Evidence

from alrao_lab.report.figure import ALRAO, THEMES
from alrao_lab.suite.contenders import SEARCH_SEEDS
from alrao_lab.suite.workloads import WORKLOADS, Workload

IMAGES = ROOT / "docs" / "images"
PREFERRED = ("resnet", "cnn", "gpt", "lstm", "picture-1500")
"""The workload to draw: the first of these where all searches are over."""
VALLEYS = {"adamw": ("AdamW", "#3f6fe8"), "muon": ("Muon", "#1fa774"), "sgd": ("SGD", "#b8860b")}
"""The names and colours of the tuned optimizers."""
MOST = 2.0
"""Losses above this multiple of the lowest are outside the figure."""
WIDTH, HEIGHT = 480, 326
LEFT, RIGHT, TOP, BOTTOM = 54, 470, 64, 262
"""The sides of the plot."""
FONT = "font-family=\"system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif\""


def text(x: float, y: float, words: str, colour: str, size: int = 15, **attributes: str) -> str:
    """Return an element with words."""
    more = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in attributes.items())
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" font-size="{size}"{more}>{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1.0) -> str:
    """Return a line."""
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width}" stroke-linecap="round"/>'


class Hero:
    """The figure of one workload."""

    def __init__(self, found: Evidence, workload: Workload) -> None:
        self.workload, standings = workload, found.standings
        points = standings.sensitivity(tuple(VALLEYS))
        points = points[points["workload"] == workload.name]
        measured = points[points["test chosen"].map(isfinite)]
        self.valleys = {
            name: list(zip(own["rate"], own["test chosen"], strict=True))
            for name, own in measured.groupby("contender")
        }
        losses = standings.losses.loc[workload.name]
        self.auto = losses[AUTO].dropna().tolist() if AUTO in losses else []
        self.seeds = int(found.runs.loc[found.runs["workload"] == workload.name, "seed"].max()) + 1
        every = [loss for valley in self.valleys.values() for _, loss in valley] + self.auto
        rates = [rate for valley in self.valleys.values() for rate, _ in valley]
        self.least, self.most = 0.94 * min(every), MOST * min(every)
        self.first, self.last = log10(min(rates)) - 0.2, log10(max(rates)) + 0.2

    def across(self, rate: float) -> float:
        """Return where a rate is on the horizontal axis."""
        return LEFT + (RIGHT - LEFT) * (log10(rate) - self.first) / (self.last - self.first)

    def up(self, loss: float) -> float:
        """Return where a loss is on the vertical axis; far above the plot it stays just outside."""
        part = (min(loss, 2 * self.most) - self.least) / (self.most - self.least)
        return BOTTOM - (BOTTOM - TOP) * part

    def axes(self, theme: dict[str, str]) -> Iterator[str]:
        """Draw the grid and name the axes."""
        for percent in (0, 25, 50, 75):
            loss = (1 + percent / 100) * self.least / 0.94
            yield line(LEFT, self.up(loss), RIGHT, self.up(loss), theme["grid"])
            name = "best" if not percent else f"+{percent}%"
            yield text(LEFT - 6, self.up(loss) + 5, name, theme["text"], 13, text_anchor="end")
        for power in range(ceil(self.first), floor(self.last) + 1):
            x = self.across(10.0**power)
            yield line(x, BOTTOM, x, BOTTOM + 5, theme["line"])
            name = {0: "1", 1: "10"}.get(power, "10⁻" + "⁰¹²³⁴⁵⁶⁷⁸⁹"[abs(power)])
            yield text(x, BOTTOM + 21, name, theme["text"], 15, text_anchor="middle")
        yield line(LEFT, BOTTOM, RIGHT, BOTTOM, theme["line"])
        yield text(RIGHT, BOTTOM + 40, "learning rate", theme["text"], 14, text_anchor="end")

    def valley(self, name: str) -> Iterator[str]:
        """Draw the loss of an optimizer at each of its rates."""
        points, (_, colour) = self.valleys[name], VALLEYS[name]
        path = " ".join(f"{self.across(rate):.1f},{self.up(loss):.1f}" for rate, loss in points)
        look = f'fill="none" stroke="{colour}" stroke-width="3" stroke-linejoin="round"'
        yield f'<polyline points="{path}" {look}/>'
        for rate, loss in points:
            yield f'<circle cx="{self.across(rate):.1f}" cy="{self.up(loss):.1f}" r="4.5" fill="{colour}"/>'

    def legend(self, theme: dict[str, str]) -> Iterator[str]:
        """Name the optimizers above the plot."""
        x = float(LEFT)
        for name, (words, colour) in VALLEYS.items():
            if name in self.valleys:
                yield f'<circle cx="{x + 6:.1f}" cy="47" r="5.5" fill="{colour}"/>'
                yield text(x + 17, 52, words, theme["text"])
                x += 34 + 10 * len(words)
        if self.auto:
            yield line(x, 47, x + 22, 47, ALRAO, 4)
            yield text(x + 29, 52, "Auto", ALRAO, font_weight="700")

    def across_all(self) -> Iterator[str]:
        """Draw Auto as a line across, with a band of one standard deviation."""
        if not self.auto or not all(map(isfinite, self.auto)):
            return
        y = self.up(mean(self.auto))
        reach = stdev(self.auto) if len(self.auto) > 1 else 0.0
        high, low = (self.up(mean(self.auto) + side * reach) for side in (1, -1))
        size = f'width="{RIGHT - LEFT}" height="{low - high:.1f}"'
        yield f'<rect x="{LEFT}" y="{high:.1f}" {size} fill="{ALRAO}" opacity="0.18"/>'
        yield line(LEFT, y, RIGHT, y, ALRAO, 4)

    def draw(self, theme: dict[str, str]) -> str:
        """Return the figure as SVG."""
        title = "Test loss against learning rate"
        about = f"{described(self.workload)}, mean of {SEARCH_SEEDS} to {self.seeds} seeds"
        if not self.auto:
            about = f"{described(self.workload)}; Auto is not measured yet"
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="560" '
            f'role="img" {FONT}>',
            f"<title>{escape(f'{title}. {about}.')}</title>",
            f'<clipPath id="plot"><rect x="{LEFT}" y="{TOP}" width="{RIGHT - LEFT + 8}" '
            f'height="{BOTTOM - TOP + 8}"/></clipPath>',
            text(8, 24, title, theme["text"], 18, font_weight="600"),
            *self.legend(theme),
            *self.axes(theme),
            '<g clip-path="url(#plot)">',
            *(part for name in VALLEYS if name in self.valleys for part in self.valley(name)),
            *self.across_all(),
            "</g>",
            text(8, HEIGHT - 5, about, theme["text"], 14, opacity="0.8"),
            "</svg>",
            "",
        ]
        return "\n".join(parts)


def described(workload: Workload) -> str:
    """Return the network, the data and the number of steps of a workload."""
    steps = workload.mini["epochs"] * workload.mini["every"]
    return f"{workload.network}, {workload.data}, {steps:,} steps"


def workload_to_draw(found: Evidence) -> Workload:
    """Return the first of the preferred workloads that is ready."""
    ready = {each.name: each for each in found.workloads}
    return next(ready[name] for name in (*PREFERRED, *WORKLOADS) if name in ready)


def figures(results: Path = RESULTS) -> dict[Path, str]:
    """Return the figure in each theme."""
    found = Evidence(results)
    hero = Hero(found, workload_to_draw(found))
    return {IMAGES / f"hero-{name}.svg": hero.draw(theme) for name, theme in THEMES.items()}


def main() -> None:
    """Write the files."""
    for path, content in figures().items():
        path.write_text(content, "utf-8")


if __name__ == "__main__":
    main()
