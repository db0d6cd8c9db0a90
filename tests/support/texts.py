"""Batches as lists: shared by the tests of texts."""


def listed(batches):
    return [(inputs.tolist(), targets.tolist()) for inputs, targets in batches]
