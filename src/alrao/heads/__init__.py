"""The copies of an output layer, in its place in the network."""

from .after_output import Randomness, Spread
from .exported import mean_of_copies, mixture_logit
from .head import Head
from .linear import LINEAR_HEADS, BernoulliHead, CategoricalHead, GaussianHead, LinearHead
from .window import Window

__all__ = [
    "LINEAR_HEADS",
    "BernoulliHead",
    "CategoricalHead",
    "GaussianHead",
    "Head",
    "LinearHead",
    "Randomness",
    "Spread",
    "Window",
    "mean_of_copies",
    "mixture_logit",
]
