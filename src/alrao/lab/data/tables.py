"""Tables of numbers to predict a number from: scikit-learn's diabetes, or a CSV file."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import StringIO
from math import nan
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..errors import LabError, missing, unknown
from ..seeds import generator
from .places import short_digest
from .text import read_text

__all__ = [
    "LEAST_ROWS",
    "MOST_LEVELS",
    "Column",
    "Prepared",
    "Table",
    "diabetes",
    "prepare",
    "read_csv",
    "split",
]

LEAST_ROWS = 20
"""A table needs so many, to be split."""
MOST_LEVELS = 20
"""A column of text may have so many different values; each becomes a column of zeros and ones."""
LARGEST = 1e100
ABSENT = frozenset({"", "na", "n/a", "nan", "null", "none", "?"})
"""What stands for a missing number, in any case."""


@dataclass(frozen=True)
class Column:
    """A column to predict from: ``numbers``, nan where one is missing, or ``words``."""

    name: str
    numbers: Tensor | None = None
    words: Sequence[str] = ()


@dataclass(frozen=True)
class Table:
    """Columns to predict from, and the one to predict, in double precision."""

    source: str
    columns: Sequence[Column]
    target_name: str
    target: Tensor

    def __len__(self) -> int:
        return len(self.target)

    @property
    def identity(self) -> str:
        """A digest of all that is in it."""
        contents = [
            (column.name, column.words if column.numbers is None else column.numbers.tolist())
            for column in self.columns
        ]
        return short_digest(contents, self.target_name, self.target.tolist())


def diabetes() -> Table:
    """scikit-learn's diabetes: 442 patients, 10 measurements, the progress of the disease after a year."""
    try:
        from sklearn.datasets import load_diabetes  # type: ignore[import-untyped]
    except ImportError:
        raise missing("scikit-learn", "lab", "the task regression without --data") from None
    data = load_diabetes(scaled=False)
    numbers = torch.from_numpy(data.data).double()
    columns = [Column(name, numbers[:, i]) for i, name in enumerate(data.feature_names)]
    return Table("scikit-learn's diabetes", columns, "progression", torch.from_numpy(data.target).double())


def read_csv(path: Path, target: str | None) -> Table:
    """A CSV file whose first line names the columns; they are separated by commas, or semicolons, or tabs.

    A column is of numbers if all its fields are, missing ones aside, and of words otherwise.

    Raises:
        LabError: there is no such file, it is damaged, or it cannot be learnt from.
    """
    names, rows = _rows(path)
    if target is None:
        raise LabError(f"{path}: name the column to predict with --target; there are: {', '.join(names)}")
    if target not in names:
        raise unknown("column", target, names)
    if len(rows) < LEAST_ROWS:
        raise LabError(f"{path} has {len(rows)} rows under its header, and at least {LEAST_ROWS} are needed")
    if len(names) < 2:
        raise LabError(f"{path} has no column to predict {target} from")
    lines = [line for line, _ in rows]
    fields = dict(zip(names, zip(*(row for _, row in rows), strict=True), strict=True))
    values = _target(path, target, fields.pop(target), lines)
    return Table(path.name, [_column(path, name, fields[name], lines) for name in fields], target, values)


def _rows(path: Path) -> tuple[list[str], list[tuple[int, list[str]]]]:
    """The names of the columns, and each row with the number of its line."""
    text = read_text(path)
    header = text.lstrip().partition("\n")[0]
    separator = next((each for each in ",;\t" if each in header), ",")
    reader = csv.reader(StringIO(text, newline=""), delimiter=separator, skipinitialspace=True, strict=True)
    try:
        every = [(reader.line_num, [field.strip() for field in row]) for row in reader]
    except csv.Error as error:
        raise LabError(f"{path}, line {reader.line_num}: {error}") from None
    (line, names), *rows = [(line, row) for line, row in every if any(row)]
    if all(_is_number(name) for name in names):
        raise LabError(f"{path}, line {line}: these are numbers; the first line must name the columns")
    names = [name or f"column {i}" for i, name in enumerate(names, start=1)]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise LabError(f"{path}, line {line}: more than one column has the name {twice[0]}: rename one")
    for line, row in rows:
        if len(row) != len(names):
            raise LabError(f"{path}, line {line}: {len(row)} fields, and the header has {len(names)}")
    return names, rows


def _number(field: str) -> float:
    """The number that a field is, nan if missing; ValueError for anything else."""
    if field.lower() in ABSENT:
        return nan
    if "_" in field:  # digits grouped as in a program: of Python, not of CSV files
        raise ValueError(field)
    return float(field)


def _is_number(field: str) -> bool:
    try:
        return _number(field) == _number(field)
    except ValueError:
        return False


def _is_word(field: str) -> bool:
    return not _is_number(field) and field.lower() not in ABSENT


def _target(path: Path, name: str, fields: Sequence[str], lines: Sequence[int]) -> Tensor:
    for field, line in zip(fields, lines, strict=True):
        if not _is_number(field):
            what = f"is {field!r}, which is no number" if _is_word(field) else "is missing"
            raise LabError(f"{path}, line {line}: {name}, which is to be predicted, {what}")
    return _tensor(path, name, [_number(field) for field in fields], lines)


def _column(path: Path, name: str, fields: Sequence[str], lines: Sequence[int]) -> Column:
    strange = next((i for i, field in enumerate(fields) if _is_word(field)), None)
    if strange is None:
        return Column(name, _tensor(path, name, [_number(field) for field in fields], lines))
    levels = len(set(fields))
    if levels > MOST_LEVELS:
        raise LabError(
            f"{path}, line {lines[strange]}: {fields[strange]!r} in column {name} is no number, and "
            f"{levels} different values are too many for classes ({MOST_LEVELS}): correct it or leave it out"
        )
    return Column(name, words=tuple(fields))


def _tensor(path: Path, name: str, numbers: Sequence[float], lines: Sequence[int]) -> Tensor:
    for number, line in zip(numbers, lines, strict=True):
        if abs(number) > LARGEST:
            raise LabError(f"{path}, line {line}: {name} is {number:g}, beyond {LARGEST:g}")
    return torch.tensor(numbers, dtype=torch.double)


def split(rows: int) -> dict[str, Tensor]:
    """Which rows are to train (70 %), to validate and to test (15 % each): the same for every run."""
    order = torch.randperm(rows, generator=generator("table", rows))
    held_out = rows * 15 // 100
    sizes = {"train": rows - 2 * held_out, "valid": held_out, "test": held_out}
    return dict(zip(sizes, order.split(list(sizes.values())), strict=True))


@dataclass(frozen=True)
class Prepared:
    """A table as tensors in single precision, and what was done to it."""

    inputs: Tensor
    targets: Tensor
    """One column, with mean 0 and deviation 1 on the training rows."""
    notes: Mapping[str, Any]


def prepare(table: Table, train: Tensor) -> Prepared:
    """Make inputs and targets of a table, by what its training rows tell.

    A column of numbers gets mean 0 and deviation 1 on the training rows, and its missing ones that mean. Each
    word of a column of words becomes a column of zeros and ones; a word that no training row has is zero in
    all of them. Columns that are constant on the training rows are left out.

    Raises:
        LabError: nothing is left to predict from, or nothing to predict.
    """
    inputs, imputed, encoded, constant = [], {}, {}, []
    for column in table.columns:
        if column.numbers is None:
            found = _zeros_and_ones(column.words, train)
            encoded[column.name] = found.shape[1]
        else:
            found = _standardised(column.numbers, train)
            if absent := int(column.numbers.isnan().sum()):
                imputed[column.name] = absent
        inputs.append(found)
        if not found.shape[1]:
            constant.append(column.name)
    target = _standardised(table.target, train)
    if not target.shape[1]:
        raise LabError(f"{table.source}: {table.target_name} is constant on the {len(train)} training rows")
    if len(constant) == len(inputs):
        raise LabError(f"{table.source}: all columns to predict from are constant on the training rows")
    said = {"missing, set to the mean": imputed, "classes": encoded, "left out, constant": constant}
    notes = {what: which for what, which in said.items() if which}
    return Prepared(torch.cat(inputs, 1).float(), target.float(), notes)


def _standardised(numbers: Tensor, train: Tensor) -> Tensor:
    """The column, or none where its training rows are constant."""
    known = numbers[train][~numbers[train].isnan()]
    if not len(known) or (known == known[0]).all():
        return numbers.new_empty(len(numbers), 0)
    # Relative to one of the numbers, then to their spread: exact also for a small spread around a large mean.
    origin, spread = known[0], (known - known[0]).abs().max()
    known = (known - origin) / spread
    column = ((numbers - origin) / spread - known.mean()) / known.std(correction=0)
    return column.nan_to_num(nan=0.0)[:, None]


def _zeros_and_ones(words: Sequence[str], train: Tensor) -> Tensor:
    """A column for each word of the training rows, or none where there is only one."""
    levels = sorted({words[row] for row in train.tolist()})
    if len(levels) < 2:
        return torch.empty(len(words), 0, dtype=torch.double)
    return torch.tensor([[float(word == level) for level in levels] for word in words], dtype=torch.double)
