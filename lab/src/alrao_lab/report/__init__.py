"""The report: one self-contained HTML page about runs. It reads and never trains.

A module for each kind of figure draws it with plotly; ``page`` makes the comparison and the page.
"""
