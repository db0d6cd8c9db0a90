"""Programs of others, run as they are and with Auto in the place of their optimizer.

``recipes.toml`` says where each is, how it runs, and which lines change; ``harness`` runs them, ``page``
shows the figures.
"""
