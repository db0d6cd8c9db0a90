"""Learning curves: training and test, every method; Adam's rates with Alrao-Adam; returns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import mean, median
from typing import Any

from ..reading import Record
from ..render.cells import is_alrao
from ..render.commands import compare_command
from ..table import Experiment
from ..values import MethodSpec
from .captions import caption
from .figure import FEW, Control, Figure, axes_control, paint, panels, plain, rounded

__all__ = ["Curve", "adam_curves", "compared", "curve", "learning_curves", "mean_curve"]

Curve = list[tuple[int, float | None]]
"""Epochs and values."""
SAID = {"train": "training", "valid": "evaluation", "test": "test"}
MANY = 3
"""From this number of intervals on, they are for the triangle and not for the curves."""


def _intervals(experiment: Experiment) -> set[str]:
    """The labels of Alrao in an interval that is not the default, if there are many."""
    methods = experiment.methods
    found = methods[methods["method"].isin(["alrao", "alrao-adam"]) & (methods["varied"] == "lr")]
    return set(found.index) if len(found) >= MANY else set()


def compared(experiment: Experiment) -> list[str]:
    """Return the labels that are compared with one another: not Adam's rates, fractions, many intervals."""
    methods, aside = experiment.methods, _intervals(experiment)
    return [
        name
        for name, row in methods.iterrows()
        if name not in aside and not (row["method"] in ("adam", "frozen") and row["spec"].lr is not None)
    ]


def curve(record: Record, part: str, measure: str) -> Curve:
    """A measure in every epoch of a run; None where it was not finite."""
    return [(line["epoch"], line[part].get(measure)) for line in record.lines]


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """The mean at each epoch that at least half of the runs reached with a finite value."""
    values: dict[int, list[float]] = {}
    for one in curves:
        for epoch, value in one:
            if value is not None:
                values.setdefault(epoch, []).append(value)
    return [(epoch, mean(found)) for epoch, found in sorted(values.items()) if 2 * len(found) >= len(curves)]


def thinned(one: Curve, most: int) -> Curve:
    """At most so many points, the first and the last among them."""
    if len(one) <= most:
        return one
    return [one[round(i * (len(one) - 1) / (most - 1))] for i in range(most)]


def learning_curves(experiment: Experiment, detail: int) -> Figure | None:
    """Alrao among SGD's rates, Adam and whatever else was run."""
    names = compared(experiment)
    returns = experiment.measure == "return"
    figure = _curves(experiment, names, "sgd", detail)
    if figure is None:
        return None
    figure.name, figure.title = "curves", "Returns during training" if returns else "Learning curves"
    what = "return of an episode" if returns else experiment.measure
    better = "Higher" if experiment.higher else "Lower"
    figure.look_for = caption("curves", what=what, better=better)
    if aside := _intervals(experiment):
        figure.notes.append(f"{len(aside)} other intervals of Alrao are in the triangle, not here.")
    return figure


def adam_curves(experiment: Experiment, detail: int) -> Figure | None:
    """Alrao-Adam among Adam's rates."""
    methods = experiment.methods[experiment.methods["method"].isin(["adam", "alrao-adam"])]
    methods = methods[~methods.index.isin(_intervals(experiment))]
    if "alrao-adam" not in set(methods["method"]) or len(methods) < 3:
        return None
    names = list(methods.sort_values("rate", na_position="first").index)
    figure = _curves(experiment, names, "adam", detail)
    if figure is None:
        return None
    figure.name, figure.title = "adam", "Alrao on Adam, among the rates of Adam itself"
    figure.look_for = caption("adam")
    return figure


def _curves(experiment: Experiment, names: Sequence[str], scaled: str, detail: int) -> Figure | None:
    measure = experiment.measure
    parts = _parts(experiment)
    methods = experiment.methods.loc[list(names)]
    lines = paint(methods, scaled)
    plot, wide, narrow = panels(2)
    rows: list[list[Any]] = []
    drawn: list[list[float | None]] = [[], []]
    missing: list[str] = []
    dropped = 0
    first: list[list[float]] = [[], []]
    for rank, (name, row) in sorted(enumerate(methods.iterrows()), key=lambda item: is_alrao(item[1][1])):
        records = experiment.records(name)
        default = scaled == "adam" and row["spec"] == MethodSpec("adam")
        shown = plain("Adam 0.001 (default)" if default else name)
        any_line = False
        for panel, (part, of) in enumerate(parts):
            suffix = "" if panel == 0 else "2"
            where: dict[str, Any] = {
                "xaxis": f"x{suffix}",
                "yaxis": f"y{suffix}",
                "legendgroup": name,
                "name": shown,
            }
            where |= {"legendrank": rank + 1}
            singles = [curve(record, part, of) for record in records]
            average = mean_curve([one for one in singles if one])
            any_line = any_line or bool(average)
            single = len(records) == 1
            if not single and detail:
                for record, one in zip(records[:detail], singles, strict=False):
                    plot.data.append(_line(thinned(one, max(20, 4 * detail)), where, lines[name], record))
            dropped += max(0, len(records) - detail) if panel and not single else 0
            short = thinned(average, 200 if detail > FEW else 40)
            if short:
                hover = f"epoch %{{x}}: %{{y:.4~g}}{'' if single else ' (mean)'}"
                plot.add(
                    "scatter",
                    x=[epoch for epoch, _ in short], y=[rounded(value) for _, value in short],
                    mode="lines" if len(short) > 1 else "markers", line=lines[name],
                    showlegend=panel == 0, hovertemplate=hover, **where,
                )  # fmt: skip
            for record, one in zip(records, singles, strict=True):
                drawn[panel] += [value for _, value in one]
                first[panel] += [value for _, value in one[:1] if value is not None]
                last = next((point for point in reversed(one) if point[1] is not None), None)
                if record.diverged and last is not None and len(names) < 200:
                    at = record.result["diverged_at"]
                    plot.data.append(_cross(last, where, lines[name], at))
                if panel:
                    train = dict(curve(record, *parts[0]))
                    rows += [[name, record.settings.seed, e, train.get(e), value] for e, value in one]
        if not any_line:
            lost = all(record.diverged for record in records)
            missing.append(f"{name} ({'diverged' if lost else 'not there yet'})")
    if not rows:
        return None
    plot.lay(
        xaxis={"title": {"text": "epoch"}},
        xaxis2={"title": {"text": "epoch"}},
        yaxis={"title": {"text": f"training {parts[0][1]}"}},
        yaxis2={"title": {"text": f"{SAID[parts[1][0]]} {measure}"}},
    )  # fmt: skip
    notes = [f"Not drawn, for want of a full epoch: {', '.join(missing)}."] if missing else []
    if dropped:
        notes.append(f"{dropped} single runs are not drawn, to keep the page small; their means are.")
    controls = _controls(drawn, first)
    columns = ["method", "seed", "epoch", *(" ".join(part) for part in parts)]
    command = compare_command(experiment, names)
    return Figure("", "", "", command, plot, columns, rows, notes, controls, wide, narrow)


def _parts(experiment: Experiment) -> list[tuple[str, str]]:
    """What the panels show: of games, where tests are played once at the end, training and evaluation."""
    measure = experiment.measure
    lines = [line for record in experiment.runs["record"] for line in record.lines]
    tested = any(line["test"].get(measure) is not None for line in lines)
    trained = measure == "return" and any(line["train"].get(measure) is not None for line in lines)
    return [("train", measure if trained else "loss"), ("test" if tested or not lines else "valid", measure)]


def _controls(drawn: list[list[float | None]], first: list[list[float]]) -> list[Control]:
    """The axes end not far above where training begins; what goes beyond has diverged."""
    axes: dict[str, Iterable[float | None]] = dict(zip(("yaxis", "yaxis2"), drawn, strict=True))
    most = {axis: 3 * median(values) for axis, values in zip(axes, first, strict=True) if values}
    control = axes_control("vertical axis", axes, most)
    if control is None:
        del axes["yaxis2"]
        control = axes_control("axis of the first panel", axes, most)
    return [control] if control is not None else []


def _line(one: Curve, where: dict[str, Any], line: dict[str, Any], record: Record) -> dict[str, Any]:
    return dict(
        type="scatter",
        x=[epoch for epoch, _ in one], y=[rounded(value, 4) for _, value in one],
        mode="lines", line={"color": line["color"], "width": 1}, opacity=0.4, showlegend=False,
        hovertemplate=f"epoch %{{x}}: %{{y:.4~g}}, seed {record.settings.seed}", **where,
    )  # fmt: skip


def _cross(
    last: tuple[int, float | None], where: dict[str, Any], line: dict[str, Any], step: int | None
) -> dict[str, Any]:
    when = f"at step {step}" if step else "(no finite validation loss)"
    return dict(
        type="scatter",
        x=[last[0]], y=[rounded(last[1])], mode="markers", showlegend=False,
        marker={"symbol": "x", "size": 9, "color": line["color"]},
        hovertemplate=f"diverged {when}", **where,
    )  # fmt: skip
