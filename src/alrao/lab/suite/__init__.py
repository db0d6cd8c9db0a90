"""Learning-rate-free methods and tuned ones, on small workloads of different kinds.

``workloads`` are the networks and tasks, ``contenders`` the ways to train, ``runs`` the runs and what they
show, ``page`` how it is shown.
"""
