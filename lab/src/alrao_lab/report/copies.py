"""What became of the copies and the features: the posterior against time, and how far each feature moved."""

from __future__ import annotations

from math import log10
from typing import Any

import pandas as pd  # type: ignore[import-untyped]

from ..errors import LabError
from ..records import Record
from ..render.cells import compare_command
from ..table import Experiment
from .figure import ALRAO, BASELINE, FEW, LOG, WORDS, Control, Figure, ordered, panels, plain, thinned

MOST_POINTS = 160
MOST_SEEDS = 5


def trace(record: Record) -> pd.DataFrame:
    """Return the weights of the copies, a row for each recorded step and a column for each copy's rate."""
    found = [entry for line in record.lines for entry in line["posterior"]]
    count = len(found[0][1]) if found else 0
    kept = [(step, weights) for step, weights in found if len(weights) == count and count]
    return pd.DataFrame([weights for _, weights in kept], [step for step, _ in kept], _rates(record, count))


def _rates(record: Record, count: int) -> list[float]:
    """The rates of the copies: as recorded, else evenly spread over the interval, else numbered."""
    rates = [rate for rate in record.result.get("copy_rates") or () if rate]
    if len(rates) == count:
        return rates
    interval = record.settings.lr
    if interval is None:
        return [float(i + 1) for i in range(count)]
    low, high = interval.low, interval.high
    return [low * (high / low) ** (i / max(1, count - 1)) for i in range(count)]


def winners(weights: pd.DataFrame) -> pd.Series:
    """Return the rate of the copy that has the largest weight, at each step from which it is another."""
    best = weights.idxmax(axis=1)
    return best[best != best.shift()]


def posterior_figure(experiment: Experiment, detail: int) -> Figure | None:
    """Draw the paper's figure of appendix C: a line for each copy, time on a logarithmic axis."""
    name = experiment.main
    found = [(record.settings.seed, trace(record)) for record in experiment.records(name or "")]
    found = [(seed, weights) for seed, weights in found if len(weights)]
    if name is None or not found:
        return None
    first, weights = found[0]
    rates, last = list(weights.columns), int(weights.index[-1])
    plot = panels(2)
    kept = thinned(range(len(weights)), MOST_POINTS if detail > FEW else MOST_POINTS // 4)
    for j, (rate, colour) in enumerate(zip(rates, ordered(len(rates)), strict=True)):
        plot.scatter(
            weights.iloc[list(kept), j].items(), digits=4, name=f"{rate:.2g}", mode="lines",
            line={"color": colour, "width": 2.5}, legendgroup=f"c{j}",
            hovertemplate=f"rate {rate:.2g}, step %{{x}}: %{{y:.3f}}<extra></extra>",
        )  # fmt: skip
    for number, (seed, own) in enumerate(found[:MOST_SEEDS]):
        changes = winners(own)
        plot.scatter(
            [*changes.items(), (int(own.index[-1]), changes.iloc[-1])], 1, mode="lines", showlegend=False,
            opacity=0.45 if number else 1,
            line={"color": ALRAO, "width": 1.5 if number else 3, "shape": "hv"},
            hovertemplate=f"seed {seed}, step %{{x}}: rate %{{y:.2~g}}<extra></extra>",
        )  # fmt: skip
    low, high = log10(min(rates)), log10(max(rates))
    pad = max(0.1, 0.04 * (high - low))
    for panel in (0, 1):
        plot.axis("x", "step", panel, type="log", range=[0, log10(max(2, last))], dtick=1)
    plot.axis("y", "weight of each copy", range=[-0.02, 1.02])
    plot.axis("y", "rate of the heaviest copy", 1, type="log", range=[low - pad, high + pad], dtick=1)
    plot.lay(legend={"title": {"text": "rate of the copy"}})
    hidden, seeds = max(0, len(found) - MOST_SEEDS), ", this seed thick, the others thin"
    linear = {"yaxis.type": "linear", "yaxis.range": [-0.02, 1.02]}
    return Figure(
        "posterior",
        compare_command(experiment, [name]),
        plot,
        weights.set_axis([f"{rate:.4g}" for rate in rates], axis=1).rename_axis("step").reset_index(),
        [f"{hidden} more seeds are not drawn."] if hidden else [],
        [Control("weights", [("linear", linear), ("log", {"yaxis.type": "log", "yaxis.range": [-6, 0.1]})])],
        said={
            "method": name,
            "copies": len(rates),
            "seed": first,
            "seeds": seeds if len(found) > 1 else "",
            "paper": WORDS["posterior"]["paper"] if name == experiment.plain("alrao") else "",
        },
    )


def path(record: Record) -> pd.Series:
    """Return the learning rate that Auto had found, by step."""
    found = [entry for line in record.lines for entry in line["rate"]]
    return pd.Series([rate for _, rate in found], [step for step, _ in found], dtype=float)


def end_of(rates: pd.Series) -> int | None:
    """Return the step from which the rate is constant; None if it never changed, or up to the last one."""
    changes = rates.index[rates != rates.shift()]
    return int(changes[-1]) if len(changes) > 1 and changes[-1] != rates.index[-1] else None


def search_figure(experiment: Experiment) -> Figure | None:
    """Draw the learning rate that Auto finds, against time, a line for each seed."""
    name = experiment.main
    found = {record.settings.seed: path(record) for record in experiment.records(name or "")}
    found = {seed: rates for seed, rates in found.items() if len(rates)}
    if name is None or not found:
        return None
    plot = panels(1, height=360, legend=False)
    ends = {seed: end_of(rates) for seed, rates in found.items()}
    for number, (seed, rates) in enumerate([*found.items()][:MOST_SEEDS]):
        plot.scatter(
            thinned([*rates.items()], MOST_POINTS), mode="lines", opacity=0.45 if number else 1,
            line={"color": ALRAO, "width": 1.5 if number else 3}, showlegend=False,
            hovertemplate=f"seed {seed}, step %{{x}}: rate %{{y:.3~g}}<extra></extra>",
        )  # fmt: skip
        if (end := ends[seed]) is not None:
            plot.scatter(
                [(end, rates[end])], mode="markers", marker={"color": ALRAO, "size": 9}, showlegend=False,
                hovertemplate=f"seed {seed}: the search ends at step %{{x}}, rate %{{y:.3~g}}<extra></extra>",
            )  # fmt: skip
    plot.axis("x", "step", **LOG)
    plot.axis("y", "learning rate", **LOG)
    first = next(iter(found))
    ended = ends[first]
    where = (
        f"With seed {first} it ended at step {ended}, at a rate of {found[first].iloc[-1]:.2g}."
        if ended is not None
        else f"With seed {first} it had not ended at step {found[first].index[-1]}."
    )
    table = pd.concat(
        [pd.DataFrame({"seed": seed, "step": rates.index, "rate": rates}) for seed, rates in found.items()]
    )
    hidden = max(0, len(found) - MOST_SEEDS)
    notes = [f"{hidden} more seeds are not drawn."] if hidden else []
    return Figure(
        "search",
        compare_command(experiment, [name]),
        plot,
        table,
        notes,
        said={"method": name, "where": where},
    )


FEW_POINTS, MANY_LAYERS = 1500, 12
STILL, WILD = 1e-2, 1e1
"""The movement, relative to its norm, below which a feature hardly learnt and above which it ran wild."""
COLUMNS = ["layer", "feature", "rate", "relative change"]


def _layers(experiment: Experiment, left_out: list[str]) -> tuple[str, Record, list[dict[str, Any]]] | None:
    """The label, the run and its layers, of the first run that drew their rates, the default first."""
    methods = experiment.methods[experiment.methods["method"].isin(["alrao", "alrao-adam"])]
    for name in methods.sort_values("varied", key=lambda varied: varied != "", kind="stable").index:
        for record in experiment.records(name):
            try:
                if layers := record.run.features():
                    return name, record, layers
            except LabError as error:
                left_out.append(f"{record.run.path}: its features are left out: {error}")
    return None


def _features(layers: list[dict[str, Any]]) -> pd.DataFrame:
    """A row per feature with a rate; its change is relative to its norm, nan where it is not finite."""
    parts = []
    for layer in layers:
        own = {key: pd.Series(layer[key], dtype=float) for key in ("rates", "start", "moved")}
        parts.append(pd.DataFrame(own).assign(layer=layer["name"]))
    found = pd.concat(parts)
    found = found[found["rates"] > 0]
    change = found["moved"] / found["start"].replace(0.0, 1.0)
    table = pd.DataFrame({"layer": found["layer"], "feature": found.index, "rate": found["rates"]})
    return table.assign(**{"relative change": change})


def features_figure(experiment: Experiment, detail: int, left_out: list[str]) -> Figure | None:
    """Draw rate against movement, a point for each feature, a colour for each layer, of one run."""
    if (found := _layers(experiment, left_out)) is None:
        return None
    name, record, layers = found
    table = _features(layers)
    plot = panels(1, height=440)
    stride = max(1, round(len(table) / (FEW_POINTS if detail > FEW else 200)))
    for layer, colour in zip(layers, ordered(len(layers)), strict=True):
        own = table[table["layer"] == layer["name"]].iloc[::stride].dropna()
        copies = record.settings.copies and len(layer["rates"]) == record.settings.copies
        plot.scatter(
            zip(own["rate"], own["relative change"].clip(lower=1e-9), strict=True), digits=3, mode="markers",
            customdata=own["feature"].tolist(), marker={"color": colour, "size": 6, "opacity": 0.75},
            name=plain(f"{layer['name']} (the copies)" if copies else layer["name"]),
            hovertemplate="feature %{customdata}: rate %{x:.2~g}, moved %{y:.2~g}",
        )  # fmt: skip
    for level in (STILL, WILD):
        plot.scatter(
            [(table["rate"].min(), level), (table["rate"].max(), level)], mode="lines", showlegend=False,
            line={"color": BASELINE, "width": 1.2, "dash": "dash"}, hoverinfo="skip",
        )  # fmt: skip
    plot.axis("x", "learning rate that the feature drew", **LOG)
    plot.axis("y", "change, relative to its start", type="log", exponentformat="power")
    plot.lay(showlegend=len(layers) <= MANY_LAYERS)
    change = table["relative change"]
    slow, fast, hidden = (int(some.sum()) for some in (change < STILL, change > WILD, change.isna()))
    notes = [f"One feature in {stride} is drawn, of {len(table)}."] if stride > 1 else []
    notes += [f"{hidden} features are no longer finite and are not drawn."] if hidden else []
    notes += ["Colours: violet, the first layer, to gold, the last."] if len(layers) > MANY_LAYERS else []
    said = {"method": name, "seed": record.settings.seed, "still": STILL, "wild": WILD}
    said |= {"slow": slow, "learning": len(table) - slow - fast - hidden, "fast": fast}
    return Figure("features", compare_command(experiment, [name]), plot, table[COLUMNS], notes, said=said)
