"""The paper's experiments: its figures, and its tables and figures made again.

``reported`` has the paper's numbers. ``exhibits`` lists which runs each table and figure needs, ``checks``
whether ours agree, ``theorem`` computes appendix B, ``make`` writes figures and tables as files.
"""
