"""Losses written by hand: a likelihood trains, a distance to a target is refused whatever its sign."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import alrao

N, CLASSES = 16, 5
ROW, Y = torch.arange(N), torch.arange(N) % CLASSES
ONE_HOT = F.one_hot(Y, CLASSES).float()
WEIGHTS = torch.linspace(0, 1, N)
SOFT = torch.linspace(0, 3, N * CLASSES).view(N, CLASSES).cos().softmax(1)
ABOVE = torch.linspace(1, 2, N * CLASSES).view(N, CLASSES)  # targets above every log-probability


def hardest(out):
    losses = -out[ROW, Y]
    return losses[losses > losses.detach().median()].mean()


def focal(out):
    log_p = (ONE_HOT * out.log_softmax(1)).sum(1)
    return (-((1 - log_p.exp()) ** 2) * log_p).mean()


def sum_of_rows(out):
    total = torch.zeros(())
    for i in range(N):
        total = total - out[i, Y[i]]
    return total / N


LIKELIHOODS = {
    "times one-hot": lambda out: -(out * ONE_HOT).sum(1).mean(),
    "indexed": lambda out: -out[range(N), Y].mean(),
    "gathered": lambda out: -out.gather(1, Y[:, None]).squeeze(1).mean(),
    "weighted samples": lambda out: (-out[ROW, Y] * WEIGHTS).sum() / WEIGHTS.sum(),
    "soft targets": lambda out: -(SOFT * out.log_softmax(1)).sum(1).mean(),
    "Kullback-Leibler": lambda out: (SOFT * (SOFT.log() - out)).sum(1).mean(),
    "smoothed": lambda out: (0.9 * -out[ROW, Y] - 0.1 * out.mean(1)).mean(),
    "where": lambda out: -torch.where(ONE_HOT > 0, out, torch.zeros(())).sum(1).mean(),
    "masked_fill": lambda out: -out.masked_fill(ONE_HOT == 0, 0).sum(1).mean(),
    "masked_select": lambda out: -out.masked_select(ONE_HOT > 0).mean(),
    "einsum": lambda out: -torch.einsum("nc,nc->n", out, ONE_HOT).mean(),
    "matrix product": lambda out: -(out @ ONE_HOT.t()).diagonal().mean(),
    "clamped": lambda out: -out.clamp(min=-100)[ROW, Y].mean(),
    "the hardest samples": hardest,
    "the largest losses": lambda out: (-out[ROW, Y]).topk(4).values.mean(),
    "row by row": sum_of_rows,
    "stacked rows": lambda out: torch.stack([-out[i, Y[i]] for i in range(N)]).mean(),
    "added to groups": lambda out: torch.zeros(4).index_add_(0, ROW % 4, -out[ROW, Y]).mean(),
    "one of several classes": lambda out: -torch.logaddexp(out[ROW, Y], out[ROW, (Y + 1) % CLASSES]).mean(),
    "a ratio of probabilities": lambda out: -(out[ROW, Y] - out[ROW, Y].detach()).exp().mean(),
    "focal": focal,
    "flooding": lambda out: (-out[ROW, Y].mean() - 0.01).abs() + 0.01,
}
DISTANCES = {
    "mse_loss": lambda out: F.mse_loss(out.view(-1), ABOVE.view(-1)),
    "mse_loss of one output": lambda out: F.mse_loss(out[:, 0], ABOVE[:, 0]),
    "mse_loss, the target first": lambda out: F.mse_loss(ABOVE, out),
    "nn.MSELoss": lambda out: nn.MSELoss()(out.reshape(-1), ABOVE.reshape(-1)),
    "l1_loss": lambda out: F.l1_loss(out.view(-1), ABOVE.view(-1)),
    "smooth_l1_loss": lambda out: F.smooth_l1_loss(out.view(-1), ABOVE.view(-1)),
    "huber_loss": lambda out: F.huber_loss(out * 1, ABOVE),
    "squared": lambda out: ((out - ABOVE) ** 2).mean(),
    "the square of one output": lambda out: (ABOVE[:, 0] - out[ROW, Y]).square().mean(),
    "squared in place": lambda out: out.clone().sub_(ABOVE).pow_(2).mean(),
    "a product with itself": lambda out: ((out - ABOVE) * (out - ABOVE)).mean(),
    "an inner product": lambda out: (out - ABOVE).flatten() @ (out - ABOVE).flatten(),
    "a norm": lambda out: torch.norm(out - ABOVE),
    "absolute": lambda out: (ABOVE - out).abs().mean(),
    "log cosh": lambda out: torch.log(torch.cosh(out - ABOVE)).mean(),
    "hinge": lambda out: F.relu(1 - out[ROW, Y]).mean(),
    "clamped hinge": lambda out: (1 - out).clamp(min=0).mean(),
    "squared hinge": lambda out: F.relu(1 - out).pow(2).mean(),
    "softplus": lambda out: F.softplus(1 - out).mean(),
    "soft_margin_loss": lambda out: F.soft_margin_loss(out, torch.ones(N, CLASSES)),
    "quantile": lambda out: torch.maximum(0.5 * (ABOVE - out), 0.5 * (out - ABOVE)).mean(),
    "after a tanh": lambda out: ((out.tanh() - ABOVE) ** 2).mean(),
    "a value of one sample": lambda out: (2.0 - out[0, 1]).abs(),
}


def model():
    torch.manual_seed(0)
    return alrao.Alrao(nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, CLASSES)), 3)


@pytest.mark.parametrize("name", LIKELIHOODS)
def test_a_likelihood_trains(name):
    converted, x = model(), torch.randn(N, 4)
    optimizer = alrao.SGD(converted, lr=(1e-4, 1e-2))
    before = [p.detach().clone() for p in converted.parameters()]
    for _ in range(3):
        optimizer.zero_grad()
        LIKELIHOODS[name](converted(x)).backward()
        optimizer.step()
    assert not any(map(torch.equal, before, converted.parameters()))


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("name", DISTANCES)
def test_a_distance_is_refused_though_every_output_is_below_its_target(name, maximize):
    converted, x = model(), torch.randn(N, 4)
    optimizer = alrao.SGD(converted, lr=(1e-4, 1e-2), maximize=maximize)
    before = [p.detach().clone() for p in converted.parameters()]

    def train():
        loss = DISTANCES[name](converted(x))
        (-loss if maximize else loss).backward()
        optimizer.step()

    with pytest.raises(RuntimeError, match=r"the loss is not a negative log-likelihood.*alrao\.Auto\(net\)"):
        train()
    assert all(torch.equal(p, old) for p, old in zip(converted.parameters(), before, strict=True))


@pytest.mark.parametrize("name", DISTANCES)
def test_a_distance_has_torchs_value(name):
    out = model()(torch.randn(N, 4))
    expected = DISTANCES[name](out.detach().as_subclass(torch.Tensor))
    torch.testing.assert_close(DISTANCES[name](out).detach().as_subclass(torch.Tensor), expected)
