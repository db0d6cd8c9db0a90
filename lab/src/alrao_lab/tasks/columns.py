"""How the columns of a table become numbers: fitted on training rows, stored and exported with a network."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import torch
from torch import Tensor, nn

ABSENT = ("", "na", "n/a", "nan", "null", "none", "?")
"""Spellings of a missing number, in lower case."""


@dataclass(frozen=True)
class Column:
    """A column of numbers, to be standardised, or of words, each of which becomes zeros and ones.

    A missing number becomes the mean of the training rows, and a word that they do not have zeros only. The
    statistics are relative to one of the numbers and to their spread: exact also for a small spread around a
    large mean.
    """

    name: str
    levels: tuple[str, ...] = ()
    """The words; none for a column of numbers."""
    origin: float = 0.0
    spread: float = 1.0
    mean: float = 0.0
    deviation: float = 1.0

    @classmethod
    def fit(cls, column: pd.Series, train: Tensor) -> Column | None:
        """Fit the training rows of a column; None if they are constant."""
        name = str(column.name)
        if not pd.api.types.is_numeric_dtype(column):
            levels = sorted(column.iloc[train.numpy()].unique())
            return cls(name, tuple(levels)) if len(levels) > 1 else None
        numbers = torch.tensor(column.to_numpy(float))[train]
        known = numbers[~numbers.isnan()]
        if not len(known) or (known == known[0]).all():
            return None
        origin, spread = known[0], (known - known[0]).abs().max()
        known = (known - origin) / spread
        return cls(name, (), *map(float, (origin, spread, known.mean(), known.std(correction=0))))

    @property
    def width(self) -> int:
        """The inputs of the network that it becomes."""
        return len(self.levels) or 1

    def codes(self, column: pd.Series) -> Tensor:
        """Return the numbers of a column (nan if missing), or the place of each word (-1 if unknown)."""
        if self.levels:
            return torch.from_numpy(pd.Index(self.levels).get_indexer(column.astype(str))).double()
        absent = column.astype(str).str.strip().str.lower().isin(ABSENT)
        return torch.from_numpy(pd.to_numeric(column.mask(absent)).to_numpy(np.double, copy=True))

    def standard(self, numbers: Tensor) -> Tensor:
        """Return standardised numbers; nan is the mean."""
        return (((numbers - self.origin) / self.spread - self.mean) / self.deviation).nan_to_num(nan=0.0)

    def original(self, standard: Tensor) -> Tensor:
        """Return the numbers that were standardised."""
        return (standard.double() * self.deviation + self.mean) * self.spread + self.origin


@dataclass(frozen=True)
class Encoding:
    """The columns that a network sees, and its target: a column of numbers, or classes by their words."""

    columns: tuple[Column, ...]
    target: Column

    def state(self) -> dict[str, Any]:
        """Return it as a checkpoint or JSON holds it."""
        return {"columns": [asdict(column) for column in self.columns], "target": asdict(self.target)}

    @classmethod
    def of(cls, state: dict[str, Any]) -> Encoding:
        made = [
            Column(**{**each, "levels": tuple(each["levels"])})
            for each in (*state["columns"], state["target"])
        ]
        return cls(tuple(made[:-1]), made[-1])

    def codes(self, table: pd.DataFrame) -> Tensor:
        """Return the columns of a table as numbers, a row each."""
        return torch.stack([column.codes(table[column.name]) for column in self.columns], 1)


class Encoder(nn.Module):
    """Turns codes (rows, columns) in double precision into the inputs of a network."""

    def __init__(self, columns: tuple[Column, ...]) -> None:
        super().__init__()
        self.columns = columns

    def forward(self, codes: Tensor) -> Tensor:
        parts = []
        for number, column in enumerate(self.columns):
            values = codes[:, number : number + 1]
            levels = torch.arange(len(column.levels), dtype=values.dtype, device=values.device)
            parts.append((values == levels).float() if column.levels else column.standard(values).float())
        return torch.cat(parts, 1)
