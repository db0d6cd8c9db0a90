"""The tensors that a model returns: log-probabilities and predictions, through changes of shape."""

from .outputs import LogProbs, Members, Prediction

__all__ = ["LogProbs", "Members", "Prediction"]
