"""The paper's tables and figures, one by one: run what is missing, draw, compare with what the paper found.

``exhibits`` says which runs each one needs, ``checks`` whether ours agree with the paper, ``theorem``
computes appendix B, ``export`` writes figures and tables as files.
"""

from .exhibits import EXHIBITS, Exhibit
from .make import Reproduction, reproduce

__all__ = ["EXHIBITS", "Exhibit", "Reproduction", "reproduce"]
