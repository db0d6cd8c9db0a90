"""Everything that defines a run, in one place: the command line, ``config.json`` and the code share it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from typing import Any

__all__ = ["Settings", "option", "spelled"]


def option(
    default: Any, text: str, *, repeats: bool = True, choices: tuple[str, ...] = (), unsaid: Any = None
) -> Any:
    """A field of the settings.

    Args:
        default: its value where the user says nothing.
        text: its line in ``--help``.
        repeats: whether a run with another value is another run; False for where and how it is computed.
        choices: the values it may take.
        unsaid: the value that the name of a run does not mention, where it is not the default.
    """
    metadata = {"help": text, "repeats": repeats, "choices": choices, "unsaid": unsaid}
    return dataclasses.field(default=default, metadata=metadata)


def spelled(number: float) -> str:
    """The one spelling of a number: short, and exact all the same."""
    short = f"{number:g}"
    return short if float(short) == number else repr(number)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of one run. ``None`` means: as the task, or the method, has it."""

    task: str = option("digits", "the task")
    model: str | None = option(None, "the network; `alrao list` shows those of each task")
    method: str = option("alrao", "how to train it; `alrao list` shows the methods")
    lr: str | None = option(None, "an interval 1e-5:10 for Alrao, a rate 0.1 for the other methods")
    copies: int | None = option(None, "copies of the output layer (Alrao)")
    averaging: str = option("switch", "how the copies are averaged", choices=("switch", "bayes"))
    theta: float = option(0.999, "the switch's prior probability of switching again")
    evidence: str | None = option(
        None, "a batch's log-likelihood for the posterior", choices=("mean", "sum"), unsaid="mean"
    )
    zoom: str | None = option(
        None, "narrow Alrao's interval: default, or part=0.15,width=3,copies=300,memory=0.5,mode=0,rewind=1"
    )
    body_lr: str | None = option(None, "an interval for the body other than the copies' (Alrao)")
    normalise: str | None = option(
        None, "scale the gradients of what to unit size before a step (Alrao)", choices=("feature", "layer")
    )
    budget: str = option("mini", "how much to train", choices=("mini", "paper"))
    epochs: int | None = option(None, "epochs, in place of the budget's")
    batch: int | None = option(None, "batch size, in place of the budget's")
    train_size: int | None = option(None, "training examples to use, in place of the budget's")
    patience: int = option(20, "stop after so many epochs without a better validation loss")
    seed: int = option(0, "seed of the initial weights, the rates, the order and the augmentation")
    momentum: float | None = option(None, "momentum; the first beta of methods of the Adam family")
    weight_decay: float = option(0.0, "weight decay")
    schedule: str = option(
        "none", "factor on the rates over time", choices=("none", "cosine", "linear", "step")
    )
    average: bool = option(False, "evaluate the average of the weights over time, the last counting most")
    clip: float | None = option(None, "clip the gradient's norm (each copy and the body on their own)")
    width: float = option(1.0, "multiplies the width of the network")
    level: str | None = option(None, "symbols of a text", choices=("char", "word"))
    dropout: float | None = option(None, "dropout of the LSTM before its decoder")
    dropout_everywhere: bool = option(False, "dropout on the embedding and between LSTM layers too")
    target: str | None = option(None, "the column of a CSV file to predict")
    image_size: int | None = option(None, "side of the images a network sees (image folders)")
    tau: float | None = option(None, "part of the way that the target network takes (Q-learning)")
    threads: int | None = option(None, "processor threads of torch", repeats=False)
    data: str | None = option(None, "where the data is (default: $ALRAO_DATA)", repeats=False)
    device: str = option("auto", "auto, cpu, cuda, cuda:1, mps", repeats=False)
    tensorboard: bool = option(False, "write TensorBoard event files too", repeats=False)
    workers: int | None = option(None, "processes that read images (image folders)", repeats=False)

    def key(self) -> dict[str, Any]:
        """What makes this run the one it is: every field that repeats and is not the default.

        A field that is added later so leaves the runs of before what they were.
        """
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
            if field.metadata["repeats"]
            and getattr(self, field.name) not in (field.default, field.metadata["unsaid"])
        }

    def digest(self, data: str) -> str:
        """A short name for the settings on the data of that identity."""
        text = json.dumps([self.key(), data], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:10]
