"""The copies of an output layer, in its place in the network."""

from .adaptive import AdaptiveHead
from .head import Head
from .linear import LINEAR_HEADS, BernoulliHead, CategoricalHead, GaussianHead, LinearHead
from .making import check_net, make_head

__all__ = [
    "LINEAR_HEADS",
    "AdaptiveHead",
    "BernoulliHead",
    "CategoricalHead",
    "GaussianHead",
    "Head",
    "LinearHead",
    "check_net",
    "make_head",
]
