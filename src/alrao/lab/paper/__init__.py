"""The paper's tables and figures, made again.

``exhibits`` lists the runs that each needs, ``checks`` whether ours agree, ``theorem`` computes appendix B,
``params`` counts parameters, ``make`` makes the exhibits, ``files`` writes them.
"""
