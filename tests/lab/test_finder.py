"""The learning-rate finder: its rule, and that it leaves no trace."""

import copy

import torch
from support.lab_runs import settings

from alrao.lab.finder import find_rate, valley
from alrao.lab.resolve import resolve
from alrao.lab.seeds import seed_of

CPU = torch.device("cpu")


def problem_and_net():
    """The data and the network as a run has them at its start."""
    task, resolved = resolve(settings(method="finder"))
    torch.manual_seed(seed_of(resolved.seed, "network"))
    problem = task.load(resolved, CPU)
    return problem, problem.network()


def test_the_finder_leaves_the_network_and_the_generator_alone():
    problem, net = problem_and_net()
    before, random = copy.deepcopy(net.state_dict()), torch.get_rng_state()
    rate = find_rate(net, problem)
    assert 1e-5 < rate < 1
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert torch.equal(torch.get_rng_state(), random)


def test_the_valley_is_the_longest_descent():
    rates = [10.0**-i for i in range(8, 0, -1)]
    assert valley(rates, [5.0, 4.0, 3.0, 2.0, 1.0, 9.0, 8.0, 7.0]) == 1e-6
    assert valley(rates, [1.0] * 8) == 1e-8
