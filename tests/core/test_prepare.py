"""``prepare`` converts a network where the loss of a first batch allows it, and leaves it plain elsewhere."""

import logging

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import alrao

torch.manual_seed(0)
X = torch.randn(32, 6)
Y = X[:, :3].argmax(1)


def network(outputs=3):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, outputs)
    )


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.value, self.policy = nn.Linear(6, 16), nn.Linear(16, 1), nn.Linear(16, 3)

    def forward(self, x):
        h = self.body(x).relu()
        return self.policy(h), self.value(h)


def dice(net):
    p, target = net(X).softmax(1), F.one_hot(Y, 3)
    return 1 - 2 * (p * target).sum() / (p.sum() + target.sum())


def actor_critic(net):
    logits, value = net(X)
    return F.cross_entropy(logits, Y) + F.mse_loss(value[:, 0], X[:, 0])


def policy(net):
    return -(torch.distributions.Categorical(logits=net(X)).log_prob(Y) * X[:, 0]).mean()


def contrastive(net):
    return F.cross_entropy(F.normalize(net(X)) @ F.normalize(net(X + 0.1)).T, torch.arange(32))


class LanguageModel(nn.Module):
    def __init__(self, symbols=20, units=16, tied=False):
        super().__init__()
        self.embedding = nn.Embedding(symbols, units)
        self.lstm = nn.LSTM(units, units, batch_first=True)
        self.decoder = nn.Linear(units, symbols)
        if tied:
            self.decoder.weight = self.embedding.weight

    def forward(self, text):
        return self.decoder(self.lstm(self.embedding(text))[0])


class ResNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.block = self.layer(1, 8), nn.Sequential(self.layer(8, 8), nn.ReLU(), self.layer(8, 8))
        self.fc = nn.Linear(8, 3)

    @staticmethod
    def layer(inputs, outputs):
        return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        h = self.stem(x).relu()
        return self.fc((h + self.block(h)).relu().mean((2, 3)))


def next_symbol(net):
    output = net(TEXT[:, :-1])
    return F.cross_entropy(output.flatten(0, 1), TEXT[:, 1:].flatten())


TEXT = torch.arange(80).view(4, 20) % 20
PICTURES = X.view(32, 1, 2, 3)
WRAPPED = {
    "cross-entropy": (network, lambda net: F.cross_entropy(net(X), Y, label_smoothing=0.1)),
    "nll": (network, lambda net: F.nll_loss(F.log_softmax(net(X), 1), Y)),
    "LSTM": (LanguageModel, next_symbol),
    "ResNet": (ResNet, lambda net: F.cross_entropy(net(PICTURES), Y)),
}


def scores(net):
    return net(torch.cat([X, X.abs()]))[:, 0]  # of real rows and of generated ones


def critic(net):
    return F.relu(1 - scores(net)[:32]).mean() + F.relu(1 + scores(net)[32:]).mean()


def binary_critic(net):
    return F.binary_cross_entropy_with_logits(scores(net), torch.arange(64) // 32 * 1.0)


def generator(net):
    return -CRITIC(net(X)).mean()


CRITIC = nn.Linear(3, 1)
PLAIN = {
    "Dice": (network, dice, "not a negative log-likelihood"),
    "two heads": (TwoHeads, actor_critic, "several layers"),
    "policy": (network, policy, "not a negative log-likelihood"),
    "contrastive": (network, contrastive, "not a negative log-likelihood"),
    "hinge": (network, lambda net: F.multi_margin_loss(net(X), Y), "not a negative log-likelihood"),
    "regression": (lambda: network(1), lambda net: F.mse_loss(net(X)[:, 0], X[:, 0]), "single output"),
    "critic": (lambda: network(1), critic, "single output"),
    "binary critic": (lambda: network(1), binary_critic, "single output"),
    "generator": (network, generator, "not a negative log-likelihood"),
    "tied": (lambda: LanguageModel(tied=True), next_symbol, "tied to"),
    "words": (lambda: LanguageModel(9000), next_symbol, "copies of its output layer would have 1,530,000"),
    "no loss": (network, None, "no loss was given"),
}


def train(model, optimizer, loss):
    before = loss(model).item()
    for _ in range(30):
        optimizer.zero_grad()
        loss(model).backward()
        optimizer.step()
    assert loss(model).item() < before


@pytest.mark.parametrize("name", WRAPPED)
def test_a_likelihood_gets_copies(name, caplog):
    build, loss = WRAPPED[name]
    net = build()
    with caplog.at_level(logging.INFO, "alrao"):
        model, optimizer = alrao.prepare(net, loss, steps=30)
    assert isinstance(model, alrao.Alrao)
    assert model.net is net
    assert "copies of its output layer" in caplog.text
    train(model, optimizer, loss)


@pytest.mark.parametrize("name", PLAIN)
def test_any_other_loss_leaves_the_network_plain(name, caplog):
    build, loss, why = PLAIN[name]
    net = build()
    before = {key: value.clone() for key, value in net.state_dict().items()}
    with caplog.at_level(logging.INFO, "alrao"):
        model, optimizer = alrao.prepare(net, loss, steps=30)
    assert model is net
    assert why in caplog.text
    torch.testing.assert_close(dict(net.state_dict()), before, rtol=0, atol=0)
    train(model, optimizer, loss or WRAPPED["nll"][1])


def test_an_error_of_the_loss_is_the_users():
    with pytest.raises(ValueError, match="mine"):
        alrao.prepare(network(), lambda net: (_ for _ in ()).throw(ValueError("mine")))


def test_the_trial_takes_no_random_numbers():
    torch.manual_seed(1)
    alrao.Auto(alrao.Alrao(network()))
    numbers = torch.get_rng_state()
    torch.manual_seed(1)
    alrao.prepare(network(), WRAPPED["nll"][1])
    assert torch.equal(torch.get_rng_state(), numbers)


@pytest.mark.parametrize("loss", [lambda net: 1.0, lambda net: net(torch.randn(4, 6)), lambda net: ()])
def test_a_loss_must_be_one_number(loss):
    with pytest.raises(TypeError, match="a tensor of one number"):
        alrao.prepare(network(), loss)


def test_sparse_gradients_which_auto_refuses_leave_the_network_plain():
    net = nn.Sequential(nn.Embedding(9, 6, sparse=True), nn.Flatten(), nn.Linear(12, 3))
    x, y = torch.randint(9, (8, 2)), torch.randint(3, (8,))
    model, _ = alrao.prepare(net, lambda net: F.cross_entropy(net(x), y))
    assert model is net


def test_a_network_must_have_parameters():
    with pytest.raises(ValueError, match="a network with parameters"):
        alrao.prepare(nn.ReLU())


def test_it_may_be_called_without_gradients():
    with torch.no_grad():
        model, _ = alrao.prepare(network(), WRAPPED["nll"][1])
    assert isinstance(model, alrao.Alrao)
