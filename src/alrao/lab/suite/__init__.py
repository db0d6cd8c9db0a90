"""Methods without a learning rate against tuned ones, on small workloads that differ in kind.

``workloads`` are what is learnt, ``contenders`` what learns it, ``plan`` the runs, ``gaps`` what they show,
``page`` how it is shown.
"""

from .contenders import ABLATIONS, CONTENDERS, Contender
from .gaps import Standing, standings
from .page import markdown, table
from .plan import Suite
from .workloads import WORKLOADS, Workload

__all__ = [
    "ABLATIONS",
    "CONTENDERS",
    "WORKLOADS",
    "Contender",
    "Standing",
    "Suite",
    "Workload",
    "markdown",
    "standings",
    "table",
]
