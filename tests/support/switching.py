"""The switch's posterior by plain enumeration."""

from itertools import combinations, pairwise, product

import numpy as np


def enumerate_switches(likelihoods, theta):
    """The posterior of the model used next, summed over every switching sequence.

    ``likelihoods`` is (steps, models). A sequence changes its model after ``t_2 < t_3 < ...`` batches. Those
    with the same switches among the batches seen are summed: either the last of these was the last of all, or
    the next one comes later.
    """
    steps, models = likelihoods.shape
    mass = np.zeros(models)
    for switches in range(steps + 1):
        for times in combinations(range(1, steps + 1), switches):
            starts = (0, *times)
            prior = theta**switches / models ** (switches + 1)
            for before, now in pairwise(starts):
                prior *= (before + 1) / (now * (now + 1))  # P(T = now | T > before) for pi(t) = 1/(t(t+1))
            later = (starts[-1] + 1) / (steps + 1)  # P(T > steps | T > last)
            prior *= (1 - theta) + theta * later
            segments = np.searchsorted(starts, np.arange(steps), side="right") - 1
            for sequence in product(range(models), repeat=switches + 1):
                used = np.array(sequence)[segments]
                mass[sequence[-1]] += prior * likelihoods[np.arange(steps), used].prod()
    return mass / mass.sum()
