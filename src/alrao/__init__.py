"""Train a PyTorch model without choosing a learning rate, in the training loop you already have.

The map:

- ``features`` defines what a feature of a layer is, ``rates`` the distributions of learning rates;
- ``posterior`` is over the copies of the output layer, ``heads`` are those copies, ``tensors`` what they
  return, ``model`` puts them in place of the ``output_layer``, which the ``first_forward`` pass checks;
- ``optim`` trains every feature at its own rate, or all at one; ``evidence`` is what a backward pass
  reports to it; ``trainable`` is what it takes: a model, or the ``plain`` networks that train with any loss;
- ``auto`` is the optimizer with nothing to choose, ``statistics`` and ``recalibration`` are for BatchNorm
  under it, ``prepare`` builds both;
- ``losses`` are for regression and multi-label outputs; ``finite`` guards against numbers that are not;
- ``runtime`` is for captured graphs, shards and sleeping copies; ``paper`` for the paper's experiments;
  ``contrib`` is kept and tested, but not recommended.
"""

import importlib
import warnings
from typing import TYPE_CHECKING, Any

from . import paper as paper
from .auto import Auto, AutoScheduleFree
from .features import register_features
from .losses import MixtureBCELoss, MixtureMSELoss
from .model import Alrao
from .optim import SGD, Adam, AdamW, AlraoOptimizer, PerFeature
from .posterior import Posterior, Switch
from .prepare import prepare
from .rates import Constant, LogUniform, RateDistribution
from .recalibration import recalibrate
from .summary import summary

__version__ = "0.2.0"

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Alrao",
    "AlraoOptimizer",
    "Auto",
    "AutoScheduleFree",
    "Constant",
    "LogUniform",
    "MixtureBCELoss",
    "MixtureMSELoss",
    "PerFeature",
    "Posterior",
    "RateDistribution",
    "Switch",
    "prepare",
    "recalibrate",
    "register_features",
    "summary",
]

FORMER = {
    "Averaging": "alrao.Posterior",
    "BayesianAverage": "alrao.paper.BayesianAverage",
    "Bernoulli": "alrao.paper.Bernoulli",
    "CopyParallel": "alrao.contrib.copy_parallel.CopyParallel",
    "PerWeight": "alrao.paper.PerWeight",
    "Redrawn": "alrao.paper.Redrawn",
    "Zoom": "alrao.contrib.zoom.Zoom",
}
"""Names that have moved, and what they are now; they work for one more release."""

if not TYPE_CHECKING:  # a type checker would accept every name

    def __getattr__(name: str) -> Any:
        if name not in FORMER:
            raise AttributeError(f"module 'alrao' has no attribute {name!r}")
        warnings.warn(f"alrao.{name} is {FORMER[name]} now", DeprecationWarning, stacklevel=2)
        module, _, new = FORMER[name].rpartition(".")
        return getattr(importlib.import_module(module), new)
