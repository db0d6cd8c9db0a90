"""The report: run directories in, one self-contained HTML page out. It reads and never trains.

``records`` reads runs, ``experiments`` sorts them, one module for each kind of figure draws them with plotly,
``page`` puts the page together.
"""

from .page import Report, write_report

__all__ = ["Report", "write_report"]
