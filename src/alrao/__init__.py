"""Train any PyTorch model without choosing a learning rate, in the training loop you already have.

The map: ``features`` says what a feature is, ``rates`` draws the learning rates, ``optim`` moves every
feature at its own; ``averaging`` is the posterior over the copies of the output layer, ``heads`` are those
copies, ``model`` puts them in place; ``schedules`` narrows the interval of the rates; ``criteria`` are the
losses for regression and multi-label outputs.
"""

from .averaging import Averaging, BayesianAverage, Switch
from .features import register_features
from .losses import MixtureBCELoss, MixtureMSELoss
from .model import Alrao
from .optim import SGD, Adam, AdamW, AlraoOptimizer, PerFeature, Zoom
from .rates import Bernoulli, Constant, LogUniform, PerWeight, RateDistribution, Redrawn
from .summary import summary

__version__ = "0.1.0"

__all__ = [
    "SGD",
    "Adam",
    "AdamW",
    "Alrao",
    "AlraoOptimizer",
    "Averaging",
    "BayesianAverage",
    "Bernoulli",
    "Constant",
    "LogUniform",
    "MixtureBCELoss",
    "MixtureMSELoss",
    "PerFeature",
    "PerWeight",
    "RateDistribution",
    "Redrawn",
    "Switch",
    "Zoom",
    "register_features",
    "summary",
]
