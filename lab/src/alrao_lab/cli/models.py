"""The commands that use a trained model: ``predict`` and ``export``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import pandas as pd  # type: ignore[import-untyped]

from ..export import FORMATS, absent, export
from ..render.terminal import out, plain_table, say
from ..store import replace_file
from ..trained import Predictions, Trained, latest, predict
from .options import pick, words_of

SHOWN = 5
"""Rows that are printed."""
SYMBOLS = 200
PATH = click.Path(path_type=Path)


def _of_run(command: Any) -> Any:
    """Add the options that name a run."""
    where: dict[str, Any] = {"type": PATH, "metavar": "DIR"}
    command = click.option(
        "--out", "root", default="runs", show_default=True, help="where runs are", **where
    )(command)
    return click.option("--run", help="the run  [default: the one that ended last]", **where)(command)


def _trained(run: Path | None, root: Path) -> Trained:
    path = run or latest(root)
    say(f"run: {path}")
    return Trained.load(path)


@click.command("predict")
@click.argument("data", type=PATH)
@click.option(
    "--to", type=PATH, metavar="FILE", help="where all predictions are written  [default: predictions.csv]"
)
@click.option(
    "--symbols", type=click.IntRange(1), default=SYMBOLS, show_default=True, metavar="N",
    help="symbols by which a text is continued",
)  # fmt: skip
@_of_run
def predict_command(run: Path | None, root: Path, data: Path, to: Path | None, symbols: int) -> None:
    """Predict for DATA with a trained model.

    DATA is what the run was trained on: a CSV file (the target may be missing), an image or a folder of
    images, or a text to continue. Every row of a table gets its prediction, and classes their probability.
    """
    trained = _trained(run, root)
    found = predict(trained, data, symbols)
    for note in found.notes:
        say(note)
    if trained.kind == "text":
        say(found.rows["continuation"].iloc[0])
        return
    to = to or Path("predictions.csv")
    replace_file(to, found.rows.to_csv(index=False).encode())
    out.print(_preview(found))
    say(f"{len(found.rows)} predictions: {to}")


def _preview(found: Predictions) -> Any:
    """The first rows: two columns of the data, and the prediction."""
    rows: pd.DataFrame = found.rows.head(SHOWN)
    ours = [name for name in rows.columns if str(name).startswith("predicted ") or name == "probability"]
    rows = rows[[*[name for name in rows.columns if name not in ours][:2], *ours]]
    cells = [[f"{cell:.6g}" if isinstance(cell, float) else str(cell) for cell in row] for row in rows.values]
    return plain_table([str(name) for name in rows.columns], cells, left=rows.shape[1])


@click.command("export")
@click.option(
    "--to", type=PATH, default="model", show_default=True, metavar="DIR", help="the folder that is written"
)
@click.option(
    "--formats",
    metavar="A,B",
    help="files to write: onnx, torch  [default: both; torch, if ONNX is not installed]",
)
@_of_run
def export_command(run: Path | None, root: Path, to: Path, formats: str | None) -> None:
    """Export a trained model: ONNX, torch.export, and a model card.

    The files contain the preparation of the inputs and the labels. Each is read again, and its outputs are
    compared with those of the model.
    """
    trained, names = _trained(run, root), {name: name for name in FORMATS}
    wanted = list(names) if formats is None else pick(words_of(formats), names, "format")
    if formats is None and (missing := absent()):
        wanted.remove("onnx")
        say(f"without ONNX, which needs {' and '.join(missing)}: pip install 'alrao-lab[onnx]'")
    for name, difference in export(trained, to, wanted).items():
        say(f"{to / name}: outputs differ from the model's by at most {difference:.1e}")
    say(f"{to / 'README.md'}: the model card")
