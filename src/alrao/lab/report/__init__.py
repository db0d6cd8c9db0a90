"""The report: one self-contained HTML page about runs. It reads and never trains.

A module for each kind of figure draws it with plotly; ``tables`` makes the comparison, ``page`` the page.
"""
