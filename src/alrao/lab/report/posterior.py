"""The posterior over the copies of the output layer against time, and which rate wins when."""

from __future__ import annotations

from math import log10

import pandas as pd  # type: ignore[import-untyped]

from ..reading import Record
from ..render.cells import compare_command
from ..table import Experiment
from .captions import caption
from .figure import ALRAO, FEW, Control, Figure, ordered, panels, thinned

MOST_POINTS = 160
MOST_SEEDS = 5


def trace(record: Record) -> list[tuple[int, list[float]]]:
    """Return steps, and the weight of each copy after them."""
    found = [entry for line in record.lines for entry in line["posterior"]]
    count = len(found[0][1]) if found else 0
    return [entry for entry in found if len(entry[1]) == count and count]


def copy_rates(record: Record, count: int) -> list[float]:
    """Return the rates of the copies: as recorded, else evenly spread over the interval, else numbered."""
    rates = [rate for rate in record.result.get("copy_rates") or () if rate]
    if len(rates) == count:
        return rates
    interval = record.settings.lr
    if interval is None:
        return [float(i + 1) for i in range(count)]
    low, high = interval.low, interval.high
    return [low * (high / low) ** (i / max(1, count - 1)) for i in range(count)]


def winners(record: Record) -> list[tuple[int, float]]:
    """Return steps, and the rate of the copy that has the largest weight from there on."""
    found = trace(record)
    rates = copy_rates(record, len(found[0][1])) if found else []
    changes: list[tuple[int, float]] = []
    for step, weights in found:
        best = rates[max(range(len(weights)), key=weights.__getitem__)]
        if not changes or changes[-1][1] != best:
            changes.append((step, best))
    return changes


def posterior_figure(experiment: Experiment, detail: int) -> Figure | None:
    """Draw the paper's figure of appendix C: a line for each copy, time on a logarithmic axis."""
    name = experiment.plain("alrao")
    records = [record for record in experiment.records(name or "") if trace(record)]
    if name is None or not records:
        return None
    first, found = records[0], trace(records[0])
    rates = copy_rates(first, len(found[0][1]))
    plot = panels(2)
    kept = thinned(found, MOST_POINTS if detail > FEW else MOST_POINTS // 4)
    for j, (rate, colour) in enumerate(zip(rates, ordered(len(rates)), strict=True)):
        plot.scatter(
            [(step, weights[j]) for step, weights in kept], digits=4, name=f"{rate:.2g}", mode="lines",
            line={"color": colour, "width": 2.5}, legendgroup=f"c{j}",
            hovertemplate=f"rate {rate:.2g}, step %{{x}}: %{{y:.3f}}<extra></extra>",
        )  # fmt: skip
    for record in records[:MOST_SEEDS]:
        changes = winners(record)
        plot.scatter(
            [*changes, (trace(record)[-1][0], changes[-1][1])], 1, mode="lines", showlegend=False,
            opacity=1 if record is first else 0.45,
            line={"color": ALRAO, "width": 3 if record is first else 1.5, "shape": "hv"},
            hovertemplate=f"seed {record.settings.seed}, step %{{x}}: rate %{{y:.2~g}}<extra></extra>",
        )  # fmt: skip
    low, high = log10(min(rates)), log10(max(rates))
    pad = max(0.1, 0.04 * (high - low))
    for panel in (0, 1):
        plot.axis("x", "step", panel, type="log", range=[0, log10(max(2, found[-1][0]))], dtick=1)
    plot.axis("y", "weight of each copy", range=[-0.02, 1.02])
    plot.axis("y", "rate of the heaviest copy", 1, type="log", range=[low - pad, high + pad], dtick=1)
    plot.lay(legend={"title": {"text": "rate of the copy"}})
    names, shown = [f"{rate:.4g}" for rate in rates], min(len(records), MOST_SEEDS)
    seeds = ", this seed thick, the others thin" if shown > 1 else ""
    linear = {"yaxis.type": "linear", "yaxis.range": [-0.02, 1.02]}
    return Figure(
        "posterior",
        "The weights of the copies of the head",
        caption("posterior", copies=len(rates), seed=first.settings.seed, seeds=seeds),
        compare_command(experiment, [name]),
        plot,
        pd.DataFrame([[step, *weights] for step, weights in found], columns=["step", *names]),
        [f"{len(records) - shown} more seeds are not drawn."] if len(records) > shown else [],
        [Control("weights", [("linear", linear), ("log", {"yaxis.type": "log", "yaxis.range": [-6, 0.1]})])],
    )
