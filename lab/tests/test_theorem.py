"""Appendix B of the paper: one good rate is enough, whatever the other copies do.

Convex loss, fixed body, full-batch gradient, Bayesian averaging: if one copy's rate is below 1/lambda, lambda
a bound on the Hessian, then the mixture's loss tends to the optimum, although other copies diverge.
"""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from scipy.optimize import minimize
from torch import nn

import alrao

ROWS, FEATURES, CLASSES = 60, 3, 3


@pytest.fixture(scope="module")
def problem():
    """Noisy labels, so that the classes overlap and the optimum is finite; its loss; the bound lambda."""
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(ROWS, FEATURES, generator=generator, dtype=torch.float64)
    noise = torch.randn(ROWS, CLASSES, generator=generator, dtype=torch.float64)
    y = (x + 2 * noise).argmax(1)
    inputs = np.hstack([x.numpy(), np.ones((ROWS, 1))])
    labels = np.eye(CLASSES)[y.numpy()]

    def loss_and_gradient(flat):
        logits = inputs @ flat.reshape(-1, CLASSES)
        logits -= logits.max(1, keepdims=True)
        p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        loss = -np.log((p * labels).sum(1)).mean()
        return loss, (inputs.T @ (p - labels) / ROWS).ravel()

    start = np.zeros(inputs.shape[1] * CLASSES)
    solved = minimize(loss_and_gradient, start, jac=True, method="BFGS", options={"gtol": 1e-9})
    assert np.abs(solved.x).max() < 10, "the classes overlap"
    # The Hessian of a softmax's loss in its logits, diag(p) - p p', is at most 1/2.
    bound = 0.5 * np.linalg.eigvalsh(inputs.T @ inputs / ROWS).max()
    return x, y, float(solved.fun), float(bound)


def losses_of_training(problem, lowest, highest, copies, evidence, steps=1500):
    """The mixture's loss and each copy's, step by step, for rates between the two multiples of 1/lambda."""
    x, y, _, bound = problem
    net = nn.Linear(FEATURES, CLASSES, dtype=torch.float64)
    model = alrao.Alrao(net, copies, averaging=alrao.paper.BayesianAverage(copies))
    optimizer = alrao.SGD(model, lr=(lowest / bound, highest / bound), evidence=evidence)
    mixture, own = [], []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        mixture.append(loss.item())
    with torch.no_grad():
        for weight, bias in zip(model.head.weight, model.head.bias, strict=True):
            own.append(F.cross_entropy(F.linear(x, weight, bias), y).item())
    return np.array(mixture), np.array(own), model.posterior


@pytest.mark.parametrize("evidence", ["mean", "sum"])
def test_one_rate_below_the_bound_is_enough(problem, evidence):
    optimum = problem[2]
    # Multiples of 1/lambda: 0.9, 18, 360, 7200. Only the first is below 1.
    mixture, own, posterior = losses_of_training(problem, 0.9, 7200, 4, evidence)
    assert (own[1:] > optimum + 0.5).all(), "the other copies do diverge"
    assert posterior[0] > 1 - 1e-9
    np.testing.assert_allclose(mixture[-10:], optimum, rtol=0, atol=1e-8)


def test_with_all_rates_above_the_bound_the_optimum_is_not_reached(problem):
    optimum = problem[2]
    mixture, own, _ = losses_of_training(problem, 20, 1000, 4, "mean")
    assert (own > optimum + 0.1).all()
    assert mixture[-100:].min() > optimum + 0.1
    assert np.isfinite(mixture).all()
