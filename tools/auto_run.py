"""Train a small network with Auto and draw the run: python tools/auto_run.py.

It writes docs/images/run-light.svg and run-dark.svg, the figure of docs/how-it-works.md: the learning rate at
each step, and the test loss at the training weights and at the averaged weights.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from math import ceil, floor, log10
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))

from hero import FONT, IMAGES, line, text

import alrao
from alrao_lab.report.figure import ALRAO, SCALE, THEMES

STEPS, EVERY, BATCH = 600, 5, 8
WIDTH, HEIGHT = 480, 420
LEFT, RIGHT = 52, 462
PANELS = {"learning rate": (56, 176), "test loss": (238, 370)}
"""The top and the bottom of each panel."""
TRAINING = SCALE[1]


class Run(NamedTuple):
    """What a run has shown."""

    rates: list[float]
    over: int
    """The step at which the search ended."""
    training: list[tuple[int, float]]
    averaged: list[tuple[int, float]]
    """Test losses at the training weights and at the averaged weights, after some steps."""


def train(steps: int = STEPS) -> Run:
    """Train a perceptron on scikit-learn's digits."""
    torch.manual_seed(0)
    images, labels = load_digits(return_X_y=True)
    x, y = torch.tensor(images / 16 - 0.3, dtype=torch.float32), torch.tensor(labels)
    train_rows, test_rows = torch.randperm(len(x)).split([1400, len(x) - 1400])
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10))
    model = alrao.Alrao(net)
    optimizer = alrao.Auto(model)
    run = Run([], 0, [], [])
    for step in range(1, steps + 1):
        rows = train_rows[torch.randint(len(train_rows), (BATCH,))]
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
        run.rates.append(float(optimizer.param_groups[0]["d"]))
        if not optimizer.search.over:
            run = run._replace(over=step + 1)
        if step % EVERY == 0:
            for losses, mode in ((run.training, True), (run.averaged, False)):
                model.train(mode)
                with torch.no_grad():
                    losses.append((step, F.cross_entropy(model(x[test_rows]), y[test_rows]).item()))
            model.train()
    return run


def curve(points: Sequence[tuple[int, float]], panel: str, steps: int, ends: tuple[float, float]) -> str:
    """Return the points of a line, on a logarithmic axis."""
    top, bottom = PANELS[panel]
    low, high = map(log10, ends)
    places = []
    for step, value in points:
        across = LEFT + (RIGHT - LEFT) * step / steps
        places.append(f"{across:.1f},{bottom - (bottom - top) * (log10(value) - low) / (high - low):.1f}")
    return " ".join(places)


def axes(panel: str, ends: tuple[float, float], theme: dict[str, str]) -> Iterator[str]:
    """Draw the decades of a panel, and name it."""
    top, bottom = PANELS[panel]
    low, high = map(log10, ends)
    for power in range(ceil(low), floor(high) + 1):
        y = bottom - (bottom - top) * (power - low) / (high - low)
        yield line(LEFT, y, RIGHT, y, theme["grid"])
        name = {0: "1", -1: "0.1"}.get(power, "10⁻" + "⁰¹²³⁴⁵⁶⁷⁸⁹"[abs(power)])
        yield text(LEFT - 6, y + 5, name, theme["text"], 13, text_anchor="end")
    yield text(8, top - 10, panel, theme["text"], 15, font_weight="600")


def draw(run: Run, theme: dict[str, str]) -> str:
    """Return the figure as SVG."""
    steps = len(run.rates)
    rates = (min(run.rates) / 1.5, 2 * max(run.rates))
    every = [loss for _, loss in (*run.training, *run.averaged)]
    losses = (min(every) / 1.3, 1.3 * max(every))
    over = LEFT + (RIGHT - LEFT) * run.over / steps
    first, last = PANELS["learning rate"][0], PANELS["test loss"][1]
    found = f"{run.rates[-1]:.2g}"
    words = (
        f"The search takes {run.over} steps and finds the learning rate {found}. Then it stays, and the "
        "weights are averaged."
    )
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="640" '
        f'role="img" {FONT}>',
        f"<title>{words}</title>",
        text(8, 22, f"search: {run.over} steps", theme["text"], 14),
        text(RIGHT, 22, f"averaging, at {found}", theme["text"], 14, text_anchor="end"),
        *axes("learning rate", rates, theme),
        *axes("test loss", losses, theme),
        f'<line x1="{over:.1f}" y1="{first}" x2="{over:.1f}" y2="{last}" stroke="{theme["line"]}" '
        'stroke-dasharray="5 4"/>',
    ]
    shown = (
        ("learning rate", list(enumerate(run.rates, 1)), rates, ALRAO, 3),
        ("test loss", run.training, losses, TRAINING, 2),
        ("test loss", run.averaged, losses, ALRAO, 3),
    )
    for panel, points, ends, colour, width in shown:
        path = curve(points, panel, steps, ends)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}"/>')
    parts += [
        text(RIGHT, 228, "averaged weights", ALRAO, 14, text_anchor="end", font_weight="600"),
        text(RIGHT - 152, 228, "training weights", TRAINING, 14, text_anchor="end", font_weight="600"),
        line(LEFT, last, RIGHT, last, theme["line"]),
        *(
            text(
                LEFT + (RIGHT - LEFT) * step / steps,
                last + 18,
                f"{step}",
                theme["text"],
                13,
                text_anchor="middle",
            )
            for step in range(0, steps + 1, max(1, steps // 3))
        ),
        text(RIGHT, last + 38, "steps", theme["text"], 14, text_anchor="end"),
        text(8, HEIGHT - 4, "perceptron, scikit-learn's digits, one seed", theme["text"], 12, opacity="0.75"),
        "</svg>",
        "",
    ]
    return "\n".join(parts)


def main() -> None:
    """Train, and write the figure in each theme."""
    run = train()
    for name, theme in THEMES.items():
        (IMAGES / f"run-{name}.svg").write_text(draw(run, theme), "utf-8")


if __name__ == "__main__":
    main()
