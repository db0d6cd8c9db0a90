"""Copies of an adaptive softmax, against real ones that hold the same weights."""

import copy
from math import inf, nan

import pytest
import torch
from torch import nn

import alrao

COPIES, ROWS, INPUTS, FEATURES, CLASSES = 3, 9, 4, 8, 12
TARGET = torch.tensor([0, 3, 4, 7, 8, 11, 2, 5, 9])  # frequent ones, and some in each cluster
CONFIGURATIONS = {
    "two_clusters": {"cutoffs": [4, 8], "div_value": 2.0},
    "one_cluster": {"cutoffs": [5]},
    "head_bias": {"cutoffs": [4, 8], "div_value": 2.0, "head_bias": True},
}
CONFIGURED = pytest.mark.parametrize("name", CONFIGURATIONS)


class Net(nn.Module):
    """A language model in miniature."""

    def __init__(self, cutoffs, **options):
        super().__init__()
        self.body = nn.Linear(INPUTS, FEATURES)
        self.output = nn.AdaptiveLogSoftmaxWithLoss(FEATURES, CLASSES, cutoffs, **options)

    def features(self, x):
        return self.body(x).tanh()

    def forward(self, x, target):
        return self.output(self.features(x), target)


def converted(name="two_clusters", dtype=torch.float64, **options):
    """A model with spread copies and a posterior that is not uniform."""
    model = alrao.Alrao(Net(**CONFIGURATIONS[name]), COPIES, **options).to(dtype)
    with torch.no_grad():
        for parameter in model.head.parameters():
            parameter.mul_(3).add_(torch.randn_like(parameter) / 4)
    for _ in range(3):
        model.head.averaging.update(torch.randn(COPIES))
    return model


def batch(rows=ROWS):
    return torch.randn(rows, INPUTS, dtype=torch.float64)


def layers(model):
    return [model.head.layer(j) for j in range(COPIES)]


def log_mixture(model, log_p):
    log_p = torch.stack(log_p)
    return (log_p + model.posterior.log().view([-1] + [1] * (log_p.ndim - 1))).logsumexp(0)


@CONFIGURED
def test_the_output_is_the_mixture_of_real_layers(name):
    model, x = converted(name), batch()
    z = model.features(x)
    expected = log_mixture(model, [layer(z, TARGET).output for layer in layers(model)])
    out = model(x, TARGET)
    torch.testing.assert_close(out.output, expected)
    torch.testing.assert_close(out.loss, -expected.mean())


@CONFIGURED
@pytest.mark.parametrize("weigh", [None, torch.linspace(0, 2, ROWS, dtype=torch.float64)])
def test_gradients_and_evidence_are_those_of_the_two_passes(name, weigh):
    model, x = converted(name), batch()
    weights = torch.full((ROWS,), 1 / ROWS, dtype=torch.float64) if weigh is None else weigh
    body = copy.deepcopy(model.body)
    z = body(x).tanh()
    mixture = log_mixture(model, [layer(z, TARGET).output for layer in layers(model)])
    body_grads = torch.autograd.grad(-(mixture * weights).sum(), list(body.parameters()))
    out = model(x, TARGET)
    loss = out.loss if weigh is None else -(out.output * weigh).sum()
    loss.backward()
    for parameter, grad in zip(model.body_parameters(), body_grads, strict=True):
        torch.testing.assert_close(parameter.grad, grad)
    evidence = model.head.evidence.grad.double()
    of_copies = [p.grad for p in model.head.parameters()]
    for j, layer in enumerate(layers(model)):
        own = layer(z.detach(), TARGET).output
        (-(own * weights).sum()).backward()
        for grads, parameter in zip(of_copies, layer.parameters(), strict=True):
            torch.testing.assert_close(grads[j], parameter.grad)
        score = (own.detach() * weights).sum() / weights.sum()
        torch.testing.assert_close(evidence[j] / evidence[COPIES], score, rtol=1e-5, atol=1e-6)


@CONFIGURED
def test_log_prob_and_predict_are_those_of_the_mixture(name):
    model = converted(name)
    z = model.features(batch())
    expected = log_mixture(model, [layer.log_prob(z) for layer in layers(model)])
    got = model.head.log_prob(z)
    assert got.shape == (ROWS, CLASSES)
    torch.testing.assert_close(got.detach(), expected.detach())
    torch.testing.assert_close(got.detach().exp().sum(1), torch.ones(ROWS, dtype=torch.float64))
    assert torch.equal(model.head.predict(z), expected.argmax(1))


def test_one_sample_without_a_batch():
    model = converted()
    x = batch()
    several, one = model(x, TARGET), model(x[4], TARGET[4])
    assert one.output.shape == ()
    torch.testing.assert_close(one.output, several.output[4])
    torch.testing.assert_close(one.loss, -several.output[4])


@CONFIGURED
@pytest.mark.parametrize("make", [alrao.SGD, alrao.Adam])
def test_a_step_trains_and_moves_the_posterior(name, make):
    model, x = converted(name), batch()
    optimizer = make(model, lr=(1e-3, 0.1))
    reference = copy.deepcopy(model.head.averaging)
    reference.update(torch.stack([-layer(model.features(x), TARGET).loss for layer in layers(model)]))
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    loss = model(x, TARGET).loss
    loss.backward()
    optimizer.step()
    torch.testing.assert_close(model.posterior, reference.weights, rtol=1e-5, atol=1e-6)
    assert all(not torch.equal(p, before[n]) for n, p in model.named_parameters())
    for _ in range(60):
        optimizer.zero_grad()
        model(x, TARGET).loss.backward()
        optimizer.step()
    assert model(x, TARGET).loss < loss - 0.1


def test_every_copy_moves_at_its_own_rate():
    model, x = converted(), batch()
    optimizer = alrao.SGD(model, lr=(1e-3, 0.1))
    model(x, TARGET).loss.backward()
    expected = []
    for rate, layer in zip((1e-3, 1e-2, 1e-1), layers(model), strict=True):
        plain = torch.optim.SGD(layer.parameters(), rate)
        layer(model.features(x).detach(), TARGET).loss.backward()
        plain.step()
        expected.append(list(layer.parameters()))
    optimizer.step()
    for j, parameters in enumerate(expected):
        for stacked, parameter in zip(model.head.parameters(), parameters, strict=True):
            torch.testing.assert_close(stacked[j].detach(), parameter.detach())


@CONFIGURED
def test_collapse_gives_a_plain_network_with_the_winner(name):
    model, x = converted(name), batch()
    winner = int(model.posterior.argmax())
    plain = model.collapse()
    assert type(plain.output) is nn.AdaptiveLogSoftmaxWithLoss
    expected = layers(model)[winner](model.features(x), TARGET)
    torch.testing.assert_close(plain(x, TARGET).output, expected.output)
    with pytest.raises(ValueError, match="collapse"):
        model.collapse(mixture=True)


def test_keep_output_starts_every_copy_from_the_layer():
    net = Net(**CONFIGURATIONS["two_clusters"]).double()
    x = batch()
    expected = net(x, TARGET).output.detach()
    model = alrao.Alrao(net, COPIES, keep_output=True)
    torch.testing.assert_close(model(x, TARGET).output.detach(), expected)


def test_fresh_copies_differ_from_each_other():
    model = alrao.Alrao(Net([4]), COPIES)
    for name, parameter in model.head.named_parameters():
        assert not torch.equal(parameter[0], parameter[1]), name


@pytest.mark.parametrize("wreck", [nan, inf, -inf])
def test_a_wrecked_copy_is_out_and_the_others_train_without_it(wreck):
    model, x = converted(), batch()
    optimizer = alrao.SGD(model, lr=(1e-3, 0.1))
    living = [0, 2]
    body = copy.deepcopy(model.body)
    z = body(x).tanh()
    with torch.no_grad():
        next(model.head.parameters())[1] = wreck
    own = torch.stack([model.head.layer(j)(z, TARGET).output for j in living])
    mixture = (own + model.posterior[living].log()[:, None]).logsumexp(0)
    expected = torch.autograd.grad(-mixture.mean(), list(body.parameters()))
    loss = model(x, TARGET).loss
    assert loss.isfinite()
    loss.backward()
    for parameter in model.head.parameters():
        assert (parameter.grad[1] == 0).all()
        assert parameter.grad[living].isfinite().all()
    for parameter, grad in zip(model.body_parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, grad)
    optimizer.step()
    assert model.posterior[1] == 0
    assert model.head.log_prob(z).isfinite().all()


def test_training_with_log_prob_is_refused():
    model, x = converted(), batch()
    optimizer = alrao.SGD(model)
    model(x, TARGET)
    (-model.head.log_prob(model.features(x))[:, 0].mean()).backward()
    posterior = model.posterior
    with pytest.raises(RuntimeError, match="the loss, or the target's log-probabilities"):
        optimizer.step()
    assert torch.equal(model.posterior, posterior)


@pytest.mark.parametrize("target", [TARGET[:3], TARGET.clamp(min=1) + 1, TARGET - 1])
def test_targets_that_do_not_fit_are_refused(target):
    with pytest.raises(RuntimeError, match=r"[Tt]arget"):  # by torch's layer itself
        converted()(batch(), target)


def test_another_likelihood_is_refused():
    with pytest.raises(ValueError, match="adaptive softmax is categorical"):
        alrao.Alrao(Net([4]), COPIES, likelihood="gaussian")


def test_state_dict_round_trip():
    model, other, x = converted("head_bias"), converted("head_bias"), batch()
    other.load_state_dict(model.state_dict())
    assert torch.equal(other(x, TARGET).output, model(x, TARGET).output)
