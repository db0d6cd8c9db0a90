"""The workbench: the paper's experiments, and one's own data, from one command line.

The map: a task (``tasks``) knows its data (``data``), its plain networks (``zoo``) and its budgets; a method
(``methods``) turns a plain network into a model and an optimizer; a run (``run``) trains one and lives in a
directory (``store``); ``compare`` is a set of runs and the table made of them; ``cli`` is the command
``alrao``.
"""
