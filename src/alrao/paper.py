"""What only the experiments of the paper use: its other posterior, and its ablations of the rates.

Nothing here is recommended for training; ``alrao.SGD`` with an interval is the paper's method itself.
"""

from .posterior import BayesianAverage
from .rates import Bernoulli, PerWeight, Redrawn

__all__ = ["BayesianAverage", "Bernoulli", "PerWeight", "Redrawn"]
