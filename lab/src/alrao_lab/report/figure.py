"""The figures of the report: their parts, and the look that they share."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from math import ceil, floor, inf, isnan, log10
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import plotly.graph_objects as go  # type: ignore[import-untyped]
from plotly.colors import sample_colorscale  # type: ignore[import-untyped]

ALRAO = "#e5383b"
ADAM = "#d6409f"
BASELINE = "#8a929c"
SCALE = ["#7b3fe4", "#3f6fe8", "#1a9bc7", "#1fa774", "#7fa322", "#c99700"]
"""From the lowest rate to the highest; each is seen on white and on black."""
FEW = 3
"""The number of single seeds drawn at the detail at which figures have fewer points."""
PEERS = ["#8d6e63", "#78909c", "#b0718a", "#8a9a5b", "#9575cd", "#a1887f"]
DASHES = ["dot", "dashdot", "longdash", "longdashdot"]

THEMES: dict[str, dict[str, str]] = {
    "light": {"text": "#1f2328", "grid": "#e6e8eb", "line": "#a0a7af", "surface": "#ffffff"},
    "dark": {"text": "#e6e8eb", "grid": "#30363d", "line": "#6e7681", "surface": "#161b22"},
}


@dataclass
class Control:
    """A choice beside a figure."""

    label: str
    choices: list[tuple[str, dict[str, Any]]]
    """The name of each, and its changes to the layout; the figure starts with the first."""


@dataclass
class Plot:
    """What plotly draws, as plain dictionaries: its own classes are slow to build."""

    layout: dict[str, Any]
    wide: dict[str, Any]
    narrow: dict[str, Any]
    """Changes to the layout for a wide and for a narrow screen."""
    data: list[dict[str, Any]] = field(default_factory=list)

    def add(self, kind: str, panel: int = 0, **trace: Any) -> None:
        suffix = str(panel + 1) if panel else ""
        self.data.append({"type": kind, "xaxis": f"x{suffix}", "yaxis": f"y{suffix}", **trace})

    def scatter(self, points: Iterable[Sequence[Any]], panel: int = 0, digits: int = 5, **trace: Any) -> None:
        """Add points or a line; a third number of each point is its deviation."""
        columns = list(zip(*points, strict=True)) or [(), ()]
        x, y = list(columns[0]), [rounded(value, digits) for value in columns[1]]
        if len(columns) > 2:
            trace["error_y"] = {"array": [rounded(value) for value in columns[2]], "thickness": 1.2}
        self.add("scatter", panel, x=x, y=y, **trace)

    def axis(self, name: str, title: str, panel: int = 0, **changes: Any) -> None:
        """Name the axis ``x`` or ``y`` of a panel, and change it."""
        axis = f"{name}axis{panel + 1 if panel else ''}"
        _merge(self.layout, {axis: {"title": {"text": title}, **changes}})

    def lay(self, **changes: Any) -> None:
        """Change the layout; what a dictionary does not mention stays."""
        _merge(self.layout, changes)


def _merge(into: dict[str, Any], changes: dict[str, Any]) -> None:
    for key, value in changes.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = deepcopy(value)


WORDS: dict[str, dict[str, str]] = tomllib.loads(files(__package__).joinpath("words.toml").read_text("utf-8"))
"""The title of each figure, and what it shows and what to look for."""


@dataclass
class Figure:
    """A plot, the words around it, and its numbers."""

    name: str
    command: str
    """What made it."""
    plot: Plot
    table: pd.DataFrame
    """The numbers drawn."""
    notes: list[str] = field(default_factory=list)
    """What is not drawn, and why."""
    controls: list[Control] = field(default_factory=list)
    said: Mapping[str, object] = field(default_factory=dict)
    """What its words leave open."""
    id: str = ""

    def __post_init__(self) -> None:
        self.title = WORDS[self.name]["title"]
        self.look_for = " ".join(WORDS[self.name]["look_for"].format(**self.said).split())


def rounded(value: float | None, digits: int = 5) -> float | None:
    """Return a number with fewer digits, None where it is not one: a page has no use for more."""
    return None if value is None or isnan(value) else float(f"{value:.{digits}g}")


def thinned(points: Sequence[Any], most: int) -> Sequence[Any]:
    """Return at most ``most`` points, evenly spread, the first and the last among them."""
    last = len(points) - 1
    return points if last < most else [points[round(i * last / (most - 1))] for i in range(most)]


def plain(text: str) -> str:
    """Return text that plotly shows as it is: it reads some HTML."""
    return escape(text, quote=False)


def ordered(count: int) -> list[str]:
    """Return colours for things that have an order."""
    if count < 2:
        return [SCALE[2]] * count
    found = sample_colorscale(SCALE, [i / (count - 1) for i in range(count)], colortype="tuple")
    return ["#" + "".join(f"{round(255 * part):02x}" for part in colour) for colour in found]


def paint(methods: Any, scaled: str) -> dict[str, dict[str, Any]]:
    """Return the line of each method: Alrao stands out, the rates of one method are an ordered scale."""
    rates = methods[(methods["method"] == scaled) & methods["rate"].notna()].sort_values("rate").index
    scale = dict(zip(rates, ordered(len(rates)), strict=True))
    lines: dict[str, dict[str, Any]] = {}
    peers = 0
    for name, row in methods.iterrows():
        if name in scale and len(methods) > 1:
            lines[name] = {"color": scale[name], "width": 2}
        elif row["method"] in ("auto", "alrao") and not row["varied"]:
            lines[name] = {"color": ALRAO, "width": 4}
        elif row["ours"]:
            lines[name] = {"color": ALRAO, "width": 2.5, "dash": DASHES[len(lines) % 4]}
        elif row["method"] in ("adam", "adamw"):
            lines[name] = {"color": ADAM, "width": 2.5}
        else:
            lines[name] = {"color": PEERS[peers % len(PEERS)], "width": 2, "dash": DASHES[peers % 4]}
            peers += 1
    return lines


LOG: dict[str, Any] = {"type": "log", "exponentformat": "power", "dtick": 1}
"""An axis with a mark at every power of ten."""


def panels(count: int, *, height: int = 420, legend: bool = True) -> Plot:
    """Return an empty plot, its panels side by side on a wide screen, above one another on a narrow one."""
    layout: dict[str, Any] = {
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "margin": {"l": 58, "r": 12, "t": 34, "b": 48},  # room for the toolbar above the legend
        "font": {"family": "system-ui, sans-serif", "size": 13},
        "hovermode": "closest",
        "showlegend": legend,
        "legend": {"groupclick": "togglegroup", "itemsizing": "constant", "tracegroupgap": 0},
    }
    layout["legend"]["title"] = {"side": "top"}
    wide: dict[str, Any] = {"height": height, "legend.orientation": "v", "legend.x": 1.01, "legend.y": 1}
    wide |= {"legend.yanchor": "top", "margin.l": 62, "margin.r": 12, "font.size": 13}
    tall = (height - 70) * count + 70 + (60 if legend else 0)
    narrow: dict[str, Any] = {"height": tall, "legend.orientation": "h", "legend.x": 0}
    narrow |= {"legend.y": -60 / max(1, tall - 130), "legend.yanchor": "top"}
    narrow |= {"margin.l": 50, "margin.r": 6, "font.size": 11}
    gap, across = 0.11, (1 - 0.11 * (count - 1)) / count
    space = 56 / tall if count > 1 else 0.0
    share = (1 - space * (count - 1)) / count
    for i in range(count):
        suffix = "" if i == 0 else str(i + 1)
        axis: dict[str, Any] = {"zeroline": False, "ticks": "outside", "ticklen": 4, "showline": True}
        axis |= {"automargin": True, "title": {"standoff": 8}}
        layout[f"xaxis{suffix}"] = {**deepcopy(axis), "anchor": f"y{suffix}", "tickangle": 0}
        layout[f"yaxis{suffix}"] = {**deepcopy(axis), "anchor": f"x{suffix}", "exponentformat": "power"}
        left, top = i * (across + gap), 1 - i * (share + space)
        wide |= {f"xaxis{suffix}.domain": [left, min(1, left + across)], f"yaxis{suffix}.domain": [0, 1]}
        narrow |= {f"xaxis{suffix}.domain": [0, 1], f"yaxis{suffix}.domain": [max(0, top - share), top]}
    return Plot(layout, wide, narrow)


def marks(low: float, high: float) -> list[float]:
    """Return round numbers for a logarithmic axis of less than two decades."""
    found: list[float] = []
    for parts in ((1, 2, 5), range(1, 10), [n / 10 for n in range(10, 100)]):
        powers = range(floor(log10(low)), ceil(log10(high)) + 1)
        every = [float(f"{part * 10.0**power:.3g}") for power in powers for part in parts]
        found = [each for each in every if 0.98 * low <= each <= 1.02 * high]
        if len(found) > 2:
            break
    return found[:: ceil(len(found) / 7)] if found else [float(f"{low:.3g}"), float(f"{high:.3g}")]


def axes_controls(
    name: str, axes: Mapping[str, Iterable[float | None]], most: Mapping[str, float] | None = None
) -> list[Control]:
    """Return the choice between logarithmic and linear axes; nothing where a value is zero or less.

    At first an axis ends at ``most``, so that a few very large values do not stretch it.
    """
    log: dict[str, Any] = {}
    linear: dict[str, Any] = {}
    for axis, values in axes.items():
        numbers = [value for value in values if value is not None and not isnan(value)]
        if not numbers or min(numbers) <= 0:
            return []
        low, high = min(numbers), min(max(numbers), (most or {}).get(axis, inf))
        high = max(high, 1.001 * low)
        pad = 0.05 * log10(high / low) + 0.01
        log |= {f"{axis}.type": "log", f"{axis}.range": [log10(low) - pad, log10(high) + pad]}
        linear |= {f"{axis}.type": "linear", f"{axis}.range": [0, 1.05 * high]}
        log[f"{axis}.dtick"], linear[f"{axis}.dtick"] = 1, None
        if high <= 30 * low:  # few powers of ten, or none
            log |= {f"{axis}.tickmode": "array", f"{axis}.tickvals": marks(low, high)}
            linear |= {f"{axis}.tickmode": "auto", f"{axis}.tickvals": None}
    return [Control(name, [("log", log), ("linear", linear)])]


def light(figure: Figure) -> go.Figure:
    """Return the figure as it looks on a wide screen in the light theme."""
    colours, drawn = THEMES["light"], go.Figure(figure.plot.data, figure.plot.layout)
    for changes in (figure.plot.wide, *(control.choices[0][1] for control in figure.controls)):
        drawn.update_layout(changes)
    drawn.update_layout(font_color=colours["text"], paper_bgcolor=colours["surface"])
    lines = {"gridcolor": colours["grid"], "linecolor": colours["line"], "tickcolor": colours["line"]}
    return drawn.update_xaxes(lines).update_yaxes(lines)
