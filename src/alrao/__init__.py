"""Train any PyTorch model without choosing a learning rate, in the training loop you already have.

The map:

- ``features`` defines what a feature of a layer is, ``rates`` the distributions of learning rates;
- ``averaging`` is the posterior over the copies of the output layer, ``heads`` are those copies, ``tensors``
  what they return, ``model`` puts them in place of the ``output_layer``;
- ``optim`` trains every feature at its own rate; ``evidence`` is what a backward pass reports to it;
  ``trainable`` is what it takes: a model, or the ``plain`` networks that train with any loss;
- ``auto`` is the optimizer with nothing to choose, ``recalibration`` is for BatchNorm under it;
- ``losses`` are for regression and multi-label outputs; ``finite`` guards against numbers that are not;
- ``contrib`` has the adaptive softmax, and copies on several devices.
"""

from typing import TYPE_CHECKING, Any

from .auto import Auto
from .averaging import Averaging, BayesianAverage, Switch
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
    "recalibrate",
    "register_features",
    "summary",
]


if not TYPE_CHECKING:  # which would take every name for one of the package

    def __getattr__(name: str) -> Any:
        if name == "CopyParallel":
            import warnings

            from .contrib.copy_parallel import CopyParallel

            message = "alrao.CopyParallel has moved: import it from alrao.contrib.copy_parallel"
            warnings.warn(message, DeprecationWarning, stacklevel=2)
            return CopyParallel
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
