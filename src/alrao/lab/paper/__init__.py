"""The paper's tables and figures, made again.

``exhibits`` lists the runs that each needs, ``checks`` whether ours agree, ``theorem`` computes appendix B,
``triangle`` and ``params`` are experiments of their own, ``make`` writes figures and tables as files.
"""
