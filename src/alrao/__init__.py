"""Train any PyTorch model without choosing a learning rate, in the training loop you already have.

The map:

- ``features`` defines what a feature of a layer is, ``rates`` the distributions of learning rates;
- ``averaging`` is the posterior over the copies of the output layer, ``heads`` are those copies, ``tensors``
  what they return, ``model`` puts them in place of the ``output_layer``;
- ``optim`` trains every feature at its own rate; ``evidence`` is what a backward pass reports to it;
  ``trainable`` is what it takes: a model, or the ``plain`` networks that train with any loss;
- ``auto`` is the optimizer with nothing to choose, ``recalibration`` is for BatchNorm under it;
- ``losses`` are for regression and multi-label outputs; ``finite`` guards against numbers that are not.
"""

from .auto import Auto, AutoScheduleFree
from .averaging import Averaging, BayesianAverage, Switch
from .copy_parallel import CopyParallel
from .features import register_features
from .losses import MixtureBCELoss, MixtureMSELoss
from .model import Alrao
from .optim import SGD, Adam, AdamW, AlraoOptimizer, PerFeature, Zoom
from .rates import Bernoulli, Constant, LogUniform, PerWeight, RateDistribution, Redrawn
from .recalibration import recalibrate
from .summary import summary

__version__ = "0.1.0"

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Alrao",
    "AlraoOptimizer",
    "Auto",
    "AutoScheduleFree",
    "Averaging",
    "BayesianAverage",
    "Bernoulli",
    "Constant",
    "CopyParallel",
    "LogUniform",
    "MixtureBCELoss",
    "MixtureMSELoss",
    "PerFeature",
    "PerWeight",
    "RateDistribution",
    "Redrawn",
    "Switch",
    "Zoom",
    "recalibrate",
    "register_features",
    "summary",
]
