"""A finished run as a model that is used: its network with the preparation of inputs and the labels.

Nothing here reads the training data: ``checkpoint.pt`` holds the weights and the recipe of the inputs.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import torch
from torch import Tensor, nn

import alrao

from .errors import LabError
from .methods import METHODS, learner
from .records import read
from .settings import Settings
from .store import RunDirectory
from .tasks import get_task
from .tasks.columns import ABSENT, Encoder, Encoding
from .tasks.files import read_text
from .tasks.tables import LARGEST, read_fields
from .tasks.task import Supervised
from .tasks.text import UNKNOWN, tokens

ROWS = 1024
"""Rows or images that are predicted at once."""
CPU = torch.device("cpu")


class Normalise(nn.Module):
    """Turns pixels from 0 to 255, (images, channels, height, width), into the inputs of a network."""

    scale: Tensor
    shift: Tensor

    def __init__(self, scale: Tensor, shift: Tensor) -> None:
        super().__init__()
        self.register_buffer("scale", scale)
        self.register_buffer("shift", shift)

    def forward(self, pixels: Tensor) -> Tensor:
        return pixels.float() * self.scale + self.shift


class Scores(nn.Module):
    """The scores of a language model, without its state."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, symbols: Tensor) -> Tensor:
        scores: Tensor = self.net(symbols)[0]
        return scores


class Original(nn.Module):
    """Predictions of a standardised target in its own unit."""

    def __init__(self, encoding: Encoding) -> None:
        super().__init__()
        self.target = encoding.target

    def forward(self, standard: Tensor) -> Tensor:
        return self.target.original(standard)[:, 0]


@dataclass(frozen=True)
class Trained:
    """The model of a run."""

    directory: RunDirectory
    settings: Settings
    recipe: dict[str, Any]
    weights: dict[str, Tensor]

    @classmethod
    def load(cls, path: Path) -> Trained:
        """Read a run's directory."""
        directory = RunDirectory(path)
        if directory.result is None:
            begun = directory.config is not None
            reason = "has not ended: run its command again" if begun else "is not the directory of a run"
            raise LabError(f"{path} {reason}")
        settings = next(iter(read([directory]).records)).settings
        saved = directory.load(CPU) or {}
        if not saved.get("best"):
            raise LabError(f"{path} has no weights: the run diverged, or its checkpoint.pt was removed")
        if not saved.get("recipe"):
            raise LabError(
                f"{path} cannot predict: the task {settings.task} takes no data of yours, or the run is of "
                "an earlier version"
            )
        return cls(directory, settings, saved["recipe"], saved["best"])

    @property
    def labels(self) -> list[str] | None:
        """The classes, or the symbols of a text; None for numbers."""
        found = self.encoding.target.levels if self.kind == "table" else self.recipe["labels"]
        return list(found) or None

    @property
    def kind(self) -> str:
        """What it takes: ``"table"``, ``"images"`` or ``"text"``."""
        return str(self.recipe["input"])

    @cached_property
    def encoding(self) -> Encoding:
        return Encoding.of(self.recipe)

    @cached_property
    def module(self) -> nn.Module:
        """The network between the preparation of its inputs and its probabilities or numbers."""
        task = get_task(self.settings.task)
        assert isinstance(task, Supervised)
        task.restore(self.settings, self.recipe)
        net = task.network()
        if METHODS[self.settings.method.name].ours and self.settings.method.name != "auto-plain":
            model = learner(net, self.settings, task).model
            assert isinstance(model, alrao.Alrao)
            model.load_state_dict(self.weights)
            net = model.eval().collapse(mixture=True)
        else:
            net.load_state_dict(self.weights)
        parts: list[nn.Module] = [net]
        if self.kind == "table":
            parts.insert(0, Encoder(self.encoding.columns))
        elif self.kind == "images":
            parts.insert(0, Normalise(self.recipe["scale"], self.recipe["shift"]))
        else:
            parts = [Scores(net)]
        parts.append(Original(self.encoding) if self.labels is None else nn.Softmax(-1))
        return nn.Sequential(*parts).eval()

    def example(self) -> Tensor:
        """Return inputs of the shape and type that the model takes."""
        if self.kind == "table":
            return torch.zeros(2, len(self.encoding.columns), dtype=torch.double)
        if self.kind == "images":
            return torch.zeros(2, *self.recipe["shape"], dtype=torch.uint8)
        return torch.zeros(2, self.recipe["window"], dtype=torch.long)

    @torch.no_grad()
    def outputs(self, inputs: Tensor) -> Tensor:
        """Return probabilities, or numbers, for inputs as ``example`` returns them."""
        return torch.cat([self.module(some) for some in inputs.split(ROWS)])


def latest(root: Path) -> Path:
    """Return the run below a directory that ended last."""
    ended = [path for path in root.glob("*/*/*/result.json") if (path.parent / "checkpoint.pt").exists()]
    if not ended:
        raise LabError(
            f"there is no finished run in {root}: `alrao train` makes one, or name it with --run DIR"
        )
    return max(ended, key=lambda path: path.stat().st_mtime).parent


# Predictions for a user's files.


@dataclass(frozen=True)
class Predictions:
    """A row for each example, and remarks."""

    rows: pd.DataFrame
    notes: list[str]


def _chosen(trained: Trained, outputs: Tensor, name: str) -> pd.DataFrame:
    if trained.labels is None:
        return pd.DataFrame({f"predicted {name}": outputs.tolist()})
    best = outputs.max(-1)
    found = {f"predicted {name}": [trained.labels[each] for each in best.indices.tolist()]}
    return pd.DataFrame({**found, "probability": [round(each, 4) for each in best.values.tolist()]})


def predict_table(trained: Trained, path: Path) -> Predictions:
    """Predict the target for each row of a CSV file with the columns that the network was trained on."""
    encoding, frame = trained.encoding, read_fields(path)
    target = encoding.target
    absent = [column.name for column in encoding.columns if column.name not in frame]
    if absent:
        raise LabError(f"{path} lacks the columns {', '.join(absent)}, which the run was trained on")
    try:
        codes = encoding.codes(frame)
    except (ValueError, TypeError) as error:
        raise LabError(f"{path} has a word in a column of numbers: {error}") from None
    if not len(frame):
        raise LabError(f"{path} has no row under its header")
    for column, values in zip(encoding.columns, codes.T, strict=True):
        if (large := values.abs() > LARGEST).any():
            line = frame.index[int(large.nonzero()[0])]
            raise LabError(f"{path}, line {line}: {column.name} is beyond {LARGEST:g}")
    notes = []
    for column, values in zip(encoding.columns, codes.T, strict=True):
        count = int((values < 0).sum() if column.levels else values.isnan().sum())
        if count:
            what = "words unknown from training, left out" if column.levels else "missing, set to the mean"
            notes.append(f"{what}: {column.name} {count}")
    rows = _chosen(trained, trained.outputs(codes), target.name)
    frame = frame.reset_index(drop=True)
    if target.name in frame:
        known = frame[target.name][~frame[target.name].str.lower().isin(ABSENT)]
        said = _success(rows.iloc[known.index, 0], known, classes=bool(target.levels))
        notes += [f"{said} on the {len(known)} rows that have {target.name}"] if said else []
    if twice := [name for name in rows if name in frame]:
        raise LabError(
            f"{path} has a column {twice[0]!r} already, which is written here: rename or remove it"
        )
    return Predictions(frame.join(rows), notes)


def _success(predicted: pd.Series, fields: pd.Series, *, classes: bool) -> str | None:
    if classes and len(fields):
        return f"accuracy {100 * (predicted == fields).mean():.1f} %"
    truth = pd.to_numeric(fields, errors="coerce")
    if truth.isna().any() or truth.empty:
        return None
    return f"root mean squared error {((predicted - truth) ** 2).mean() ** 0.5:.4g}"


def predict_images(trained: Trained, path: Path) -> Predictions:
    """Predict the class of an image, or of every image below a folder."""
    from .tasks.folders import evaluation_transform, is_image, load_image

    files = [path] if path.is_file() else sorted(each for each in path.rglob("*") if each.is_file())
    files = [each for each in files if is_image(each.name)]
    if not files:
        raise LabError(f"{path} holds no image")
    transform = evaluation_transform(trained.recipe["shape"][-1])
    outputs = [
        trained.outputs(torch.stack([transform(load_image(each)) for each in files[start : start + 128]]))
        for start in range(0, len(files), 128)
    ]
    rows = _chosen(trained, torch.cat(outputs), "class")
    rows.insert(0, "file", [os.path.relpath(each, path if path.is_dir() else path.parent) for each in files])
    return Predictions(rows, [])


def predict_text(trained: Trained, path: Path, count: int, seed: int = 0) -> Predictions:
    """Continue a text by symbols that are drawn from the predicted probabilities."""
    labels, level = trained.recipe["labels"], trained.recipe["level"]
    numbers = {symbol: number for number, symbol in enumerate(labels)}
    start = read_text(path).rstrip("\n")
    text = list(tokens(start, level))
    if level == "word":
        text.pop()  # the end of the line, which is to be continued
    known = [numbers.get(symbol, numbers.get(UNKNOWN)) for symbol in text]
    history = [number for number in known if number is not None]
    if not history:
        raise LabError(f"{path} has no symbol that the run was trained on")
    notes = [f"symbols unknown from training, left out: {len(known) - len(history)}"]
    random = torch.Generator().manual_seed(seed)
    drawn: list[int] = []
    for _ in range(count):
        window = torch.tensor([history[-trained.recipe["window"] :]])
        chances = trained.outputs(window)[0, -1]
        drawn.append(int(torch.multinomial(chances, 1, generator=random)))
        history.append(drawn[-1])
    between = "" if level == "char" else " "
    continued = between.join(labels[number] for number in drawn)
    return Predictions(
        pd.DataFrame({"continuation": [start + between + continued]}),
        notes if len(known) > len(history) else [],
    )


def predict(trained: Trained, path: Path, count: int) -> Predictions:
    """Predict for a user's file or folder."""
    if not path.exists():
        raise LabError(f"there is no {path}: check the name")
    if trained.kind == "text":
        return predict_text(trained, path, count)
    return {"table": predict_table, "images": predict_images}[trained.kind](trained, path)
