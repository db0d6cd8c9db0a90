"""Figures about the choice of rates: the valley, the triangle, the fraction of trained features."""

from __future__ import annotations

from math import log10
from statistics import median
from typing import Any

import pandas as pd  # type: ignore[import-untyped]

from ..methods import METHODS
from ..render.cells import compare_command, triangle_command
from ..settings import spelled
from ..table import Experiment
from .figure import ADAM, ALRAO, BASELINE, LOG, SCALE, Figure, Plot, axes_controls, ordered, panels, plain
from .figure import rounded as short

MARK = {"symbol": "x", "size": 11, "color": BASELINE}
CROSS: dict[str, Any] = {"mode": "markers", "name": "diverged", "marker": MARK}


def _summary(rows: pd.DataFrame, part: str, measure: str) -> pd.DataFrame:
    """The mean of a measure, nan where every run failed, and its deviation, 0 where there is one run."""
    column = f"{part} {measure}"
    if column not in rows:
        return rows.assign(value=float("nan"), deviation=0.0)
    return rows.assign(value=rows[column], deviation=rows[f"{column} ±"].fillna(0.0))


def valley(experiment: Experiment) -> Figure | None:
    """Draw the final loss against the learning rate, with Alrao as a line across."""
    measure = experiment.measure
    every = _summary(experiment.every, "test", measure)
    plot = panels(1)
    shown: list[pd.DataFrame] = []
    for method, colour in (("sgd", SCALE[1]), ("adam", ADAM)):
        rows = every[(every["method"] == method) & every["rate"].notna()].sort_values("rate")
        if len(rows) < 2:
            continue
        shown.append(rows)
        good = rows.dropna(subset="value")
        if len(good):
            plot.scatter(
                good[["rate", "value", "deviation"]].to_numpy().tolist(), marker={"size": 8},
                name=f"{METHODS[method].title} at one rate", mode="lines+markers",
                line={"color": colour, "width": 2.5},
                hovertemplate="rate %{x:.2~g}: %{y:.4~g}<extra></extra>",
            )  # fmt: skip
    if not shown or pd.concat(shown)["value"].isna().all():
        return None
    rates = pd.concat(shown)["rate"]
    own = every[every["ours"] & (every["varied"] == "")].dropna(subset="value")
    for name, row in own.iterrows():
        _across(plot, name, [rates.min(), rates.max()], row)
    found = pd.concat([*shown, own.assign(rate=float("nan"))])
    drawn = found["value"].dropna()
    lost = found[found["value"].isna()]
    if len(lost):
        top = drawn.min() if experiment.higher else min(drawn.max(), 8 * drawn.median())
        said = [plain(f"{name}: every run diverged") for name in lost.index]
        points = [(rate, top) for rate in lost["rate"]]
        plot.scatter(points, text=said, hovertemplate="%{text}<extra></extra>", **CROSS)
    plot.axis("x", "learning rate", **LOG)
    plot.axis("y", f"test {measure}")
    titles = found["method"].map(lambda name: METHODS[name].title)
    table = found.assign(method=titles)[["method", "rate", "value", "deviation", "seeds", "failed"]]
    return Figure(
        "valley",
        compare_command(experiment, found.index),
        plot,
        table.rename(columns={"value": f"test {measure}", "seeds": "runs"}),
        controls=axes_controls("vertical axis", {"yaxis": drawn}, {"yaxis": 8 * drawn.median()}),
        said={
            "measure": measure,
            "better": "higher" if experiment.higher else "lower",
            "ours": experiment.main or "the method of this library, if it was run,",
        },
    )


def _across(plot: Plot, name: str, ends: list[float], row: Any) -> None:
    at, deviation, main = row["value"], row["deviation"], row["method"] in ("auto", "alrao")
    if deviation and main:
        corners = zip([*ends, *reversed(ends)], [at - deviation] * 2 + [at + deviation] * 2, strict=True)
        plot.scatter(
            corners, fill="toself", mode="none", fillcolor="rgba(229,56,59,0.15)", legendgroup=name,
            showlegend=False, hoverinfo="skip",
        )  # fmt: skip
    line = {"color": ALRAO, "width": 4 if main else 2.5, "dash": "solid" if main else "dash"}
    plot.scatter(
        [(end, at) for end in ends], name=f"{name}, no rate chosen", mode="lines", legendgroup=name,
        line=line, hovertemplate=f"{name}: %{{y:.4~g}}<extra></extra>",
    )  # fmt: skip


def triangle(experiment: Experiment, method: str = "alrao") -> Figure | None:
    """Draw the loss for every interval of rates, plain SGD (or Adam) on the diagonal."""
    base, measure = ("adam" if method == "alrao-adam" else "sgd"), experiment.measure
    every = experiment.every
    own = every[(every["method"] == method) & every["varied"].isin(["", "lr"])].dropna(subset="low")
    if len(own) < 3:
        return None
    rates = sorted({*own["low"], *own["high"]})
    singles = every[(every["method"] == base) & every["rate"].isin(rates)]
    cells = pd.concat([own, singles.assign(low=singles["rate"], high=singles["rate"])])
    parts = ["train", "test"] if measure == "loss" else ["test"]  # others have another unit in training
    plot = panels(len(parts), height=440, legend=False)
    tables = [_summary(cells, part, measure).assign(part=part) for part in parts]
    names = [spelled(rate) for rate in rates]
    kind = {"type": "category", "categoryorder": "array", "categoryarray": names, "showgrid": False}
    for panel, (part, values) in enumerate(zip(parts, tables, strict=True)):
        _heat(plot, panel, rates, values)
        side = "training" if part == "train" else "test"
        plot.axis("x", f"lowest rate ({side} {measure})", panel, **kind)
        plot.axis("y", "highest rate", panel, **kind)
    table = pd.concat(tables)
    _shading(plot, table["value"].dropna().tolist(), measure, experiment.higher)
    sides = "First the training loss, then the test loss," if len(parts) > 1 else f"Test {measure}"
    return Figure(
        "triangle",
        triangle_command(experiment, method, rates),
        plot,
        table[["part", "low", "high", "value", "failed"]].rename(
            columns={"low": "lowest rate", "high": "highest rate"}
        ),
        said={"method": METHODS[method].title, "base": METHODS[base].title, "sides": sides},
    )


def _heat(plot: Plot, panel: int, rates: list[float], values: pd.DataFrame) -> None:
    names = [spelled(rate) for rate in rates]
    grid = values.pivot(index="high", columns="low", values="value").reindex(index=rates, columns=rates)

    def said(value: float) -> str:
        return "" if value != value else f"{value:.2f}" if 0.095 <= abs(value) < 100 else f"{value:.1g}"

    plot.add(
        "heatmap", panel, x=names, y=names, z=[[short(z) for z in row] for row in grid.to_numpy()],
        text=[[said(z) for z in row] for row in grid.to_numpy()], texttemplate="%{text}", xgap=2, ygap=2,
        coloraxis="coloraxis", hovertemplate="from %{x} to %{y}: %{text}<extra></extra>", hoverongaps=False,
    )  # fmt: skip
    lost = values[values["value"].isna()]
    if len(lost):
        x, y = ([spelled(rate) for rate in lost[end]] for end in ("low", "high"))
        hover = "from %{x} to %{y}: diverged<extra></extra>"
        plot.add("scatter", panel, x=x, y=y, hovertemplate=hover, **CROSS)


def _shading(plot: Plot, known: list[float], name: str, higher: bool) -> None:
    """One scale for all panels, logarithmic where it can be: the cells then hold logarithms."""
    side = {"title": {"text": plain(name)}, "thickness": 12, "len": 1, "outlinewidth": 0, "xpad": 4}
    scale = {"colorscale": "Viridis", "reversescale": not higher, "colorbar": side}
    if known and min(known) > 0:
        top = min(max(known), 20 * median(known))
        marks = [step * 10.0**power for power in range(-6, 7) for step in (1, 2, 5)]
        ticks = [float(f"{mark:g}") for mark in marks if min(known) <= mark <= top]
        side |= {"tickvals": [log10(tick) for tick in ticks], "ticktext": [f"{tick:g}" for tick in ticks]}
        scale |= {"cmin": log10(min(known)), "cmax": log10(max(top, 1.001 * min(known)))}
        for trace in plot.data:
            if trace["type"] == "heatmap":
                trace["z"] = [[None if z is None else short(log10(z)) for z in row] for row in trace["z"]]
    plot.lay(coloraxis=scale)


def frozen(experiment: Experiment) -> Figure | None:
    """Draw the loss against the fraction of features that are trained."""
    measure, every = experiment.measure, experiment.every
    found = every[(every["method"] == "frozen") & every["fraction"].notna()].sort_values("fraction")
    lines = dict(iter(found.groupby("rate")))
    if not any(len(points) > 1 for points in lines.values()):
        return None
    plot = panels(1, height=380)
    tables: list[pd.DataFrame] = []
    for (rate, points), colour in zip(lines.items(), ordered(len(lines)), strict=True):
        for part, of, dash in (("test", measure, "solid"), ("train", "loss", "dot")):
            values = _summary(points, part, of).assign(part=part)
            tables.append(values)
            good = values.dropna(subset="value")[["fraction", "value", "deviation"]]
            said = "training" if part == "train" else part
            plot.scatter(
                good.to_numpy().tolist(), name=f"{said} {of}, rate {rate:g}", mode="lines+markers",
                line={"color": colour, "width": 2.5, "dash": dash},
                hovertemplate="fraction %{x}: %{y:.4~g}<extra></extra>",
            )  # fmt: skip
    table = pd.concat(tables)
    plot.axis("x", "fraction of features trained", range=[-0.03, 1.03])
    plot.axis("y", measure)
    return Figure(
        "frozen",
        compare_command(experiment, found.index),
        plot,
        table[["rate", "part", "fraction", "value", "deviation"]],
        controls=axes_controls("vertical axis", {"yaxis": table["value"]}),
    )
