"""The tensors that a model returns: log-probabilities and predictions, through changes of shape."""

from .lazy import LazyLogProbs
from .outputs import LogProbs
from .predictions import Members, Prediction, Randomness, members_of

__all__ = ["LazyLogProbs", "LogProbs", "Members", "Prediction", "Randomness", "members_of"]
