"""Figures about the choice of rates: the valley, the triangle, the fraction of trained features."""

from __future__ import annotations

from math import isnan, log10
from statistics import median
from typing import Any

from ..methods import METHODS
from ..render.cells import is_alrao
from ..render.commands import compare_command, triangle_command
from ..table import Experiment
from ..values import spelled
from .captions import caption
from .figure import ADAM, ALRAO, BASELINE, SCALE, Figure, Plot, axes_control, ordered, panels, plain, rounded

__all__ = ["frozen", "triangle", "valley"]


def _summary(row: Any, part: str, measure: str) -> tuple[float | None, float]:
    """The mean, None where every run failed, and the deviation, 0 where there is one run."""
    mean, deviation = (row.get(f"{part} {measure}{sign}", float("nan")) for sign in ("", " ±"))
    return None if isnan(mean) else mean, 0.0 if isnan(deviation) else deviation


def _rated(experiment: Experiment, method: str) -> Any:
    """The rows of one method at several rates, in their order."""
    every = experiment.every
    found = every[(every["method"] == method) & every["rate"].notna()].sort_values("rate")
    return found if len(found) > 1 else found.iloc[:0]


def valley(experiment: Experiment) -> Figure | None:
    """Final loss against the learning rate, with Alrao as a line across."""
    measure = experiment.measure
    plot, wide, narrow = panels(1)
    table: list[list[Any]] = []
    drawn: list[float] = []
    found: list[float] = []
    used: list[str] = []
    lost: list[tuple[float, str]] = []
    for method, colour in (("sgd", SCALE[1]), ("adam", ADAM)):
        good = []
        title = METHODS[method].title
        for name, row in _rated(experiment, method).iterrows():
            at, deviation = _summary(row, "test", measure)
            table.append([title, row["rate"], at, deviation, row["seeds"], row["failed"]])
            used.append(name)
            found.append(row["rate"])
            if at is None:
                lost.append((row["rate"], title))
            else:
                good.append((row["rate"], at, deviation))
                drawn.append(at)
        if good:
            plot.add(
                "scatter",
                x=[value for value, _, _ in good], y=[rounded(at) for _, at, _ in good],
                error_y={"array": [rounded(deviation) for _, _, deviation in good], "thickness": 1.2},
                name=f"{title} at one rate", mode="lines+markers",
                line={"color": colour, "width": 2.5}, marker={"size": 8},
                hovertemplate="rate %{x:.2~g}: %{y:.4~g}<extra></extra>",
            )  # fmt: skip
    if not found or not drawn:
        return None
    ends = [min(found), max(found)]
    for name, row in experiment.every.iterrows():
        at, deviation = _summary(row, "test", measure)
        if not is_alrao(row) or row["varied"] or at is None:
            continue
        table.append([name, "", at, deviation, row["seeds"], row["failed"]])
        used.append(name)
        drawn.append(at)
        _across(plot, name, ends, at, deviation, main=row["method"] == "alrao")
    top = min(drawn) if experiment.higher else min(max(drawn), 8 * median(drawn))
    if lost:
        plot.add(
            "scatter",
            x=[value for value, _ in lost], y=[rounded(top)] * len(lost), mode="markers",
            name="diverged", marker={"symbol": "x", "size": 11, "color": BASELINE},
            text=[plain(f"{who} {value:g}: every run diverged") for value, who in lost],
            hovertemplate="%{text}<extra></extra>",
        )  # fmt: skip
    plot.lay(
        xaxis={"type": "log", "title": {"text": "learning rate"}, "dtick": 1, "exponentformat": "power"},
        yaxis={"title": {"text": f"test {measure}"}},
    )  # fmt: skip
    control = axes_control("vertical axis", {"yaxis": drawn}, {"yaxis": 8 * median(drawn)})
    return Figure(
        "valley",
        "What the choice of a learning rate costs",
        caption("valley", measure=measure, better="higher" if experiment.higher else "lower"),
        compare_command(experiment, used),
        plot,
        ["method", "rate", f"test {measure}", "deviation", "runs", "failed"],
        table,
        controls=[control] if control is not None else [],
        wide=wide,
        narrow=narrow,
    )


def _across(plot: Plot, name: str, ends: list[float], at: float, deviation: float, *, main: bool) -> None:
    if deviation and main:
        plot.add(
            "scatter",
            x=[*ends, *reversed(ends)],
            y=[rounded(v) for v in (at - deviation,) * 2 + (at + deviation,) * 2],
            fill="toself", mode="none", fillcolor="rgba(229,56,59,0.15)", legendgroup=name,
            showlegend=False, hoverinfo="skip",
        )  # fmt: skip
    plot.add(
        "scatter",
        x=ends, y=[rounded(at)] * 2, name=f"{name}, no rate chosen", mode="lines",
        legendgroup=name,
        line={"color": ALRAO, "width": 4 if main else 2.5, "dash": "solid" if main else "dash"},
        hovertemplate=f"{name}: %{{y:.4~g}}<extra></extra>",
    )  # fmt: skip


def triangle(experiment: Experiment, method: str = "alrao") -> Figure | None:
    """The loss for every interval of rates, plain SGD (or Adam) on the diagonal."""
    base, measure = ("adam" if method == "alrao-adam" else "sgd"), experiment.measure
    every = experiment.every
    of_intervals = every[(every["method"] == method) & every["varied"].isin(["", "lr"])].dropna(subset="low")
    if len(of_intervals) < 3:
        return None
    cells = {(row["low"], row["high"]): row for _, row in of_intervals.iterrows()}
    rates = sorted({end for cell in cells for end in cell})
    singles = every[(every["method"] == base) & every["rate"].isin(rates)]
    cells |= {(row["rate"], row["rate"]): row for _, row in singles.iterrows()}
    parts = ["train", "test"] if measure == "loss" else ["test"]  # others have another unit in training
    plot, wide, narrow = panels(len(parts), height=440, legend=False)
    table: list[list[Any]] = []
    for panel, part in enumerate(parts):
        values = {cell: _summary(row, part, measure)[0] for cell, row in cells.items()}
        _heat(plot, panel, rates, values)
        table += [[part, *cell, value, cells[cell]["failed"]] for cell, value in values.items()]
    _shading(plot, [line[3] for line in table if line[3] is not None], measure, experiment.higher)
    names = [spelled(rate) for rate in rates]
    kind = {"type": "category", "categoryorder": "array", "categoryarray": names, "showgrid": False}
    for panel, part in enumerate(parts):
        suffix = "" if panel == 0 else "2"
        side = "training" if part == "train" else "test"
        across, up = {"text": f"lowest rate ({side} {measure})"}, {"text": "highest rate"}
        plot.lay(**{f"xaxis{suffix}": {**kind, "title": across}, f"yaxis{suffix}": {**kind, "title": up}})
    sides = "First the training loss, then the test loss," if len(parts) > 1 else f"Test {measure}"
    return Figure(
        "triangle",
        "Which interval of rates to give it",
        caption("triangle", method=METHODS[method].title, base=METHODS[base].title, sides=sides),
        triangle_command(experiment, method, rates),
        plot,
        ["part", "lowest rate", "highest rate", "value", "failed"],
        table,
        wide=wide,
        narrow=narrow,
    )


def _heat(
    plot: Plot, panel: int, rates: list[float], values: dict[tuple[float, float], float | None]
) -> None:
    suffix = "" if panel == 0 else "2"
    names = [spelled(rate) for rate in rates]

    def said(low: float, high: float) -> str:
        value = values.get((low, high))
        return "" if value is None else f"{value:.2f}" if 0.095 <= abs(value) < 100 else f"{value:.1g}"

    plot.add(
        "heatmap",
        x=names, y=names, z=[[rounded(values.get((low, high))) for low in rates] for high in rates],
        text=[[said(low, high) for low in rates] for high in rates], texttemplate="%{text}",
        xaxis=f"x{suffix}", yaxis=f"y{suffix}", xgap=2, ygap=2, coloraxis="coloraxis",
        hovertemplate="from %{x} to %{y}: %{text}<extra></extra>", hoverongaps=False,
    )  # fmt: skip
    diverged = [cell for cell, value in values.items() if value is None]
    if diverged:
        plot.add(
            "scatter",
            x=[spelled(low) for low, _ in diverged], y=[spelled(high) for _, high in diverged],
            mode="markers", name="diverged", marker={"symbol": "x", "size": 11, "color": BASELINE},
            xaxis=f"x{suffix}", yaxis=f"y{suffix}",
            hovertemplate="from %{x} to %{y}: diverged<extra></extra>",
        )  # fmt: skip


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
                trace["z"] = [[None if z is None else rounded(log10(z)) for z in row] for row in trace["z"]]
    plot.lay(coloraxis=scale)


def frozen(experiment: Experiment) -> Figure | None:
    """Loss against the fraction of features that are trained at all."""
    measure, every = experiment.measure, experiment.every
    found = every[(every["method"] == "frozen") & every["fraction"].notna()].sort_values("fraction")
    lines = dict(iter(found.groupby("rate")))
    if not any(len(points) > 1 for points in lines.values()):
        return None
    plot, wide, narrow = panels(1, height=380)
    table: list[list[Any]] = []
    drawn: list[float | None] = []
    for (rate, points), colour in zip(lines.items(), ordered(len(lines)), strict=True):
        for part, of, dash in (("test", measure, "solid"), ("train", "loss", "dot")):
            values = [(row["fraction"], *_summary(row, part, of)) for _, row in points.iterrows()]
            good = [(fraction, value, spread) for fraction, value, spread in values if value is not None]
            drawn += [value for _, value, _ in good]
            table += [[rate, part, *point] for point in values]
            said = "training" if part == "train" else part
            plot.add(
                "scatter",
                x=[fraction for fraction, _, _ in good], y=[rounded(value) for _, value, _ in good],
                error_y={"array": [rounded(spread) for _, _, spread in good], "thickness": 1.2},
                name=f"{said} {of}, rate {rate:g}", mode="lines+markers",
                line={"color": colour, "width": 2.5, "dash": dash},
                hovertemplate="fraction %{x}: %{y:.4~g}<extra></extra>",
            )  # fmt: skip
    control = axes_control("vertical axis", {"yaxis": drawn})
    plot.lay(
        xaxis={"title": {"text": "fraction of features trained"}, "range": [-0.03, 1.03]},
        yaxis={"title": {"text": measure}},
    )  # fmt: skip
    return Figure(
        "frozen",
        "Training only some of the features",
        caption("frozen"),
        compare_command(experiment, found.index),
        plot,
        ["rate", "part", "fraction", "value", "deviation"],
        table,
        controls=[control] if control is not None else [],
        wide=wide,
        narrow=narrow,
    )
