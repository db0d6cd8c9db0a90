"""The plain networks of the workbench: ordinary modules with their output layer.

``small`` holds those for two cores, ``paper`` the paper's, and ``vision`` torchvision's classifiers.
"""
