"""The workloads of the suite: networks and tasks, and which of them defaults are chosen on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from math import log
from typing import Any

from ..settings import Settings


@dataclass(frozen=True)
class Workload:
    """A network on a task: at most a minute of training on one core with the budget ``mini``."""

    name: str
    what: str
    task: str
    model: str
    mini: Mapping[str, Any]
    """Settings of the budget ``mini``; ``paper`` is the task's own."""
    chance: float
    """The test loss of a model that knows only how frequent the targets are."""
    chosen_on: bool = False
    """Whether defaults were chosen on it."""

    def settings(self, common: Settings) -> Settings:
        """Return the settings of its runs, which go to the last epoch: all take the same number of steps."""
        settings = replace(common, task=self.task, model=self.model, experiment=f"suite-{self.name}")
        if common.budget == "mini":
            settings = replace(settings, **self.mini, patience=self.mini["epochs"])
        return settings


def hold_out(names: Iterable[str]) -> set[str]:
    """Return the names of a kind that are held out: every other one of them, sorted by SHA-256."""
    return set(sorted(names, key=lambda name: sha256(name.encode()).hexdigest())[::2])


def _ten(name: str, what: str, task: str, model: str, **mini: Any) -> Workload:
    """A workload with ten classes. Tiny data sets are split differently with every seed."""
    mini |= {"resplit": True} if task != "cifar10" else {}
    return Workload(name, what, task, model, mini, chance=log(10))


def _text(name: str, what: str, task: str, model: str, **mini: Any) -> Workload:
    """A workload of characters; the chance is the entropy of their frequencies, in bits."""
    return Workload(name, what, task, model, mini, chance={"ptb": 4.31, "shakespeare": 4.78}[task])


def _rows(name: str, what: str, task: str, chance: float, **mini: Any) -> Workload:
    mini |= {"resplit": True} if task not in ("picture", "patches") else {}
    return Workload(name, what, task, "mlp", mini, chance)


CIFAR = {"epochs": 4, "train_size": 9_600}

# The first suite's: figures on them have been seen many times.
SEEN = (
    _ten("cnn", "CIFAR-10, four convolutions with BatchNorm", "cifar10", "small", **CIFAR),
    _ten("cnn-plain", "the same without normalisation", "cifar10", "small-nobn", **CIFAR),
    _text("lstm", "Penn Treebank's characters, LSTM", "ptb", "lstm", epochs=3),
    _rows("table", "diabetes, regression", "regression", 1.0, epochs=100),
    _ten("resnet", "CIFAR-10, residual blocks with GroupNorm", "cifar10", "resnet-gn", **CIFAR),
    _ten("vit", "CIFAR-10, Vision Transformer", "cifar10", "vit", epochs=4, train_size=6_400),
    _text("transformer", "Penn Treebank's characters, Transformer", "ptb", "transformer", epochs=3),
    _ten("sigmoid", "digits, two layers of sigmoid units", "digits", "sigmoid", epochs=60),
    _rows("autoencoder", "digits through twelve numbers", "autoencoder", 1.0, epochs=60),
    # The kinds that Auto was designed on, before it was run on any of these.
    _ten("dense", "digits, two layers of ReLU", "digits", "mlp", epochs=30),
    _ten("deep", "digits, ten layers of ReLU without normalisation", "digits", "deep", epochs=30),
    _ten("cnn-512", "CIFAR-10, the CNN with batches of 512", "cifar10", "small",
         epochs=10, train_size=5_120, batch=512),
    _text("gru", "Shakespeare's characters, GRU", "shakespeare", "gru", epochs=5, train_size=70_000),
    _rows("cancer", "breast cancer, two classes", "cancer", 0.66, epochs=25),
    replace(_ten("finetune-digits", "digits 5 to 9 from 100 images, after 0 to 4", "finetune-digits", "cnn",
                 epochs=15), chance=log(5)),
)  # fmt: skip

# By kind. Within each, `hold_out` says which are held out.
NEW: dict[str, tuple[Workload, ...]] = {
    "dense": (
        _ten("dense-short", "digits, 160 steps", "digits", "mlp", epochs=5),
        _ten("dense-long", "digits, 8,000 steps", "digits", "mlp", epochs=250),
        _ten("dense-batch-4", "digits, batches of 4", "digits", "mlp", epochs=8, batch=4),
        _ten("cnn-batch-500", "digits, CNN with batches of 500", "digits", "cnn", epochs=75, batch=500),
        _ten("dense-cifar", "CIFAR-10, two layers of ReLU", "cifar10", "mlp", epochs=5, train_size=6_400),
    ),
    "deep": (_ten("deep-tanh", "digits, sixteen layers of tanh", "digits", "deep-tanh", epochs=30),),
    "plateau": (
        _ten("plateau-vit", "digits, post-normalised Transformer", "digits", "vit", epochs=15),
        _ten("plateau-sigmoid", "digits, three layers of sigmoid units", "digits", "deep-sigmoid", epochs=60),
    ),
    "vision": (
        _ten("mixer", "CIFAR-10, MLP-Mixer", "cifar10", "mixer", epochs=3, train_size=6_400),
        _ten("resnet-bn", "CIFAR-10, residual blocks with BatchNorm", "cifar10", "resnet-bn",
             epochs=3, train_size=6_400),
        _ten("separable", "CIFAR-10, separable convolutions", "cifar10", "separable",
             epochs=4, train_size=6_400),
    ),
    "text": (
        _text("rnn", "Shakespeare's characters, recurrent layers of tanh", "shakespeare", "rnn",
              epochs=5, train_size=140_000),
        _text("lstm-short", "Shakespeare's characters, LSTM, 150 steps", "shakespeare", "lstm",
              epochs=3, train_size=70_000),
        _text("transformer-bard", "Shakespeare's characters, Transformer", "shakespeare", "transformer",
              epochs=5, train_size=140_000),
    ),
    "rows": (
        _rows("wine", "three growers", "wine", 1.09, epochs=40),
        _rows("picture", "the colour at a place of a picture", "picture", 1.0, epochs=16),
        _rows("patches", "a pixel from those around it", "patches", 1.0, epochs=20),
    ),
    "fine-tuning": (
        replace(_ten("finetune-cifar", "five classes of CIFAR-10 from 500 images", "finetune-cifar10",
                     "resnet-gn", epochs=15), mini={"epochs": 15}, chance=log(5)),
    ),
}  # fmt: skip

HELD_OUT = set().union(*(hold_out(each.name for each in kind) for kind in NEW.values()))

WORKLOADS: dict[str, Workload] = {
    workload.name: replace(workload, chosen_on=workload.name not in HELD_OUT)
    for workload in (*SEEN, *(each for kind in NEW.values() for each in kind))
}
