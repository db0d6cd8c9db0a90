"""The tensors that a model returns: log-probabilities and predictions, through changes of shape."""

from .lazy import LazyLogProbs
from .outputs import LogProbs, Members, Prediction

__all__ = ["LazyLogProbs", "LogProbs", "Members", "Prediction"]
