"""Optimizers in which every feature has its own learning rate."""

from .adam import Adam, AdamW
from .base import AlraoOptimizer
from .per_feature import PerFeature
from .sgd import SGD

__all__ = ["SGD", "Adam", "AdamW", "AlraoOptimizer", "PerFeature"]
