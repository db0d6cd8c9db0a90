"""The workbench: the paper's experiments, and your own data, from one command line.

A task (``tasks``, ``rl``) has data, plain networks (``zoo``) and budgets. A method (``methods``) turns a
plain network into a model with an optimizer (``learner``). A run (``run``) trains one in the training loop
(``loop``) and is stored in a directory (``store``); ``records`` finds and reads runs. ``runset`` is a set of
runs; ``table``, ``render`` and ``report`` show results; ``paper`` and ``suite`` are published experiments;
``cli`` is the command line.
"""

__version__ = "0.2.0"
