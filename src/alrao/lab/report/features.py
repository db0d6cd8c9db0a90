"""Rate and movement of each feature: the rate that it drew, and how far it moved from its start."""

from __future__ import annotations

from typing import Any

import pandas as pd  # type: ignore[import-untyped]

from ..errors import LabError
from ..reading import Record
from ..render.cells import compare_command
from ..table import Experiment
from .captions import caption
from .figure import BASELINE, FEW, LOG, Figure, ordered, panels, plain

FEW_POINTS, MANY_LAYERS = 1500, 12
STILL, WILD = 1e-2, 1e1
"""The movement, relative to its norm, below which a feature hardly learnt and above which it ran wild."""
HEALTH = ["dead", "saturated", "nonfinite"]
COLUMNS = ["layer", "feature", "rate", "relative change"]

Layers = tuple[str, Record, list[dict[str, Any]]]
"""The layers of a run, with its label."""


def shown_layers(experiment: Experiment, left_out: list[str]) -> Layers | None:
    """Return what became of the features in the first run of Alrao that recorded it, the default first."""
    methods = experiment.methods[experiment.methods["ours"]]
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


def _counts(change: pd.Series) -> list[int]:
    """How many features hardly moved, learnt, ran wild, and are not finite."""
    still, wild, lost = change < STILL, change > WILD, change.isna()
    return [int(some.sum()) for some in (still, ~(still | wild | lost), wild, lost)]


def features_figure(experiment: Experiment, detail: int, found: Layers | None) -> Figure | None:
    """Draw rate against movement, a point for each feature, a colour for each layer, of one run."""
    if found is None:
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
    slow, learning, fast, hidden = _counts(table["relative change"])
    notes = [f"One feature in {stride} is drawn, of {len(table)}."] if stride > 1 else []
    notes += [f"{hidden} features are no longer finite and are not drawn."] if hidden else []
    notes += ["Colours: violet, the first layer, to gold, the last."] if len(layers) > MANY_LAYERS else []
    words = caption(
        "features", method=name, seed=record.settings.seed, still=STILL, wild=WILD,
        slow=slow, learning=learning, fast=fast,
    )  # fmt: skip
    title, command = "Rate and movement of each feature", compare_command(experiment, [name])
    return Figure("features", title, words, command, plot, table[COLUMNS], notes)


def health(found: Layers | None) -> tuple[list[str], list[list[Any]]]:
    """Return for each layer how many features hardly moved, learnt, ran wild; are dead or saturated."""
    if found is None:
        return [], []
    layers = found[2]
    table = _features(layers)
    known = [key for key in HEALTH if any(key in layer for layer in layers)]
    rows = []
    for layer in layers:
        change = table.loc[table["layer"] == layer["name"], "relative change"]
        rows.append([layer["name"], len(change), *_counts(change), *(layer.get(key, "") for key in known)])
    return ["layer", "features", "hardly moved", "learnt", "ran wild", "not finite", *known], rows
