"""Learning curves: training and test, every method; Adam's rates with Alrao-Adam; returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd  # type: ignore[import-untyped]

from ..records import Record
from ..render.cells import compare_command
from ..resolve import divergence
from ..settings import MethodSpec
from ..table import Experiment
from .figure import FEW, WORDS, Control, Figure, axes_controls, paint, panels, plain, thinned

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
    aside = _intervals(experiment)
    return [
        name
        for name, row in experiment.methods.iterrows()
        if name not in aside and not (row["method"] in ("adam", "frozen") and row["spec"].lr is not None)
    ]


def curves(records: Sequence[Record], columns: dict[str, tuple[str, str]]) -> pd.DataFrame:
    """Return a row per epoch of some runs, with a column for each measure of a part of the data."""
    rows = [
        [run, record.settings.seed, line["epoch"], *(line[part].get(of) for part, of in columns.values())]
        for run, record in enumerate(records)
        for line in record.lines
    ]
    found = pd.DataFrame(rows, columns=["run", "seed", "epoch", *columns])
    return found.astype(dict.fromkeys(columns, float))


def mean_curve(lines: pd.DataFrame, column: str) -> pd.Series:
    """Return the mean at each epoch that at least half of the runs reached with a finite value."""
    found = lines.groupby("epoch")[column].agg(["mean", "count"])
    return found.loc[2 * found["count"] >= max(1, lines["run"].nunique()), "mean"]


def learning_curves(experiment: Experiment, detail: int) -> Figure | None:
    """Draw Alrao among SGD's rates, Adam and every other method that was run."""
    what = "return of an episode" if experiment.measure == "return" else experiment.measure
    said = {"what": what, "better": "Higher" if experiment.higher else "Lower"}
    words, methods = WORDS["curves"], experiment.methods
    lines = [words["ours"].format(ours=experiment.main)] if experiment.main else []
    if experiment.main and methods.loc[experiment.main, "method"].startswith("auto"):
        lines.append(words["averaged"])
    if (methods["method"] == "sgd").sum() > 1:
        lines.append(words["rates"])
    said["lines"] = " ".join(lines)
    figure = _curves(experiment, "curves", compared(experiment), "sgd", detail, said)
    if figure is not None and experiment.measure == "return":
        figure.title = "Returns during training"
    if figure is not None and (aside := _intervals(experiment)):
        figure.notes.append(f"{len(aside)} other intervals of Alrao are in the triangle, not here.")
    return figure


def adam_curves(experiment: Experiment, detail: int) -> Figure | None:
    """Draw Alrao-Adam among Adam's rates."""
    methods = experiment.methods[experiment.methods["method"].isin(["adam", "alrao-adam"])]
    methods = methods[~methods.index.isin(_intervals(experiment))]
    if "alrao-adam" not in set(methods["method"]) or len(methods) < 3:
        return None
    names = list(methods.sort_values("rate", na_position="first").index)
    return _curves(experiment, "adam", names, "adam", detail, {})


def _curves(
    experiment: Experiment, name: str, labels: list[str], scaled: str, detail: int, said: dict[str, str]
) -> Figure | None:
    """Draw the figure of a name: the curves of some labels."""
    columns = _columns(experiment)
    methods = experiment.methods.loc[labels]
    looks = paint(methods, scaled)
    plot = panels(2)
    tables: dict[str, pd.DataFrame] = {}
    missing: list[str] = []
    dropped = 0
    for rank, (label, row) in sorted(enumerate(methods.iterrows()), key=lambda item: item[1][1]["ours"]):
        records, look = experiment.records(label), looks[label]
        lines = tables[label] = curves(records, columns)
        default = scaled == "adam" and row["spec"] == MethodSpec("adam")
        where: dict[str, Any] = {"name": plain("Adam 0.001 (default)" if default else label)}
        where |= {"legendgroup": label, "legendrank": rank + 1}
        several = len(records) > 1
        dropped += max(0, len(records) - detail) if several else 0
        for panel, column in enumerate(columns):
            singles = {run: one.set_index("epoch")[column] for run, one in lines.groupby("run")}
            for run, one in singles.items() if several else ():
                if run < detail:
                    plot.scatter(
                        thinned([*one.items()], max(20, 4 * detail)), panel, 4, mode="lines", opacity=0.4,
                        line={"color": look["color"], "width": 1}, showlegend=False, **where,
                        hovertemplate=f"epoch %{{x}}: %{{y:.4~g}}, seed {records[run].settings.seed}",
                    )  # fmt: skip
            mean = thinned([*mean_curve(lines, column).items()], 200 if detail > FEW else 40)
            if mean:
                plot.scatter(
                    mean, panel, mode="lines" if len(mean) > 1 else "markers", line=look,
                    hovertemplate=f"epoch %{{x}}: %{{y:.4~g}}{' (mean)' if several else ''}",
                    showlegend=panel == 0, **where,
                )  # fmt: skip
            for run, one in singles.items():
                if records[run].diverged and len(labels) < 200 and len(known := one.dropna()):
                    plot.scatter(
                        [*known.tail(1).items()], panel, mode="markers", showlegend=False,
                        marker={"symbol": "x", "size": 9, "color": look["color"]},
                        hovertemplate=divergence(records[run].result["diverged_at"]), **where,
                    )  # fmt: skip
        if lines[list(columns)].isna().all().all():
            lost = all(record.diverged for record in records)
            missing.append(f"{label} ({'diverged' if lost else 'not there yet'})")
    drawn = pd.concat([lines.assign(method=label) for label, lines in tables.items()])
    if drawn.empty:
        return None
    for panel, (part, of) in enumerate(columns.values()):
        plot.axis("x", "epoch", panel)
        plot.axis("y", f"{SAID[part]} {of}", panel)
    notes = [f"Not drawn, for want of a full epoch: {', '.join(missing)}."] if missing else []
    if dropped:
        notes.append(f"{dropped} single runs are not drawn, to keep the page small; their means are.")
    table = drawn[["method", "seed", "epoch", *columns]]
    command, controls = compare_command(experiment, labels), _controls(drawn, columns)
    return Figure(name, command, plot, table, notes, controls, said)


def _columns(experiment: Experiment) -> dict[str, tuple[str, str]]:
    """What the panels show: of games, where tests are played once at the end, training and evaluation."""
    measure = experiment.measure
    lines = [line for record in experiment.runs["record"] for line in record.lines]
    tested = any(line["test"].get(measure) is not None for line in lines)
    trained = measure == "return" and any(line["train"].get(measure) is not None for line in lines)
    first = ("train", measure if trained else "loss")
    second = ("test" if tested or not lines else "valid", measure)
    return {" ".join(part): part for part in (first, second)}


def _controls(drawn: pd.DataFrame, columns: dict[str, tuple[str, str]]) -> list[Control]:
    """The axes end not far above where training begins; curves beyond have diverged."""
    axes = dict(zip(("yaxis", "yaxis2"), (drawn[column] for column in columns), strict=True))
    begin = drawn.groupby(["method", "run"])[list(columns)].nth(0).median()
    most = {axis: 3 * begin[column] for axis, column in zip(axes, columns, strict=True)}
    found = axes_controls("vertical axis", axes, most)
    return found or axes_controls("axis of the first panel", {"yaxis": axes["yaxis"]}, most)
