"""Where the useful features live: the rate each one drew, and how far it moved from its start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..errors import LabError
from ..reading import Record, number
from ..render.cells import is_alrao
from ..render.commands import compare_command
from ..table import Experiment
from .captions import caption
from .figure import BASELINE, FEW, Figure, ordered, panels, plain, rounded

__all__ = ["Layer", "features_figure", "health", "shown_layers"]

FEW_POINTS, MANY_LAYERS = 1500, 12
STILL, WILD = 1e-2, 1e1
"""Of its norm, what a feature must have moved to have learnt, and at most to not have run wild."""
HEALTH = ("dead", "saturated", "nonfinite")


@dataclass
class Layer:
    """A layer's features: rate, and movement relative to the norm at the start (None: not finite)."""

    name: str
    rates: list[float]
    moved: list[float | None]
    health: dict[str, float]
    """How many features are dead, saturated or not finite, where that was recorded."""

    def counts(self) -> list[int]:
        """How many hardly moved, learnt, went wild, are not finite."""
        found = [move for move in self.moved if move is not None]
        slow, wild = sum(move < STILL for move in found), sum(move > WILD for move in found)
        return [slow, len(found) - slow - wild, wild, len(self.moved) - len(found)]


Layers = tuple[str, Record, list[Layer]]
"""The layers of a run, with its label."""


def shown_layers(experiment: Experiment, left_out: list[str]) -> Layers | None:
    """Return what became of the features in the first run of Alrao that recorded it, the default first."""
    methods = experiment.methods[[is_alrao(row) for _, row in experiment.methods.iterrows()]]
    for name in methods.sort_values("varied", key=lambda varied: varied != "", kind="stable").index:
        for record in experiment.records(name):
            try:
                found = record.run.features()
                if not isinstance(found, list):
                    raise LabError("features.json has no layers")
            except LabError as error:
                left_out.append(f"{record.run.path}: its features are left out: {error}")
                continue
            layers = [layer for entry in found if (layer := _layer(entry)) is not None]
            if layers:
                return name, record, layers
    return None


def _layer(entry: Any) -> Layer | None:
    if not isinstance(entry, dict):
        return None
    columns = [entry.get(key) for key in ("rates", "start", "moved")]
    if not all(isinstance(column, list) for column in columns):
        return None
    rates: list[float] = []
    moved: list[float | None] = []
    for rate, start, move in zip(*columns, strict=False):
        at, norm, way = number(rate), number(start), number(move)
        if at is not None and at > 0:
            rates.append(at)
            moved.append(None if way is None or norm is None else way / norm if norm else way)
    known = {key: value for key in HEALTH if (value := number(entry.get(key))) is not None}
    return Layer(str(entry.get("name", "?")), rates, moved, known)


def features_figure(experiment: Experiment, detail: int, found: Layers | None) -> Figure | None:
    """Rate against movement, a point for each feature, a colour for each layer, of one run."""
    return None if found is None else _figure(experiment, *found, FEW_POINTS if detail > FEW else 200)


def _figure(experiment: Experiment, name: str, record: Record, layers: list[Layer], most: int) -> Figure:
    plot, wide, narrow = panels(1, height=440)
    total = sum(len(layer.rates) for layer in layers)
    floor = 1e-9
    stride = max(1, round(total / most))
    hidden = 0
    for layer, colour in zip(layers, ordered(len(layers)), strict=True):
        points = [(i, layer.rates[i], layer.moved[i]) for i in range(0, len(layer.rates), stride)]
        points = [point for point in points if point[2] is not None]
        plot.add(
            "scatter",
            x=[rounded(rate, 3) for _, rate, _ in points],
            y=[rounded(max(floor, move), 3) for _, _, move in points if move is not None],
            customdata=[i for i, _, _ in points], mode="markers", name=plain(_name(layer, record)),
            marker={"color": colour, "size": 6, "opacity": 0.75},
            hovertemplate="feature %{customdata}: rate %{x:.2~g}, moved %{y:.2~g}",
        )  # fmt: skip
        hidden += len(layer.moved) - len([move for move in layer.moved if move is not None])
    reach = [rate for layer in layers for rate in layer.rates] or [1e-5, 10.0]
    for level in (STILL, WILD):
        plot.add(
            "scatter",
            x=[min(reach), max(reach)], y=[level, level], mode="lines", showlegend=False,
            line={"color": BASELINE, "width": 1.2, "dash": "dash"}, hoverinfo="skip",
        )  # fmt: skip
    decades = {"type": "log", "exponentformat": "power", "dtick": 1}
    plot.lay(
        xaxis={**decades, "title": {"text": "learning rate that the feature drew"}},
        yaxis={"type": "log", "exponentformat": "power", "title": {"text": "change, relative to its start"}},
        showlegend=len(layers) <= MANY_LAYERS,
    )  # fmt: skip
    notes = []
    if stride > 1:
        notes.append(f"One feature in {stride} is drawn, of {total}.")
    if hidden:
        notes.append(f"{hidden} features are no longer finite and are not drawn.")
    if len(layers) > MANY_LAYERS:
        notes.append("The colour goes from violet, the first layer, to gold, the last.")
    rows = [
        [layer.name, i, rate, move]
        for layer in layers
        for i, (rate, move) in enumerate(zip(layer.rates, layer.moved, strict=True))
    ]
    slow, learning, wild, _ = (
        sum(column) for column in zip(*(layer.counts() for layer in layers), strict=True)
    )
    words = caption(
        "features", method=name, seed=record.settings.seed, still=STILL, wild=WILD, slow=slow,
        learning=learning, fast=wild,
    )  # fmt: skip
    return Figure(
        "features",
        "Where the useful features live",
        words,
        compare_command(experiment, [name]),
        plot,
        ["layer", "feature", "rate", "relative change"],
        rows,
        notes,
        wide=wide,
        narrow=narrow,
    )  # fmt: skip


def _name(layer: Layer, record: Record) -> str:
    copies = record.settings.copies
    return f"{layer.name} (the copies)" if copies and len(layer.rates) == copies else layer.name


def health(found: Layers | None) -> tuple[list[str], list[list[Any]]]:
    """For each layer, how many features moved how; how many are dead or saturated, where recorded."""
    if found is None:
        return [], []
    layers = found[2]
    known = [key for key in HEALTH if any(key in layer.health for layer in layers)]
    heads = ["layer", "features", "hardly moved", "learnt", "ran wild", "not finite", *known]
    rows = [
        [layer.name, len(layer.rates), *layer.counts(), *(layer.health.get(k, "") for k in known)]
        for layer in layers
    ]
    return heads, rows
