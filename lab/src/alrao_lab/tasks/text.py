"""Language modelling: the next symbol of the Penn Treebank, or of any text file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import cycle, islice
from math import exp, inf, log
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from ..errors import LabError
from ..seeds import generator
from ..settings import Settings
from ..zoo.modern import NGramLM, RotaryLM
from ..zoo.paper import RecurrentLM
from ..zoo.small import TransformerLM, scaled
from .files import data_path, read_text, short_digest
from .task import Batch, Budget, Classification, pretrained

PTB_FILES = {"train": "ptb.train.txt", "valid": "ptb.valid.txt", "test": "ptb.test.txt"}
PTB_PLACES = ("", "ptb", "simple-examples/data")
"""Subfolders to look for the files in; the last is in the distributed archive."""

UNKNOWN, END = "<unk>", "<eos>"
SHAKESPEARE = "tinyshakespeare.txt"
WIKITEXT = ("wikitext-2.test.txt", "wikitext-2.valid.txt")
"""The smaller two of its three files: the first is trained on."""
NAMES = "names.txt"
WINDOW = 70
"""Symbols between truncations of back-propagation."""
EVALUATION_STREAMS = 20
DROPOUT = 0.2
CELLS: dict[str, type[nn.RNNBase]] = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}
MOST_WORDS = 10_000
"""Size of the vocabulary of a user's text; words that occur only once are not in it."""


Texts = tuple[dict[str, Sequence[str]], Path, str]
"""The symbols of each part, their file or folder, and which text is which part."""


def ptb(data: str | None, level: str, *, mini: bool) -> Texts:
    """Read the Penn Treebank's three files, in their usual pre-processed form.

    ``mini`` does without the training file: it trains on the validation file, validates on the first half of
    the test file and tests on its second half.
    """
    names = {part: name for part, name in PTB_FILES.items() if not (mini and part == "train")}
    folder = _ptb_folder(data, list(names.values()))
    if mini:
        return halved(folder, names["valid"], names["test"], level)
    texts = {part: tokens(read_text(folder / name), level) for part, name in names.items()}
    return texts, folder, "; ".join(f"{part}: {name}" for part, name in names.items())


def halved(folder: Path, train: str, other: str, level: str) -> Texts:
    """Read two files: one to train on, one whose halves are for validation and for testing."""
    first, second = (tokens(read_text(folder / name), level) for name in (train, other))
    half = len(second) // 2
    source = f"train: {train}; valid: the first half of {other}; test: its second half"
    return {"train": first, "valid": second[:half], "test": second[half:]}, folder, source


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


def split(path: Path, level: str) -> Texts:
    """Split a text file: 90 % of its symbols for training, 5 % for validation, the last 5 % for testing."""
    text = tokens(read_text(path), level)
    valid, test = len(text) * 90 // 100, len(text) * 95 // 100
    source = f"{path.name}, split 90/5/5"
    return {"train": text[:valid], "valid": text[valid:test], "test": text[test:]}, path, source


def tokens(text: str, level: str) -> Sequence[str]:
    """Return the symbols of a text.

    Characters are those of the file, blanks and line ends included; a ``<unk>`` in it is five characters.
    The usual Penn Treebank files have 50. Words are separated by blanks, with ``<eos>`` for each line end;
    the Penn Treebank's training file has 9,999, the paper's number, and ``<eos>``.
    """
    if level == "char":
        return text
    lines = text.removesuffix("\n").split("\n")
    return [token for line in lines for token in (*line.split(), END)]


def vocabulary(
    train: Sequence[str], *others: Sequence[str], least: int = 1, most: int | None = None
) -> list[str]:
    """Return the symbols that a network distinguishes: those of the training text, the most frequent first.

    ``<unk>``, which stands for all other symbols, is included if the training text has it or if there are
    others.

    Symbols that occur less than ``least`` times are not included, and at most ``most``, with ``<unk>``.
    """
    counts = Counter(train)
    ranked = sorted(counts, key=lambda symbol: (-counts[symbol], symbol))
    known = [symbol for symbol in ranked if counts[symbol] >= least][:most]
    if not set().union(train, *others) <= set(known) and UNKNOWN not in known:
        known = [*known[: None if most is None else most - 1], UNKNOWN]
    return known


def encode(text: Sequence[str], symbols: Sequence[str]) -> Tensor:
    """Return the number of each symbol; the symbols include ``<unk>`` if the text has others."""
    numbers = {symbol: number for number, symbol in enumerate(symbols)}
    return torch.tensor([numbers[symbol if symbol in numbers else UNKNOWN] for symbol in text])


def streams(text: Tensor, count: int, window: int) -> list[Batch]:
    """Cut a text into parallel streams, read side by side, ``window`` symbols at a time.

    Stream ``b`` of ``B`` predicts the symbols ``b L + 1 .. (b + 1) L`` of the text, with the largest possible
    length ``L``. Each symbol is predicted at most once, from those right before it. The first symbol and at
    most ``B - 1`` at the end are not predicted.

    Returns:
        Batches of inputs (streams, window), and targets in one row.
    """
    length = (len(text) - 1) // count
    whole = (text[first : first + count * length].view(count, length) for first in (0, 1))
    windows = zip(*(each.split(window, dim=1) for each in whole), strict=True)
    return [(inputs, targets.flatten()) for inputs, targets in windows]


class Text(Classification):
    """Your own text file, the next character or word (--data FILE).

    It is read in parallel streams, in the order of the file; the network's state is carried along. The state
    is fresh at the start of each epoch and each evaluation; no gradient flows through it. The batch
    size is the number of streams, and ``train_size`` the number of symbols to train on, from the start of the
    text. The seed only affects weights and dropout.
    """

    models: ClassVar[tuple[str, ...]] = ("lstm", "transformer", "gru", "rnn", "gpt", "rotary", "ngram")
    mini = Budget(epochs=8, batch=20, seeds=3)
    paper = Budget(epochs=200, batch=20, seeds=5)
    interval = (1e-3, 100.0)
    copies = 6
    options = frozenset({"level", "dropout", "dropout_everywhere", "width"})
    defaults: ClassVar = {"level": "char", "dropout": DROPOUT}
    limits: ClassVar[Mapping[str, Mapping[str, int]]] = {"word": {"least": 2, "most": MOST_WORDS}}
    """Of the vocabulary, by the level."""

    def read(self, settings: Settings, level: str) -> Texts:
        """Read the text and split it."""
        return split(data_path(settings.data, "name a text file of your own with --data FILE"), level)

    def load(self, settings: Settings, device: torch.device) -> Self:
        self.settings, self.device, self.level = settings, device, settings.level or "char"
        of_words = ("loss", "perplexity", "accuracy")
        self.measures = of_words if self.level == "word" else ("bits", "accuracy")
        texts, place, source = self.read(settings, self.level)
        limits = {"train": settings.train_size, "valid": settings.valid_size, "test": settings.test_size}
        texts = {part: text[: limits[part]] for part, text in texts.items()}
        most = self.limits.get(self.level, {})
        self.symbols = vocabulary(texts["train"], texts["valid"], texts["test"], **most)
        batch = settings.batch or self.batch(settings)
        counts = {"train": batch, "valid": EVALUATION_STREAMS, "test": EVALUATION_STREAMS}
        for part, text in texts.items():
            if len(text) <= counts[part]:
                remedy = "a longer text or a smaller --batch" if part == "train" else "a longer text"
                raise LabError(
                    f"{place}: {len(text)} symbols in the {part} part are too few for "
                    f"{counts[part]} streams: {remedy} is needed"
                )
        self.streams = {
            part: streams(encode(text, self.symbols).to(device), counts[part], WINDOW)
            for part, text in texts.items()
        }
        self.steps = len(self.streams["train"])
        self.identity = short_digest(*("\0".join(text).encode() for text in texts.values()))
        self.about = {
            "source": source,
            "level": self.level,
            "symbols": len(self.symbols),
            "streams": batch,
            "window": WINDOW,
            **{part: len(text) for part, text in texts.items()},
        }
        return self

    def preparation(self) -> dict[str, Any]:
        return {
            "input": "text",
            "about": {"symbols": len(self.symbols)},
            "labels": list(self.symbols),
            "level": self.level,
            "window": WINDOW,
        }

    def restore(self, settings: Settings, recipe: Mapping[str, Any]) -> None:
        super().restore(settings, recipe)
        self.symbols = list(recipe["labels"])

    def network(self) -> nn.Module:
        settings = self.settings
        if settings.model == "transformer":
            return TransformerLM(len(self.symbols), window=WINDOW, width=settings.width)
        if settings.model == "gpt":  # four layers of 192 units, a million weights
            return TransformerLM(len(self.symbols), 4, WINDOW, width=3 * settings.width)
        if settings.model == "rotary":
            return RotaryLM(len(self.symbols), WINDOW, size=scaled(144, settings.width, 8))
        if settings.model == "ngram":
            return NGramLM(len(self.symbols), hidden=scaled(200, settings.width))
        return RecurrentLM(
            len(self.symbols),
            cell=CELLS[settings.model or "lstm"],
            dropout=DROPOUT if settings.dropout is None else settings.dropout,
            dropout_everywhere=settings.dropout_everywhere,
            width=settings.width,
        )

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        return iter(self.streams["train"][start:])

    def evaluation(self, part: str) -> Iterator[Batch]:
        return iter(self.streams[part])

    def forward(self, model: nn.Module, inputs: Tensor, carry: Any) -> tuple[Tensor, Any]:
        outputs, state = model(inputs, carry)
        return outputs.flatten(0, 1), tuple(each.detach() for each in state)

    def measure(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Return the cross-entropy, in bits per character or nats per word, and the accuracy."""
        loss, accuracy = (sums[name] / sums["count"] for name in ("loss", "accuracy"))
        if self.level == "char":
            return {"bits": loss / log(2), "accuracy": accuracy}
        perplexity = exp(loss) if loss < 700 else loss - loss + inf  # nan remains nan
        return {"loss": loss, "perplexity": perplexity, "accuracy": accuracy}


class PennTreebank(Text):
    """Penn Treebank, the next character or word (--data)."""

    limits: ClassVar = {}

    def read(self, settings: Settings, level: str) -> Texts:
        return ptb(settings.data, level, mini=settings.budget == "mini")


class Shakespeare(Text):
    """tinyshakespeare.txt, the next character or word (--data)."""

    limits: ClassVar = {}

    def read(self, settings: Settings, level: str) -> Texts:
        return split(named(SHAKESPEARE, settings.data), level)


def named(file: str, data: str | None) -> Path:
    """Return the path of a file, which is the place that the user named, or in it."""
    place = data_path(data, f"name the directory of {file} with --data")
    return place / file if place.is_dir() else place


class WikiText(Text):
    """The test and validation files of WikiText-2, the next character or word (--data).

    It trains on the test file, validates on the first half of the validation file and tests on its second
    half: figures compare methods with each other, not with published ones.
    """

    def read(self, settings: Settings, level: str) -> Texts:
        folder = data_path(settings.data, f"name the directory of {' and '.join(WIKITEXT)} with --data")
        return halved(folder, *WIKITEXT, level)


class Names(Text):
    """The names of karpathy/makemore in a fixed random order, the next letter (--data)."""

    def read(self, settings: Settings, level: str) -> Texts:
        path = named(NAMES, settings.data)
        names = read_text(path).split()
        order = torch.randperm(len(names), generator=generator("names")).tolist()
        text = tokens("\n".join(names[number] for number in order), level)
        valid, test = len(text) * 80 // 100, len(text) * 90 // 100
        source = f"train: 80 % of the names of {path.name}; valid: 10 %; test: 10 %"
        return {"train": text[:valid], "valid": text[valid:test], "test": text[test:]}, path, source


FIRST_STEPS = 400
"""Of the first training of a language model."""


class FinetuneWikiText(WikiText):
    """WikiText-2's characters by a Transformer trained on Shakespeare's (--data).

    All runs start from the same weights, so the seed chooses the order of the batches. The network keeps
    nothing from one to the next.
    """

    models = ("transformer",)

    def network(self) -> nn.Module:
        return pretrained(self, super().network, self._known)

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        parts = self.streams["train"]
        order = torch.randperm(len(parts), generator=generator(self.settings.seed, "order", epoch))
        return (parts[number] for number in order[start:].tolist())

    def _known(self) -> Iterable[Batch]:
        """The batches of the first training."""
        known = set(self.symbols)
        text = [each for each in read_text(named(SHAKESPEARE, self.settings.data)) if each in known]
        return islice(cycle(streams(encode(text, self.symbols), 20, WINDOW)), FIRST_STEPS)
