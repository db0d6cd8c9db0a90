"""The next symbol of a text: the Penn Treebank as in the paper, and any text file."""

from __future__ import annotations

import dataclasses
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from math import exp, inf, log
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..data.places import data_path, short_digest
from ..data.text import LEVELS, Parts, Streams, Vocabulary, ptb, split
from ..errors import LabError
from ..settings import Settings
from ..zoo.attention import TransformerLM
from ..zoo.recurrent import RecurrentLM
from .task import Batch, Budget, Classification, Task

__all__ = ["CharacterText", "PennTreebank", "Text", "TextProblem", "WordText"]

WINDOW = 70
"""Symbols between truncations of back-propagation."""
EVALUATION_STREAMS = 20
DROPOUT = 0.2
MOST_WORDS = 10_000
"""Words that a network knows of a text of the user's; it knows none that is there only once."""


class TextProblem(Classification):
    """A text read in parallel streams, in the order of the file; the network's state goes along.

    The state is fresh at the start of each epoch and each evaluation, and carried from batch to batch; no
    gradient goes through it. The settings' batch is the number of streams, and ``train_size`` the symbols
    to train on, from the start of the text. The seed matters to weights and dropout alone.

    Args:
        parts: the symbols.
        vocabulary: those that the network knows.
        settings: of the run.
        streams: how many to train on.
        device: where the batches are.
    """

    def __init__(
        self, parts: Parts, vocabulary: Vocabulary, settings: Settings, streams: int, device: torch.device
    ) -> None:
        self.settings = settings
        self.vocabulary = vocabulary
        texts = {"train": parts.train, "valid": parts.valid, "test": parts.test}
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
        self.about: Mapping[str, Any] = {
            "source": parts.source,
            "level": settings.level or LEVELS[0],
            "symbols": len(vocabulary),
            "streams": streams,
            "window": WINDOW,
            **{part: len(text) for part, text in texts.items()},
        }

    def network(self) -> nn.Module:
        """The paper's LSTM, or a Transformer."""
        if self.settings.model == "transformer":
            return TransformerLM(len(self.vocabulary), window=WINDOW, width=self.settings.width)
        dropout = self.settings.dropout
        return RecurrentLM(
            len(self.vocabulary),
            dropout=DROPOUT if dropout is None else dropout,
            dropout_everywhere=self.settings.dropout_everywhere,
            width=self.settings.width,
        )

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """The text from its beginning, in every epoch."""
        return self.streams["train"].batches(start)

    def evaluation(self, part: str) -> Iterator[Batch]:
        """The text of that part, in streams too."""
        return self.streams[part].batches()

    def forward(self, model: nn.Module, inputs: Tensor, carry: Any) -> tuple[Tensor, Any]:
        """The outputs for all positions in a row, and the state: a tuple of tensors."""
        outputs, state = model(inputs, carry)
        return outputs.flatten(0, 1), tuple(each.detach() for each in state)


class CharacterText(TextProblem):
    """Measured in bits per character."""

    measures: ClassVar[tuple[str, ...]] = ("bits", "accuracy")

    def measure(self, sums: Mapping[str, float]) -> dict[str, float]:
        """The cross-entropy in bits, and the accuracy."""
        count = sums["count"]
        return {"bits": sums["loss"] / count / log(2), "accuracy": sums["accuracy"] / count}


class WordText(TextProblem):
    """Measured in nats per word, and by the perplexity, their exponential."""

    measures: ClassVar[tuple[str, ...]] = ("loss", "perplexity", "accuracy")

    def measure(self, sums: Mapping[str, float]) -> dict[str, float]:
        """The cross-entropy, its exponential, and the accuracy."""
        count = sums["count"]
        loss = sums["loss"] / count
        perplexity = exp(loss) if loss < 700 else loss - loss + inf  # nan remains nan
        return {"loss": loss, "perplexity": perplexity, "accuracy": sums["accuracy"] / count}


class _TextTask(Task):
    models: ClassVar[tuple[str, ...]] = ("lstm", "transformer")
    budgets: ClassVar[Mapping[str, Budget]] = {
        "paper": Budget(epochs=200, batch=20, seeds=5),
        "mini": Budget(epochs=8, batch=20, seeds=3),
    }
    interval: ClassVar[tuple[float, float]] = (1e-3, 100.0)
    copies: ClassVar[int] = 6
    options: ClassVar[frozenset[str]] = frozenset({"level", "dropout", "dropout_everywhere", "width"})
    defaults: ClassVar[Mapping[str, Any]] = {"level": "char", "dropout": DROPOUT}

    def load(self, settings: Settings, device: torch.device) -> TextProblem:
        """Read the text, count its symbols, cut it into streams."""
        level = settings.level or LEVELS[0]
        parts = self._parts(settings, level)
        if settings.train_size is not None:
            parts = dataclasses.replace(parts, train=parts.train[: settings.train_size])
        vocabulary = self._vocabulary(parts, level)
        streams = settings.batch or self.batch(settings)
        kind = WordText if level == "word" else CharacterText
        return kind(parts, vocabulary, settings, streams, device)

    @abstractmethod
    def _parts(self, settings: Settings, level: str) -> Parts: ...

    def _vocabulary(self, parts: Parts, level: str) -> Vocabulary:
        return Vocabulary.of(parts.train, parts.valid, parts.test)


class PennTreebank(_TextTask):
    """The paper's text, in the usual three files; ``mini`` does without the training file."""

    name: ClassVar[str] = "ptb"
    summary: ClassVar[str] = "Penn Treebank, the next character (or --level word) with the paper's LSTM"

    def _parts(self, settings: Settings, level: str) -> Parts:
        return ptb(settings.data, level, mini=settings.budget == "mini")


class Text(_TextTask):
    """Any text file."""

    name: ClassVar[str] = "text"
    summary: ClassVar[str] = "a text file of your own (--data FILE), the next character or word"

    def _parts(self, settings: Settings, level: str) -> Parts:
        return split(data_path(settings.data, "name a text file of your own with --data FILE"), level)

    def _vocabulary(self, parts: Parts, level: str) -> Vocabulary:
        if level == "char":
            return super()._vocabulary(parts, level)
        return Vocabulary.of(parts.train, parts.valid, parts.test, least=2, most=MOST_WORDS)
