"""Learning-rate-free methods and tuned ones, on small workloads of different kinds.

``workloads`` are the networks and tasks, ``contenders`` the ways to train, ``plan`` the runs, ``gaps`` what
they show, ``page`` how it is shown.
"""

from .contenders import CONTENDERS, Contender
from .gaps import Standings
from .page import dots, markdown, profile, table
from .plan import Suite
from .workloads import WORKLOADS, Workload

__all__ = [
    "CONTENDERS",
    "WORKLOADS",
    "Contender",
    "Standings",
    "Suite",
    "Workload",
    "dots",
    "markdown",
    "profile",
    "table",
]
