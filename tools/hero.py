"""Draw the README's figure, loss against learning rate, from the records: python tools/hero.py.

It writes docs/images/hero-light.svg and hero-dark.svg: SGD and Adam at one rate each, and Alrao, which is
given no rate, as a line across.
"""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from math import isnan, log10
from pathlib import Path
from typing import Any

from alrao_lab.records import SUFFIX, read_runs
from alrao_lab.report.figure import ALRAO, SCALE, THEMES
from alrao_lab.table import Experiment, experiments, historical_note

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
FILE = "cifar10-small"
TITLE = "The loss depends on the learning rate. Alrao is given none."
WIDTH, HEIGHT, MARGIN = 800, 432, 18
LEFT, RIGHT, TOP, BOTTOM = 62, 786, 78, 352
"""The sides of the plot."""
LEAST, MOST = 0.8, 2.5
DECADES = range(-5, 2)
VALLEYS = {"sgd": ("SGD at one rate", SCALE[1], 1), "adam": ("Adam at one rate", SCALE[3], 0)}
"""The name and colour of each baseline, and the point at which its name stands."""
FONT = "font-family=\"system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif\""


def across(rate: float) -> float:
    """Return where a rate is on the horizontal axis."""
    first, last = DECADES[0] - 0.25, DECADES[-1] + 0.25
    return LEFT + (RIGHT - LEFT) * (log10(rate) - first) / (last - first)


def up(loss: float) -> float:
    """Return where a loss is on the vertical axis."""
    return BOTTOM - (BOTTOM - TOP) * (min(max(loss, LEAST), MOST) - LEAST) / (MOST - LEAST)


def text(x: float, y: float, words: str, colour: str, size: int = 14, **attributes: str) -> str:
    """Return an element with words."""
    more = "".join(f' {name.replace("_", "-")}="{value}"' for name, value in attributes.items())
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="{colour}" font-size="{size}"{more}>{escape(words)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, colour: str, width: float = 1.0) -> str:
    """Return a line."""
    ends = f'x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"'
    return f'<line {ends} stroke="{colour}" stroke-width="{width}" stroke-linecap="round"/>'


def axes(theme: dict[str, str]) -> Iterator[str]:
    """Draw the grid and name the axes."""
    for tenth in range(10, 26, 5):
        y = up(tenth / 10)
        yield line(LEFT, y, RIGHT, y, theme["grid"])
        yield text(LEFT - 10, y + 5, f"{tenth / 10:.1f}", theme["text"], 13, text_anchor="end")
    for power in DECADES:
        x = across(10.0**power)
        yield line(x, BOTTOM, x, BOTTOM + 5, theme["line"])
        name = {0: "1", 1: "10"}.get(power, "10⁻" + "⁰¹²³⁴⁵"[abs(power)])
        yield text(x, BOTTOM + 22, name, theme["text"], 14, text_anchor="middle")
    yield line(LEFT, BOTTOM, RIGHT, BOTTOM, theme["line"])
    yield text((LEFT + RIGHT) / 2, BOTTOM + 44, "learning rate", theme["text"], 13, text_anchor="middle")
    yield text(MARGIN, TOP - 14, "test loss", theme["text"], 13)


def valley(rows: Any, name: str, colour: str, named: int) -> Iterator[str]:
    """Draw the loss of a method at each of its rates."""
    points = [(across(row["rate"]), up(row["test"]), row["test ±"]) for _, row in rows.iterrows()]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y, _ in points)
    look = f'fill="none" stroke="{colour}" stroke-width="2.5" stroke-linejoin="round"'
    yield f'<polyline points="{path}" {look}/>'
    for x, y, deviation in points:
        if not isnan(deviation):
            reach = deviation * (BOTTOM - TOP) / (MOST - LEAST)
            yield line(x, y - reach, x, y + reach, colour, 1.5)
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{colour}"/>'
    x, y, _ = points[named]
    yield text(x + 12, y - 8, name, colour, 15, font_weight="600")


def alrao(row: Any) -> tuple[str, list[str]]:
    """Return the band of Alrao's deviation, and its loss as a line across."""
    loss, deviation = row["test"], row["test ±"]
    high, low = up(loss + deviation), up(loss - deviation)
    size = f'width="{RIGHT - LEFT}" height="{low - high:.1f}"'
    band = f'<rect x="{LEFT}" y="{high:.1f}" {size} fill="{ALRAO}" opacity="0.16"/>'
    name = text(LEFT + 8, low + 20, "Alrao, no rate chosen", ALRAO, 17, font_weight="700")
    return band, [line(LEFT, up(loss), RIGHT, up(loss), ALRAO, 4), name]


def draw(experiment: Experiment, theme: dict[str, str]) -> str:
    """Return the figure as SVG."""
    every, own = experiment.every, experiment.every.loc["Alrao"]
    best = experiment.grid["test"].min()
    summary = (
        f"{TITLE} CIFAR-10: SGD at the best of {len(experiment.grid)} rates reaches {best:.2f}, Alrao "
        f"{own['test']:.2f}."
    )
    about = (
        f"CIFAR-10, small CNN, {experiment.settings.epochs} epochs. Band and bars: standard deviation over "
        f"{own['seeds']} seeds; other points are one run."
    )
    band, across_all = alrao(own)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" '
        f'height="{HEIGHT}" role="img" {FONT}>',
        f"<title>{escape(summary)}</title>",
        text(MARGIN, 26, TITLE, theme["text"], 19, font_weight="600"),
        *axes(theme),
        band,
    ]
    for method, look in VALLEYS.items():
        rows = every[every["method"] == method].dropna(subset="test").sort_values("rate")
        parts += valley(rows, *look)
    parts += [*across_all, text(MARGIN, HEIGHT - 10, about, theme["text"], 12, opacity="0.7"), "</svg>", ""]
    return "\n".join(parts)


def figures() -> dict[Path, str]:
    """Return the figure in each theme."""
    [experiment] = experiments(read_runs([ROOT / "results" / f"{FILE}{SUFFIX}"]))
    assert not historical_note(experiment.ended), "the README's figure rests on runs of known code"
    return {IMAGES / f"hero-{name}.svg": draw(experiment, theme) for name, theme in THEMES.items()}


def main() -> None:
    """Write the files."""
    for path, content in figures().items():
        path.write_text(content, "utf-8")


if __name__ == "__main__":
    main()
