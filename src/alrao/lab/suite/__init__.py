"""Learning-rate-free methods and tuned ones, on small workloads of different kinds.

``workloads`` are the networks and tasks, ``contenders`` the ways to train, ``plan`` the runs, ``gaps`` what
they show, ``page`` and ``figures`` how it is shown.
"""

from .contenders import CONTENDERS, Contender
from .figures import dots, profile
from .gaps import Standings
from .page import markdown, table
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
