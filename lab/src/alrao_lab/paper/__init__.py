"""The paper's tables and figures, made again.

``exhibits`` lists the runs that each needs, ``checks`` whether ours agree, ``computed`` holds the theorem of
appendix B and the numbers of parameters, ``make`` makes and writes the exhibits.
"""
