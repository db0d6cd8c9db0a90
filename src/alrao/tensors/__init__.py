"""The tensors that a model returns: log-probabilities and predictions, through changes of shape."""

from . import trail
from .lazy import LazyLogProbs
from .means import mean_of_copies, mixture_logit
from .outputs import LogProbs
from .predictions import Members, Prediction, members_of
from .randomness import Randomness
from .spread import Spread
from .watched import watched

__all__ = [
    "LazyLogProbs",
    "LogProbs",
    "Members",
    "Prediction",
    "Randomness",
    "Spread",
    "mean_of_copies",
    "members_of",
    "mixture_logit",
    "trail",
    "watched",
]
