"""Language modelling: the next symbol of the Penn Treebank, or of any text file."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from math import exp, inf, log
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from ..data.files import data_path, short_digest
from ..data.text import LEVELS, Parts, Streams, Vocabulary, ptb, split
from ..errors import LabError
from ..settings import Settings
from ..zoo.paper import RecurrentLM
from ..zoo.small import TransformerLM
from .task import Batch, Budget, Classification

SHAKESPEARE = "tinyshakespeare.txt"
WINDOW = 70
"""Symbols between truncations of back-propagation."""
EVALUATION_STREAMS = 20
DROPOUT = 0.2
CELLS: dict[str, type[nn.RNNBase]] = {"lstm": nn.LSTM, "gru": nn.GRU, "rnn": nn.RNN}
MOST_WORDS = 10_000
"""Size of the vocabulary of a user's text; words that occur only once are not in it."""


class TextTask(Classification):
    """A text read in parallel streams, in the order of the file; the network's state is carried along.

    The state is fresh at the start of each epoch and each evaluation; no gradient flows through it. The batch
    size is the number of streams, and ``train_size`` the number of symbols to train on, from the start of the
    text. The seed only affects weights and dropout.
    """

    models = ("lstm", "transformer", "gru", "rnn")
    mini = Budget(epochs=8, batch=20, seeds=3)
    paper = Budget(epochs=200, batch=20, seeds=5)
    interval = (1e-3, 100.0)
    copies = 6
    options = frozenset({"level", "dropout", "dropout_everywhere", "width"})
    defaults: ClassVar = {"level": "char", "dropout": DROPOUT}

    @abstractmethod
    def read(self, settings: Settings, level: str) -> tuple[Parts, dict[str, int]]:
        """Return the text, and the limits of its vocabulary."""

    def load(self, settings: Settings, device: torch.device) -> Self:
        self.settings, self.device, self.level = settings, device, settings.level or LEVELS[0]
        of_words = ("loss", "perplexity", "accuracy")
        self.measures = of_words if self.level == "word" else ("bits", "accuracy")
        parts, limits = self.read(settings, self.level)
        texts = {"train": parts.train[: settings.train_size], "valid": parts.valid, "test": parts.test}
        self.vocabulary = vocabulary = Vocabulary.of(texts["train"], parts.valid, parts.test, **limits)
        streams = settings.batch or self.batch(settings)
        counts = {"train": streams, "valid": EVALUATION_STREAMS, "test": EVALUATION_STREAMS}
        for part, text in texts.items():
            if len(text) <= counts[part]:
                remedy = "a longer text or a smaller --batch" if part == "train" else "a longer text"
                raise LabError(
                    f"{parts.place}: {len(text)} symbols in the {part} part are too few for "
                    f"{counts[part]} streams: {remedy} is needed"
                )
        self.streams = {
            part: Streams(vocabulary.encode(text).to(device), counts[part], WINDOW)
            for part, text in texts.items()
        }
        self.steps = len(self.streams["train"])
        self.identity = short_digest(*("\0".join(text).encode() for text in texts.values()))
        self.about = {
            "source": parts.source,
            "level": self.level,
            "symbols": len(vocabulary),
            "streams": streams,
            "window": WINDOW,
            **{part: len(text) for part, text in texts.items()},
        }
        return self

    def network(self) -> nn.Module:
        settings = self.settings
        if settings.model == "transformer":
            return TransformerLM(len(self.vocabulary), window=WINDOW, width=settings.width)
        return RecurrentLM(
            len(self.vocabulary),
            cell=CELLS[settings.model or "lstm"],
            dropout=DROPOUT if settings.dropout is None else settings.dropout,
            dropout_everywhere=settings.dropout_everywhere,
            width=settings.width,
        )

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        return self.streams["train"].batches(start)

    def evaluation(self, part: str) -> Iterator[Batch]:
        return self.streams[part].batches()

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


class PennTreebank(TextTask):
    """The paper's text, in the usual three files; ``mini`` does without the training file."""

    name = "ptb"
    summary = "Penn Treebank, the next character or word (--data)"

    def read(self, settings: Settings, level: str) -> tuple[Parts, dict[str, int]]:
        return ptb(settings.data, level, mini=settings.budget == "mini"), {}


class Shakespeare(TextTask):
    """1.1 MB of Shakespeare."""

    name = "shakespeare"
    summary = "tinyshakespeare.txt, the next character or word (--data)"

    def read(self, settings: Settings, level: str) -> tuple[Parts, dict[str, int]]:
        place = data_path(settings.data, f"name the directory of {SHAKESPEARE} with --data")
        return split(place / SHAKESPEARE if place.is_dir() else place, level), {}


class Text(TextTask):
    """Any text file."""

    name = "text"
    summary = "your own text file, the next character or word (--data FILE)"

    def read(self, settings: Settings, level: str) -> tuple[Parts, dict[str, int]]:
        place = data_path(settings.data, "name a text file of your own with --data FILE")
        return split(place, level), {} if level == "char" else {"least": 2, "most": MOST_WORDS}
