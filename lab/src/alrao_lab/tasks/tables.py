"""Rows of numbers, of a CSV file or shipped by scikit-learn, with numbers or classes to predict."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar

import pandas as pd  # type: ignore[import-untyped]
import torch
from torch import Tensor, nn

import alrao

from ..errors import LabError, unknown
from ..seeds import generator
from ..settings import Settings
from ..zoo.small import mlp
from .columns import ABSENT, Column, Encoder, Encoding
from .files import read_text, shipped, short_digest
from .task import Budget, Classification, Data, InMemory, Part

LEAST_ROWS = 20
"""Rows that a table needs, to be split."""
MOST_LEVELS = 20
"""Different values that a column of words may have; each becomes a column of zeros and ones."""
LARGEST = 1e100
MOST_CLASSES = 10
"""Different whole numbers in a target up to which they are classes, unless the task is named."""
HIDDEN = 64
FREQUENCIES = 64
"""Random waves that stand for a place in a picture."""
PICTURE_SIDE = 4
"""One pixel of so many, in each direction, is used of a picture."""


@dataclass(frozen=True)
class Table:
    """Columns to predict from, of numbers (nan where one is missing) or of words, and the target."""

    source: str
    inputs: pd.DataFrame
    target: pd.Series
    notes: dict[str, Any] = field(default_factory=dict)
    """What was left out."""

    def __len__(self) -> int:
        return len(self.target)

    @property
    def identity(self) -> str:
        """A digest of the content."""
        columns = [(name, column.tolist()) for name, column in self.inputs.items()]
        contents = [(name, tuple(c) if isinstance(c[0], str) else c) for name, c in columns]
        return short_digest(contents, self.target.name, self.target.tolist())


def diabetes() -> Table:
    """scikit-learn's diabetes: 442 patients, 10 measurements, the progression of the disease after a year."""
    data = shipped("load_diabetes", scaled=False, as_frame=True)
    return Table("scikit-learn's diabetes", data.data.astype(float), data.target.rename("progression"))


def read_csv(path: Path, target: str | None, *, classes: bool = False) -> Table:
    """Read a CSV file whose first line names the columns, separated by commas, semicolons or tabs.

    A column holds numbers if every field is a number or missing, and words otherwise; those of many different
    words, such as names, are left out. A line with too few fields lacks the last ones. Rows whose target is
    missing are left out.
    """
    frame = read_fields(path)
    names = list(frame.columns)
    if target is None:
        raise LabError(f"{path}: name the column to predict with --target; there are: {', '.join(names)}")
    if target not in names:
        raise unknown("column", target, names)
    missing = _absent(frame[target])
    frame, without = frame[~missing], int(missing.sum())
    if len(frame) < LEAST_ROWS:
        also = f", {without} more without {target}" if without else ""
        raise LabError(
            f"{path} has {len(frame)} rows under its header{also}, and at least {LEAST_ROWS} are needed"
        )
    if len(names) < 2:
        raise LabError(f"{path} has no column to predict {target} from")
    columns = {name: _column(path, frame[name]) for name in names if name != target}
    many = {name: frame[name].nunique() for name, column in columns.items() if column is None}
    kept = {name: column for name, column in columns.items() if column is not None}
    if not kept:
        raise LabError(f"{path} has only columns of many different words to predict {target} from")
    values = frame[target] if classes else _target(path, frame[target])
    if classes and 2 * (different := values.nunique()) > len(frame):
        raise LabError(
            f"{path} has {different} different values of {target} in {len(frame)} rows, too many for "
            "classes: name another column with --target"
        )
    notes = {f"rows without {target}, left out": without, "left out, different words": many}
    return Table(
        path.name, pd.DataFrame(kept), values, {what: which for what, which in notes.items() if which}
    )


def kind_of(path: Path, target: str | None) -> str:
    """Return the task that fits the target of a CSV file: words or few whole numbers are classes."""
    frame = read_fields(path)
    if target is None or target not in frame:
        read_csv(path, target)  # which names the columns
    known = frame.loc[~_absent(frame[target]), target]
    numbers = pd.to_numeric(known, errors="coerce")
    whole = (numbers == numbers.round()).all() and known.nunique() <= MOST_CLASSES
    return "classification" if numbers.isna().any() or whole else "regression"


def _absent(fields: pd.Series) -> pd.Series:
    return fields.str.lower().isin(ABSENT)


def read_fields(path: Path) -> pd.DataFrame:
    """All fields as text, under the names of the columns; the index is the number of the line."""
    text = read_text(path)
    body = text.lstrip("\n")
    first = body.partition("\n")[0]
    try:
        frame = pd.read_csv(
            StringIO(body),
            sep=next((each for each in ",;\t" if each in first), ","),
            header=None,
            dtype=str,
            keep_default_na=False,
            skipinitialspace=True,
            skip_blank_lines=False,
        ).apply(lambda column: column.str.strip())
    except pd.errors.ParserError as error:
        reason = str(error).strip().removeprefix("Error tokenizing data. C error: ")
        raise LabError(f"{path} is not a table: {reason[0].lower()}{reason[1:]}") from None
    frame.index += len(text) - len(body) + 1
    frame = frame[(frame != "").any(axis=1)]
    header = frame.iloc[0]
    if not pd.to_numeric(header, errors="coerce").isna().any():
        raise LabError(f"{path}, line {header.name}: these are numbers; the first line must name the columns")
    names = [name or f"column {number}" for number, name in enumerate(header, start=1)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise LabError(f"{path}, line {header.name}: more than one column is named {twice[0]}: rename one")
    return frame.iloc[1:].set_axis(names, axis=1)


def _column(path: Path, fields: pd.Series) -> pd.Series | None:
    """The numbers of a column, or its words; None if these are too many to tell apart."""
    name = fields.name
    words = fields[~_absent(fields) & pd.to_numeric(fields, errors="coerce").isna()]
    if not len(words):
        return _numbers(path, fields)
    if (levels := fields.nunique()) <= MOST_LEVELS:
        return fields
    if 2 * len(words) > len(fields):
        return None
    raise LabError(
        f"{path}, line {words.index[0]}: {words.iloc[0]!r} in column {name} is not a number, as most of its "
        f"fields are, and {levels} different values are too many for classes ({MOST_LEVELS}): correct it, or "
        "remove the column"
    )


def _numbers(path: Path, fields: pd.Series) -> pd.Series:
    numbers = fields.mask(_absent(fields)).astype(float)
    large = numbers[numbers.abs() > LARGEST]
    if len(large):
        raise LabError(
            f"{path}, line {large.index[0]}: {fields.name} is {large.iloc[0]:g}, beyond {LARGEST:g}"
        )
    return numbers


def _target(path: Path, fields: pd.Series) -> pd.Series:
    wrong = fields[pd.to_numeric(fields, errors="coerce").isna()]
    if len(wrong):
        raise LabError(
            f"{path}, line {wrong.index[0]}: the target {fields.name} is {wrong.iloc[0]!r}, not a number; "
            f"for classes: alrao train {path} --target {fields.name}"
        )
    return _numbers(path, fields)


def split(rows: int, settings: Settings) -> dict[str, Tensor]:
    """Split rows into training (70 %), validation and test (15 % each), by a constant seed or the run's."""
    name = ("table", rows, settings.seed) if settings.resplit else ("table", rows)
    order = torch.randperm(rows, generator=generator(*name))
    held_out = rows * 15 // 100
    sizes = {"train": rows - 2 * held_out, "valid": held_out, "test": held_out}
    parts = dict(zip(sizes, order.split(list(sizes.values())), strict=True))
    return {**parts, "train": parts["train"][: settings.train_size]}


def _absent_words(column: pd.Series) -> int:
    return 0 if pd.api.types.is_numeric_dtype(column) else int(_absent(column).sum())


def fit(table: Table, train: Tensor) -> tuple[Encoding, dict[str, Any]]:
    """Fit the columns of a table to its training rows; those that are constant there are left out.

    A target of numbers is standardised as the inputs are; of classes, all words of the table are known.

    Returns:
        The encoding, and notes on the columns that were changed.
    """
    found = {name: Column.fit(column, train) for name, column in table.inputs.items()}
    columns = tuple(column for column in found.values() if column is not None)
    if not columns:
        raise LabError(f"{table.source}: all columns to predict from are constant on the training rows")
    target = Column.fit(table.target, train)
    if target is None:
        raise LabError(f"{table.source}: {table.target.name} is constant on the {len(train)} training rows")
    if target.levels:
        target = Column(target.name, tuple(sorted(table.target.unique())))
    notes = {
        **table.notes,
        "missing, set to the mean": {
            name: int(count) for name, count in table.inputs.isna().sum().items() if count
        },
        "missing, a word of their own": {
            name: count
            for name, column in table.inputs.items()
            if found[name] is not None and (count := _absent_words(column))
        },
        "classes": {column.name: column.width for column in columns if column.levels},
        "left out, constant": [name for name, column in found.items() if column is None],
    }
    return Encoding(columns, target), {what: which for what, which in notes.items() if which}


class Rows(InMemory):
    """A network with two hidden layers on rows of numbers."""

    models: ClassVar[tuple[str, ...]] = ("mlp",)

    encoding: Encoding | None = None
    """Of the columns of a table that has names for them."""

    def network(self) -> nn.Module:
        sizes = self.about["inputs"], self.about["outputs"]
        return mlp(*sizes, self.settings.width, hidden=(HIDDEN, HIDDEN))

    def preparation(self) -> dict[str, Any] | None:
        if self.encoding is None:
            return None
        sizes = {name: self.about[name] for name in ("inputs", "outputs")}
        return {"input": "table", "about": sizes, **self.encoding.state()}

    def encoded(self, table: Table, settings: Settings) -> Data:
        """Return the data of a table whose columns have names."""
        rows = split(len(table), settings)
        self.encoding, notes = fit(table, rows["train"])
        target = self.encoding.target
        inputs = Encoder(self.encoding.columns)(self.encoding.codes(table.inputs))
        codes = target.codes(table.target)
        targets = codes.long() if target.levels else target.standard(codes)[:, None].float()
        about = {"source": table.source, "target": target.name, **notes}
        if target.levels:
            about["labels"] = list(target.levels)
        return data_of(inputs, targets, rows, table.identity, about)


class Numbers(Rows):
    r"""A Normal distribution of variance 1 around the network's output, for the standardised target.

    Trained with the gradient of :math:`-\log p(y)`: for a plain network that of half the squared error, for
    an Alrao model that of the mixture's loss. Measured, for both, by the mean squared error of the prediction
    and by :math:`R^2 = 1 - \mathrm{mse} / \mathrm{var}(y)`.
    """

    likelihood = "gaussian"
    measures: tuple[str, ...] = ("loss", "r2")

    criterion = alrao.MixtureMSELoss()

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        loss: Tensor = self.criterion(outputs, targets)
        return loss

    def score(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        return {
            "loss": (outputs - targets).square().sum(),
            "targets": targets.sum(),
            "squares": targets.square().sum(),
            "count": torch.tensor(targets.numel()),
        }

    def measure(self, sums: Mapping[str, float]) -> dict[str, float]:
        loss, mean, square = (sums[name] / sums["count"] for name in ("loss", "targets", "squares"))
        variance = square - mean**2
        return {"loss": loss, "r2": 1 - loss / variance if variance > 0 else 0.0}


def data_of(
    inputs: Tensor, targets: Tensor, rows: Mapping[str, Tensor], identity: str, about: Mapping[str, Any]
) -> Data:
    """Return the parts of a table, given the rows of each."""
    parts = {name: Part(inputs[which], targets[which]) for name, which in rows.items()}
    outputs = targets.shape[1] if targets.ndim > 1 else int(targets.max()) + 1
    return parts, identity, {"inputs": inputs.shape[1], "outputs": outputs, **about}


def standardised(columns: Tensor, train: Tensor) -> Tensor:
    """Return the columns with mean 0 and deviation 1 over the training rows."""
    mean, deviation = columns[train].mean(0), columns[train].std(0, correction=0)
    return ((columns - mean) / deviation).float()


class Regression(Numbers):
    """scikit-learn's diabetes, or your own CSV file (--data FILE --target COLUMN)."""

    mini = Budget(epochs=100, batch=32, seeds=3)
    paper = Budget(epochs=300, batch=32, seeds=10)  # not in the paper
    options = frozenset({"resplit", "target", "width"})

    def read(self, settings: Settings) -> Data:
        if settings.data is not None:  # $ALRAO_DATA, a directory for other tasks, names no table
            table = read_csv(Path(settings.data).expanduser(), settings.target)
        elif settings.target is not None:
            raise LabError(f"--target {settings.target} needs a file: name the file with --data FILE")
        else:
            table = diabetes()
        return self.encoded(table, settings)


class OwnClasses(Classification, Rows):
    """Your own CSV file with classes to predict (--data FILE --target COLUMN)."""

    mini = Budget(epochs=50, batch=32, seeds=3)
    paper = Budget(epochs=200, batch=32, seeds=10)  # not in the paper
    options = frozenset({"resplit", "target", "width"})

    def read(self, settings: Settings) -> Data:
        if settings.data is None:
            raise LabError("no data: name a CSV file of your own with --data FILE")
        path = Path(settings.data).expanduser()
        return self.encoded(read_csv(path, settings.target, classes=True), settings)


class _Labelled(Classification, Rows):
    mini = Budget(epochs=50, batch=16, seeds=3)
    paper = Budget(epochs=200, batch=16, seeds=10)  # not in the paper
    options = frozenset({"resplit", "width"})
    source: ClassVar[str]
    """The function of scikit-learn that loads it."""

    def read(self, settings: Settings) -> Data:
        table = shipped(self.source)
        rows = split(len(table.target), settings)
        inputs = standardised(torch.from_numpy(table.data), rows["train"])
        identity = short_digest(table.data.tobytes(), table.target.tolist())
        about = {"source": "scikit-learn", "classes": len(table.target_names)}
        return data_of(inputs, torch.from_numpy(table.target).long(), rows, identity, about)


class Cancer(_Labelled):
    """scikit-learn's breast cancer, two classes; no download."""

    source = "load_breast_cancer"


class Wine(_Labelled):
    """scikit-learn's wines, three classes; no download."""

    source = "load_wine"


class Pixels(Numbers):
    """The colours of a picture, by their place."""

    mini = Budget(epochs=16, batch=256, seeds=3)
    paper = Budget(epochs=100, batch=256, seeds=10)  # not in the paper
    options = frozenset({"width"})
    file: ClassVar[str]

    @abstractmethod
    def places(self, height: int, width: int) -> Tensor:
        """Return what stands for each place."""

    def read(self, settings: Settings) -> Data:
        pixels = shipped("load_sample_image", self.file)
        colours = torch.tensor(pixels).double()[::PICTURE_SIDE, ::PICTURE_SIDE]
        height, width, _ = colours.shape
        rows = split(height * width, settings)
        made = self.places(height, width).double(), colours.reshape(-1, 3)
        inputs, targets = (standardised(each, rows["train"]) for each in made)
        about = {"source": f"scikit-learn's {self.file}"}
        return data_of(inputs, targets, rows, short_digest(pixels.tobytes()), about)


class Picture(Pixels):
    """scikit-learn's picture of a temple, the colour at a place; no download."""

    file = "china.jpg"

    def places(self, height: int, width: int) -> Tensor:
        """Return waves of random directions and lengths."""
        sides = torch.arange(height) / height, torch.arange(width) / height
        waves = 20 * torch.randn(2, FREQUENCIES, generator=generator("picture"), dtype=torch.double)
        angles = torch.cartesian_prod(*sides).double() @ waves
        return torch.cat([angles.sin(), angles.cos()], 1)
