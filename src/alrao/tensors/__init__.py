"""What the model returns: ordinary tensors that remember what they are."""

from .outputs import LogProbs, Members, Prediction

__all__ = ["LogProbs", "Members", "Prediction"]
