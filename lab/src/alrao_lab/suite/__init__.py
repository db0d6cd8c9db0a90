"""Learning-rate-free methods and tuned ones, on small workloads of different kinds.

``workloads`` are the networks and tasks, ``runs`` the ways to train them and what their runs show, ``page``
how it is shown.
"""
