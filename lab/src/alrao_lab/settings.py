"""The settings of a run, in one place: the command line, ``config.json`` and the code share them.

Their typed values are read once from the command line's spelling, and printed once.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Any

from .errors import LabError


def spelled(number: float) -> str:
    """Return the one spelling of a number: short, and exact all the same."""
    short = f"{number:g}"
    return short if float(short) == number else repr(number)


def parse_rate(text: str) -> float:
    """Read a learning rate."""
    rate = _number(text, "a learning rate")
    if rate == 0:
        raise LabError("a learning rate must be positive, got 0")
    return rate


def _number(text: str, what: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise LabError(f"{what} must be a number, got {text!r}") from None
    if not isfinite(number) or number < 0:
        raise LabError(f"{what} must be a finite number that is not negative, got {text}")
    return number


@dataclass(frozen=True)
class Interval:
    """An interval of learning rates, spelled ``1e-5:10``; ``0.1`` is the interval of one rate."""

    low: float
    high: float

    @classmethod
    def parse(cls, text: str) -> Interval:
        low, colon, high = text.partition(":")
        interval = cls(parse_rate(low), parse_rate(high if colon else low))
        if interval.low > interval.high:
            raise LabError(f"an interval of rates goes from low to high, got {text}")
        return interval

    def __str__(self) -> str:
        return f"{spelled(self.low)}:{spelled(self.high)}"


@dataclass(frozen=True)
class MethodSpec:
    """A method at a rate, spelled ``sgd@0.1``, ``adam`` (its default rate) or ``frozen@0.1:0.5``."""

    name: str
    lr: float | None = None
    fraction: float | None = None
    """The fraction of features that is trained, where the method takes one."""

    @classmethod
    def parse(cls, text: str) -> MethodSpec:
        name, _, rates = text.partition("@")
        rate, _, part = rates.partition(":")
        fraction = _number(part, "the fraction of trained features") if part else None
        if fraction is not None and fraction > 1:
            raise LabError(f"the fraction of trained features is at most 1, got {part}")
        return cls(name, parse_rate(rate) if rate else None, fraction)

    @property
    def rates(self) -> str:
        """The rate and the fraction, for reading: ``0.1``, ``0.1:0.5`` or nothing."""
        return ":".join(spelled(value) for value in (self.lr, self.fraction) if value is not None)

    def __str__(self) -> str:
        return f"{self.name}@{self.rates}" if self.rates else self.name


GROUPS = {
    "Model and budget": "model budget epochs every batch train_size valid_size test_size patience seed",
    "Method": "method lr momentum weight_decay schedule average clip",
    "Alrao": "copies averaging theta evidence",
    "For some tasks": "resplit width level dropout dropout_everywhere target image_size tau workers",
    "Machine and files": """processes jobs backend gpus threads device data tensorboard to_keep
        experiment out_dir results""",
}
"""Headings of the help, and the parameters below them."""


def flag(name: str) -> str:
    """Return the option of the command line for a setting."""
    return f"--{name.replace('_', '-')}"


Range = tuple[str, Callable[[float], bool]]
POSITIVE: Range = ("positive", lambda value: value > 0)
NOT_NEGATIVE: Range = ("at least 0", lambda value: value >= 0)
PART: Range = ("at least 0 and less than 1", lambda value: 0 <= value < 1)
FRACTION: Range = ("positive and at most 1", lambda value: 0 < value <= 1)
THREADS: Range = ("between 1 and 1024", lambda value: 1 <= value <= 1024)  # more end the process
WIDTH: Range = ("positive and at most 1000", lambda value: 0 < value <= 1000)
INSIDE: Range = ("strictly between 0 and 1", lambda value: 0 < value < 1)


def option(default: Any, text: str, must: Range | None = None, **more: Any) -> Any:
    """Make a field of the settings, with its line in ``--help`` and what holds of its values.

    ``repeats`` is false of where and how a run is computed: another value makes no other run. ``choices`` are
    the values it may take. ``unsaid`` are the values that the name of a run does not mention, where that is
    not just the default.
    """
    usual = {"repeats": True, "choices": (), "unsaid": (default,)}
    return dataclasses.field(default=default, metadata={**usual, "help": text, "must": must, **more})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of one run. ``None`` selects the default of the task, or of the method.

    ``method`` and ``lr`` may be given as the command line spells them, or as the JSON of a record has them.
    """

    task: str = option("digits", "the task")
    model: str | None = option(None, "the network; `alrao list` shows those of each task")
    method: MethodSpec = option(
        MethodSpec("auto"), "how to train it; `alrao list` shows the methods", unsaid=(MethodSpec("alrao"),)
    )
    lr: Interval | None = option(None, "an interval 1e-5:10 for Alrao, a rate 0.1 for the other methods")
    copies: int | None = option(None, "copies of the output layer (Alrao)", POSITIVE)
    averaging: str = option("switch", "how the copies are averaged", choices=("switch", "bayes"))
    theta: float = option(0.999, "the switch's prior probability of switching again", INSIDE)
    evidence: str | None = option(
        None, "a batch's log-likelihood for the posterior", choices=("mean", "sum"), unsaid=(None, "mean")
    )
    budget: str = option("mini", "how much to train", choices=("mini", "paper"))
    epochs: int | None = option(None, "epochs, in place of the budget's", POSITIVE)
    every: int | None = option(None, "steps of an epoch, in place of a pass over the training data", POSITIVE)
    batch: int | None = option(None, "batch size, in place of the budget's", POSITIVE)
    train_size: int | None = option(None, "training examples to use, in place of the budget's", POSITIVE)
    valid_size: int | None = option(None, "validation examples to use, in place of the budget's", POSITIVE)
    test_size: int | None = option(None, "test examples to use, in place of the budget's", POSITIVE)
    resplit: bool = option(False, "split the data differently with every seed (small data sets)")
    patience: int = option(20, "stop after this many epochs without a better validation loss", POSITIVE)
    seed: int = option(
        0, "seed of the initial weights, the rates, the order and the augmentation", NOT_NEGATIVE
    )
    momentum: float | None = option(None, "momentum; the first beta of methods of the Adam family", PART)
    weight_decay: float = option(0.0, "weight decay; 0 for the method's own", NOT_NEGATIVE)
    schedule: str = option(
        "none",
        "factor on the rates over time (warmup: then a cosine; wsd: warm-up, constant, then linear to 0)",
        choices=("none", "cosine", "warmup", "warmup-2%", "wsd", "ramp", "linear", "step"),
    )
    average: bool = option(False, "evaluate the average of the weights over time, the last counting most")
    clip: float | None = option(
        None, "clip the gradient's norm (each copy and the body on their own)", POSITIVE
    )
    width: float = option(1.0, "multiplies the width of the network", WIDTH)
    level: str | None = option(None, "symbols of a text", choices=("char", "word"))
    dropout: float | None = option(None, "dropout of the LSTM before its decoder", PART)
    dropout_everywhere: bool = option(False, "dropout on the embedding and between LSTM layers too")
    target: str | None = option(None, "the column of a CSV file to predict")
    image_size: int | None = option(None, "side of the images a network sees (image folders)", POSITIVE)
    tau: float | None = option(
        None, "part of the way that the target network moves per update (Q-learning)", FRACTION
    )
    threads: int | None = option(None, "processor threads of torch", THREADS, repeats=False)
    data: str | None = option(None, "where the data is (default: $ALRAO_DATA)", repeats=False)
    device: str = option("auto", "auto, cpu, cuda, cuda:1, mps", repeats=False)
    tensorboard: bool = option(False, "write TensorBoard event files too", repeats=False)
    experiment: str | None = option(
        None, "the file of results/ that `alrao keep` adds the run to (default: TASK-MODEL)", repeats=False
    )
    to_keep: bool = option(False, "refuse to start unless every tracked file is committed", repeats=False)
    workers: int | None = option(
        None, "processes that read images (image folders)", NOT_NEGATIVE, repeats=False
    )
    former: str = option("", "settings of a row that the workbench no longer has; no option")

    def __post_init__(self) -> None:
        for name, kind in (("method", MethodSpec), ("lr", Interval)):
            value: Any = getattr(self, name)
            if value is None or isinstance(value, kind):
                continue
            try:
                read = kind.parse(value) if isinstance(value, str) else kind(**value)
            except (TypeError, ValueError) as error:
                raise LabError(f"{value!r} is no {kind.__name__}: {error}") from None
            object.__setattr__(self, name, read)

    def key(self) -> dict[str, Any]:
        """Return what identifies the run: every field that repeats it and is not the usual value, as spelled.

        A field that is added later thus leaves earlier runs what they were.
        """
        found = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.metadata["repeats"] and getattr(self, field.name) not in field.metadata["unsaid"]
        }
        return {
            name: str(value) if isinstance(value, MethodSpec | Interval) else value
            for name, value in found.items()
        }

    def digest(self, data: str) -> str:
        """Return a short name for the settings on the data of that identity."""
        text = json.dumps([self.key(), data], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:10]


FIELDS = {field.name: field for field in dataclasses.fields(Settings)}
"""The settings by name; the metadata of each is what ``option`` was given."""
