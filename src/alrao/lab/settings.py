"""The settings of a run, in one place: the command line, ``config.json`` and the code share them.

Their typed values are read once from the command line's spelling, and printed once.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from abc import abstractmethod
from dataclasses import dataclass
from math import isfinite
from typing import Any, Self

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


class Spelled:
    """A value with a spelling on the command line (``parse``, ``str``) and an object in JSON."""

    @classmethod
    @abstractmethod
    def parse(cls, text: str) -> Self:
        """Read the spelling."""

    @classmethod
    def of(cls, value: object) -> Self:
        """Return the value itself, or read it from its spelling or from ``dataclasses.asdict`` of it."""
        if isinstance(value, cls):
            return value
        if isinstance(value, str):
            return cls.parse(value)
        try:
            return cls(**value)  # type: ignore[arg-type]
        except (TypeError, ValueError) as error:
            raise LabError(f"{value!r} is no {cls.__name__}: {error}") from None


@dataclass(frozen=True)
class Interval(Spelled):
    """An interval of learning rates, spelled ``1e-5:10``; ``0.1`` is the interval of one rate."""

    low: float
    high: float

    @classmethod
    def parse(cls, text: str) -> Interval:
        """Read ``LOW:HIGH`` or one rate."""
        low, colon, high = text.partition(":")
        interval = cls(parse_rate(low), parse_rate(high if colon else low))
        if interval.low > interval.high:
            raise LabError(f"an interval of rates goes from low to high, got {text}")
        return interval

    def __str__(self) -> str:
        return f"{spelled(self.low)}:{spelled(self.high)}"


@dataclass(frozen=True)
class MethodSpec(Spelled):
    """A method at a rate, spelled ``sgd@0.1``, ``adam`` (its default rate) or ``frozen@0.1:0.5``."""

    name: str
    lr: float | None = None
    fraction: float | None = None
    """The fraction of features that is trained, where the method takes one."""

    @classmethod
    def parse(cls, text: str) -> MethodSpec:
        """Read ``NAME``, ``NAME@RATE`` or ``NAME@RATE:FRACTION``; the name is not looked up."""
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
    "Model and budget": "model budget epochs batch train_size patience seed",
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


def option(
    default: Any, text: str, *, repeats: bool = True, choices: tuple[str, ...] = (), unsaid: Any = ()
) -> Any:
    """Make a field of the settings.

    Args:
        default: its value where the user gives none.
        text: its line in ``--help``.
        repeats: whether a run with another value is another run; False for where and how it is computed.
        choices: the values it may take.
        unsaid: the values that the name of a run does not mention, where they are not just the default.
    """
    unsaid = unsaid or (default,)
    metadata = {"help": text, "repeats": repeats, "choices": choices, "unsaid": unsaid}
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of one run. ``None`` selects the default of the task, or of the method.

    Values with a spelling (``method``, ``lr``) may be given as the command line spells
    them, or as the JSON of a record has them.
    """

    task: str = option("digits", "the task")
    model: str | None = option(None, "the network; `alrao list` shows those of each task")
    method: MethodSpec = option(
        MethodSpec("auto"), "how to train it; `alrao list` shows the methods", unsaid=(MethodSpec("alrao"),)
    )
    lr: Interval | None = option(None, "an interval 1e-5:10 for Alrao, a rate 0.1 for the other methods")
    copies: int | None = option(None, "copies of the output layer (Alrao)")
    averaging: str = option("switch", "how the copies are averaged", choices=("switch", "bayes"))
    theta: float = option(0.999, "the switch's prior probability of switching again")
    evidence: str | None = option(
        None, "a batch's log-likelihood for the posterior", choices=("mean", "sum"), unsaid=(None, "mean")
    )
    budget: str = option("mini", "how much to train", choices=("mini", "paper"))
    epochs: int | None = option(None, "epochs, in place of the budget's")
    batch: int | None = option(None, "batch size, in place of the budget's")
    train_size: int | None = option(None, "training examples to use, in place of the budget's")
    resplit: bool = option(False, "split the data differently with every seed (small data sets)")
    patience: int = option(20, "stop after this many epochs without a better validation loss")
    seed: int = option(0, "seed of the initial weights, the rates, the order and the augmentation")
    momentum: float | None = option(None, "momentum; the first beta of methods of the Adam family")
    weight_decay: float = option(0.0, "weight decay")
    schedule: str = option(
        "none",
        "factor on the rates over time (warmup: then a cosine)",
        choices=("none", "cosine", "warmup", "linear", "step"),
    )
    average: bool = option(False, "evaluate the average of the weights over time, the last counting most")
    clip: float | None = option(None, "clip the gradient's norm (each copy and the body on their own)")
    width: float = option(1.0, "multiplies the width of the network")
    level: str | None = option(None, "symbols of a text", choices=("char", "word"))
    dropout: float | None = option(None, "dropout of the LSTM before its decoder")
    dropout_everywhere: bool = option(False, "dropout on the embedding and between LSTM layers too")
    target: str | None = option(None, "the column of a CSV file to predict")
    image_size: int | None = option(None, "side of the images a network sees (image folders)")
    tau: float | None = option(None, "part of the way that the target network moves per update (Q-learning)")
    threads: int | None = option(None, "processor threads of torch", repeats=False)
    data: str | None = option(None, "where the data is (default: $ALRAO_DATA)", repeats=False)
    device: str = option("auto", "auto, cpu, cuda, cuda:1, mps", repeats=False)
    tensorboard: bool = option(False, "write TensorBoard event files too", repeats=False)
    experiment: str | None = option(
        None, "the file of results/ that `alrao keep` adds the run to (default: TASK-MODEL)", repeats=False
    )
    to_keep: bool = option(False, "refuse to start unless every tracked file is committed", repeats=False)
    workers: int | None = option(None, "processes that read images (image folders)", repeats=False)
    former: str = option("", "settings of a row that the workbench no longer has; no option")

    def __post_init__(self) -> None:
        object.__setattr__(self, "method", MethodSpec.of(self.method))
        if self.lr is not None:
            object.__setattr__(self, "lr", Interval.of(self.lr))

    def key(self) -> dict[str, Any]:
        """Return what identifies the run: every field that repeats it and is not the usual value, as spelled.

        A field that is added later thus leaves earlier runs what they were.
        """
        found = {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.metadata["repeats"] and getattr(self, field.name) not in field.metadata["unsaid"]
        }
        return {name: str(value) if isinstance(value, Spelled) else value for name, value in found.items()}

    def digest(self, data: str) -> str:
        """Return a short name for the settings on the data of that identity."""
        text = json.dumps([self.key(), data], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:10]
