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
    """Return the names of a kind that were held out first: every other one, sorted by SHA-256."""
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

# By kind. Within each, `hold_out` says which were held out first.
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

FIRST_HELD_OUT = set().union(*(hold_out(each.name for each in kind) for kind in NEW.values()))
"""Held out until Auto was run on them; the search for rates was changed after that look."""

# Added then, before Auto was run on any of them: other data, batches and lengths for kinds that are above.
# They have been looked at since.
SECOND = (
    _ten("cnn-batch-8", "digits, CNN with batches of 8", "digits", "cnn", epochs=8, batch=8),
    _ten("deep-batch-8", "digits, ten layers of ReLU, batches of 8", "digits", "deep", epochs=10, batch=8),
    _ten("sigmoid-batch-128", "digits, three layers of sigmoid units, batches of 128", "digits",
         "deep-sigmoid", epochs=150, batch=128),
    _ten("vit-batch-128", "digits, post-normalised Transformer, batches of 128", "digits", "vit",
         epochs=40, batch=128),
    _ten("tanh-short", "digits, sixteen layers of tanh, 320 steps", "digits", "deep-tanh", epochs=10),
    _ten("cifar-batch-8", "CIFAR-10, two layers of ReLU, batches of 8", "cifar10", "mlp",
         epochs=2, train_size=6_400, batch=8),
    _text("gru-ptb", "Penn Treebank's characters, GRU, 150 steps", "ptb", "gru", epochs=3, train_size=70_000),
    _text("rnn-ptb", "Penn Treebank's characters, recurrent layers of tanh", "ptb", "rnn",
          epochs=5, train_size=70_000),
    _rows("autoencoder-batch-128", "digits through twelve numbers, batches of 128", "autoencoder", 1.0,
          epochs=60, batch=128),
    _rows("picture-batch-256", "the colour at a place of a picture, batches of 256", "picture", 1.0,
          epochs=40, batch=256),
    _rows("patches-long", "a pixel from those around it, 2,200 steps", "patches", 1.0, epochs=100),
    _rows("table-batch-8", "diabetes, regression, batches of 8", "regression", 1.0, epochs=25, batch=8),
)  # fmt: skip

# Added then, before any run on them. Their test sets have hundreds to tens of thousands of rows, so that a
# difference of some per cent is more than noise.
HELD_OUT = (
    _rows("picture-batch-32", "the colour at a place of a picture, batches of 32", "picture", 1.0,
          epochs=4, batch=32),
    _rows("patches-batch-16", "a pixel from those around it, batches of 16", "patches", 1.0,
          epochs=8, batch=16),
    _rows("autoencoder-short", "digits through twelve numbers, 480 steps", "autoencoder", 1.0, epochs=15),
    _ten("cifar-batch-128", "CIFAR-10, two layers of ReLU, batches of 128", "cifar10", "mlp",
         epochs=8, train_size=6_400, batch=128),
    _ten("separable-batch-128", "CIFAR-10, separable convolutions, batches of 128", "cifar10", "separable",
         epochs=4, train_size=3_200, batch=128),
    _text("lstm-ptb", "Penn Treebank's characters, LSTM, 150 steps", "ptb", "lstm",
          epochs=3, train_size=70_000),
    _text("rnn-batch-5", "Shakespeare's characters, recurrent layers of tanh, batches of 5", "shakespeare",
          "rnn", epochs=2, train_size=70_000, batch=5),
    _text("transformer-short", "Penn Treebank's characters, Transformer, 150 steps", "ptb", "transformer",
          epochs=3, train_size=70_000),
)  # fmt: skip

WORKLOADS: dict[str, Workload] = {
    workload.name: replace(workload, chosen_on=workload not in HELD_OUT)
    for workload in (*SEEN, *(each for kind in NEW.values() for each in kind), *SECOND, *HELD_OUT)
}
