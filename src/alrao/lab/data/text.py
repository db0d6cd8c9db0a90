"""Texts as streams of symbols: the Penn Treebank's three files, or any text file."""

from __future__ import annotations

import codecs
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..errors import LabError, unknown
from .files import data_path, readable

LEVELS = ("char", "word")
PTB_FILES = {"train": "ptb.train.txt", "valid": "ptb.valid.txt", "test": "ptb.test.txt"}
PTB_PLACES = ("", "ptb", "simple-examples/data")
"""Subfolders to look for the files in; the last is in the distributed archive."""

UNKNOWN, END = "<unk>", "<eos>"


@dataclass(frozen=True)
class Parts:
    """The symbols of each part of an experiment, their file or folder, and which text is which part."""

    train: Sequence[str]
    valid: Sequence[str]
    test: Sequence[str]
    place: Path
    source: str


def read_text(path: Path) -> str:
    """Read a text file; line ends become newlines, and a byte-order mark is removed."""
    if not path.exists():
        raise LabError(f"there is no file {path}: check the name, or point at it with --data FILE")
    with readable(path):
        if path.is_dir():
            inside = sorted(each.name for each in path.iterdir() if each.is_file())[:5]
            hint = f"; in it are {', '.join(inside)}" if inside else ""
            raise LabError(f"{path} is a directory, and a file is needed: name the file itself{hint}")
        data = path.read_bytes()
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise LabError(f"{path} is not UTF-8 but UTF-16: convert it, as with `iconv -f UTF-16 -t UTF-8`")
    if b"\0" in data:
        raise LabError(f"{path} is a binary file, and plain text is needed")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise LabError(
            f"{path} is not UTF-8 (byte 0x{data[error.start]:02x} on line {line}): convert it, as with "
            "`iconv -f LATIN1 -t UTF-8`"
        ) from None
    if not text.strip():
        raise LabError(f"{path} is empty")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def ptb(data: str | None, level: str, *, mini: bool) -> Parts:
    """Read the Penn Treebank's three files, in their usual pre-processed form.

    ``mini`` does without the training file: it trains on the validation file, validates on the first half of
    the test file and tests on its second half.
    """
    names = {part: name for part, name in PTB_FILES.items() if not (mini and part == "train")}
    folder = _ptb_folder(data, list(names.values()))
    texts = {part: tokens(read_text(folder / name), level) for part, name in names.items()}
    if not mini:
        source = "; ".join(f"{part}: {name}" for part, name in names.items())
        return Parts(**texts, place=folder, source=source)
    test = texts["test"]
    half = len(test) // 2
    source = "train: ptb.valid.txt; valid: the first half of ptb.test.txt; test: its second half"
    return Parts(texts["valid"], test[:half], test[half:], folder, source)


def _ptb_folder(data: str | None, names: Sequence[str]) -> Path:
    remedy = (
        f"put {', '.join(names)} (the usual text, as in simple-examples.tgz of the RNNLM toolkit) into a "
        "directory and name it with --data DIR or $ALRAO_DATA"
    )
    root = data_path(data, remedy)
    if root.is_file():
        raise LabError(f"{root} is a file, and a directory is needed: {remedy}")
    absent = {
        folder: [name for name in names if not (folder / name).exists()]
        for folder in (root / place for place in PTB_PLACES)
    }
    folder = min(absent, key=lambda folder: len(absent[folder]))
    if not absent[folder]:
        return folder
    everywhere = f"{root} (nor in its {' or '.join(PTB_PLACES[1:])})"
    looked = everywhere if len(absent[folder]) == len(names) else folder
    also = "; --budget mini does without the training file" if absent[folder] == [PTB_FILES["train"]] else ""
    raise LabError(f"there is no {', no '.join(absent[folder])} in {looked}: {remedy}{also}")


def split(path: Path, level: str) -> Parts:
    """Split a text file: 90 % of its symbols for training, 5 % for validation, the last 5 % for testing."""
    text = tokens(read_text(path), level)
    valid, test = len(text) * 90 // 100, len(text) * 95 // 100
    source = f"train: the first 90 % of {path.name}; valid: the next 5 %; test: the last 5 %"
    return Parts(text[:valid], text[valid:test], text[test:], path, source)


def tokens(text: str, level: str) -> Sequence[str]:
    """Return the symbols of a text.

    Characters are those of the file, blanks and line ends included; a ``<unk>`` in it is five characters.
    The usual Penn Treebank files have 50. Words are separated by blanks, with ``<eos>`` for each line end;
    the Penn Treebank's training file has 9,999, the paper's number, and ``<eos>``.
    """
    if level == "char":
        return text
    if level != "word":
        raise unknown("level", level, LEVELS)
    lines = text.removesuffix("\n").split("\n")
    return [token for line in lines for token in (*line.split(), END)]


@dataclass(frozen=True)
class Vocabulary:
    """The symbols that a network distinguishes, the most frequent first."""

    symbols: tuple[str, ...]

    @classmethod
    def of(
        cls, train: Sequence[str], *others: Sequence[str], least: int = 1, most: int | None = None
    ) -> Vocabulary:
        """Collect the symbols of the training text.

        ``<unk>``, which stands for all other symbols, is included if the training text has it or if there are
        others.

        Symbols that occur less than ``least`` times are not included, and at most ``most``, with ``<unk>``.
        """
        counts = Counter(train)
        ranked = sorted(counts, key=lambda symbol: (-counts[symbol], symbol))
        known = [symbol for symbol in ranked if counts[symbol] >= least][:most]
        if not set().union(train, *others) <= set(known) and UNKNOWN not in known:
            known = [*known[: None if most is None else most - 1], UNKNOWN]
        return cls(tuple(known))

    def __len__(self) -> int:
        return len(self.symbols)

    def encode(self, text: Sequence[str]) -> Tensor:
        numbers = {symbol: number for number, symbol in enumerate(self.symbols)}
        other = numbers.get(UNKNOWN, -1)
        encoded = torch.tensor([numbers.get(symbol, other) for symbol in text], dtype=torch.long)
        if (encoded < 0).any():
            raise ValueError("the text has symbols that are not in the vocabulary, which lacks <unk>")
        return encoded


class Streams:
    """A text cut into parallel streams, read side by side, ``window`` symbols at a time.

    Stream ``b`` of ``B`` predicts the symbols ``b L + 1 .. (b + 1) L`` of the text, with the largest possible
    length ``L``. Each symbol is predicted at most once, from those right before it. The first symbol and at
    most ``B - 1`` at the end are not predicted.
    """

    def __init__(self, text: Tensor, count: int, window: int) -> None:
        length = (len(text) - 1) // count
        if length < 1:
            raise ValueError(f"{len(text)} symbols are too few for {count} streams")
        self.inputs = text[: count * length].view(count, length)
        self.targets = text[1 : count * length + 1].view(count, length)
        self.window = window

    def __len__(self) -> int:
        return -(-self.inputs.shape[1] // self.window)

    def batches(self, start: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield inputs (streams, window), and targets in one row, from batch ``start`` on."""
        for first in range(start * self.window, self.inputs.shape[1], self.window):
            now = slice(first, first + self.window)
            yield self.inputs[:, now], self.targets[:, now].flatten()
