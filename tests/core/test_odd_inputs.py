"""Uses that are easy to get wrong: odd batches, frozen models, losses that are nan, copied models."""

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import prune

import alrao


def classifier():
    torch.manual_seed(0)
    return alrao.Alrao(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)))


def regression(seed):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(10, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 1))
    model = alrao.Alrao(net, likelihood="gaussian")
    return model, alrao.SGD(model), alrao.MixtureMSELoss(), torch.randn(256, 10)


def step(model, optimizer, x, y, factor=1.0):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y) * factor
    loss.backward()
    optimizer.step()
    return loss.item()


@pytest.fixture
def batch():
    generator = torch.Generator().manual_seed(1)
    return torch.randn(12, 6, generator=generator), torch.randint(3, (12,), generator=generator)


@pytest.mark.parametrize("seed", range(6))
def test_the_prediction_of_a_regression_is_as_good_as_its_loss(seed):
    # A copy that diverges but stays finite keeps a share of the switch's pool; it must not ruin the mean.
    model, optimizer, criterion, x = regression(seed)
    y = x[:, :1] - x[:, 1:2] * x[:, 2:3]
    for _ in range(300):
        rows = torch.randint(256, (32,))
        optimizer.zero_grad()
        criterion(model(x[rows]), y[rows]).backward()
        optimizer.step()
    with torch.no_grad():
        assert F.mse_loss(model(x), y) < 2 * y.var()
        assert F.mse_loss(model.collapse(mixture=True)(x), y) < 2 * y.var()


@pytest.mark.filterwarnings("ignore:the gradient of the copies of the head was 0")  # all of them fail
@pytest.mark.parametrize("seed", range(4))
def test_a_regression_on_a_large_scale_has_a_loss_that_is_neither_infinite_nor_nothing(seed):
    model, optimizer, criterion, x = regression(seed)
    y = 100 * x[:, :1]
    for _ in range(60):
        rows = torch.randint(256, (32,))
        optimizer.zero_grad()
        loss = criterion(model(x[rows]), y[rows])
        loss.backward()
        optimizer.step()
        assert 0 < loss.item() < torch.inf


@pytest.mark.parametrize("shape", ["squeeze", "view"])
def test_a_last_batch_of_one_sample(shape):
    model = alrao.Alrao(nn.Linear(6, 1), likelihood="gaussian")
    optimizer = alrao.SGD(model)
    out = model(torch.randn(1, 6))
    out = out.squeeze(1) if shape == "squeeze" else out.view(-1)
    alrao.MixtureMSELoss()(out, torch.randn(1)).backward()
    before = model.head.weight.clone()
    optimizer.step()
    assert not torch.equal(model.head.weight, before)


def test_inference_mode_before_training(batch):
    model = classifier()
    with torch.inference_mode():
        model(batch[0])
    optimizer = alrao.SGD(model)
    assert step(model, optimizer, *batch) > 0


def test_a_copied_model_uses_the_posterior_that_it_loads(batch):
    model, other = classifier(), classifier()
    optimizer = alrao.SGD(model)
    for _ in range(2):
        step(model, optimizer, *batch)
    copied = copy.deepcopy(model)
    for _ in range(5):
        step(model, optimizer, *batch)
    copied.load_state_dict(model.state_dict())
    other.load_state_dict(model.state_dict())
    assert torch.equal(copied(batch[0]), model(batch[0]))
    assert torch.equal(other(batch[0]), model(batch[0]))


@pytest.mark.parametrize("factor", [float("nan"), float("inf")])
@pytest.mark.parametrize("apart", [True, False])
def test_a_loss_that_is_not_finite_destroys_nothing(batch, factor, apart):
    model = classifier()
    groups = [{"params": model.body_parameters()}, {"params": model.head.parameters()}] if apart else None
    optimizer = alrao.SGD(model, params=groups, momentum=0.9)
    step(model, optimizer, *batch)
    posterior = model.posterior
    step(model, optimizer, *batch, factor=factor)
    assert all(p.isfinite().all() for p in model.parameters())
    assert torch.equal(model.posterior, posterior)
    assert step(model, optimizer, *batch) < torch.inf


@pytest.mark.parametrize("shape", [(12,), (12, 1), (1, 3), ()])
def test_soft_targets_of_another_shape_are_refused_as_by_torch(batch, shape):
    with pytest.raises((RuntimeError, ValueError, IndexError)):
        F.cross_entropy(classifier()(batch[0]), torch.rand(shape))


def test_a_model_state_of_another_number_of_copies_changes_nothing(batch):
    model = classifier()
    other = alrao.Alrao(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)), copies=7)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(RuntimeError, match="another number of copies"):
        model.load_state_dict(other.state_dict())
    assert all(torch.equal(model.state_dict()[key], value) for key, value in before.items())


def test_the_sum_of_evidence_counts_a_soft_label_once():
    torch.manual_seed(0)
    model = alrao.Alrao(nn.Linear(6, 2), 4, likelihood="bernoulli").double()
    x, y = torch.randn(5, 6).double(), torch.rand(5, 2).double()
    alrao.MixtureBCELoss()(model(x), y).backward()
    evidence = alrao.evidence.read(model.head.evidence.grad, 4)
    by_hand = [
        -F.binary_cross_entropy_with_logits(model.head.layer(j)(x), y, reduction="sum").item()
        for j in range(4)
    ]
    assert evidence.rows == 10
    assert evidence.log_likelihood("sum") == pytest.approx(by_hand)


def test_a_frozen_model_asks_for_no_gradient_and_gathers_no_evidence(batch):
    model = classifier()
    model.requires_grad_(False)
    assert not model(batch[0]).requires_grad
    x = batch[0].clone().requires_grad_()  # a generator's output, say
    F.cross_entropy(model(x), batch[1]).backward()
    assert model.head.evidence.grad is None
    assert x.grad.abs().sum() > 0


def test_rates_that_are_redrawn_come_from_the_distribution_that_was_saved(batch):
    model = classifier()
    optimizer = alrao.SGD(model, lr=alrao.paper.Redrawn((10.0, 100.0)))
    optimizer.load_state_dict(alrao.SGD(model, lr=alrao.paper.Redrawn((1e-4, 1.0))).state_dict())
    drawn = [optimizer.rates(p).clone() for p in model.body_parameters()]
    F.cross_entropy(model(batch[0]), batch[1]).backward()
    optimizer.step()
    again = [optimizer.rates(p) for p in model.body_parameters()]
    assert all((rates <= 1.0).all() for rates in [*drawn, *again])
    assert not any(torch.equal(*pair) for pair in zip(drawn, again, strict=True))


def test_the_forward_of_a_subclass_is_called(batch):
    class Halved(alrao.Alrao):
        def forward(self, x):
            return super().forward(x)[:6]

    assert len(Halved(nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3)))(batch[0])) == 6


def test_weights_that_are_kept_do_not_change_later():
    switch = alrao.Switch(2)
    first = switch.weights
    switch.update(torch.tensor([0.0, -5.0]))
    assert first.tolist() == [0.5, 0.5]
    switch.weights[0] = 5
    assert switch.weights.sum() == pytest.approx(1)


def test_copies_that_no_loss_has_gone_through_are_noticed(batch):
    model = classifier()
    optimizer = alrao.SGD(model)
    model.net[0](batch[0]).sum().backward()
    with pytest.warns(UserWarning, match="copies of its head have none"):
        optimizer.step()


@pytest.mark.parametrize("loss", [F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss])
@pytest.mark.parametrize("maximize", [False, True])
def test_losses_of_numbers_are_refused_at_the_step(batch, loss, maximize):
    model = classifier()
    optimizer = alrao.SGD(model, maximize=maximize)
    value = loss(model(batch[0]), F.one_hot(batch[1], 3).float())
    (-value if maximize else value).backward()
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(RuntimeError, match="cross_entropy or nll_loss"):
        optimizer.step()
    assert all(torch.equal(model.state_dict()[key], old) for key, old in before.items())


def by_inputs(model, x, y):
    F.cross_entropy(model(x), y).backward(inputs=list(model.parameters()))


def by_hand(model, x, y):
    parameters = list(model.parameters())
    for p, grad in zip(
        parameters, torch.autograd.grad(F.cross_entropy(model(x), y), parameters), strict=True
    ):
        p.grad = grad


@pytest.mark.parametrize("gradients", [by_inputs, by_hand])
def test_gradients_that_come_without_evidence_are_noticed(batch, gradients):
    model = classifier()
    optimizer = alrao.SGD(model)
    gradients(model, *batch)
    with pytest.warns(UserWarning, match="the posterior stays as it is"):
        optimizer.step()


def test_a_frozen_head_is_nothing_to_warn_of(batch):
    model = classifier()
    model.head.requires_grad_(False)
    before = model.net[0].weight.clone()
    step(model, alrao.SGD(model, lr=(1e-3, 1.0)), *batch)
    assert not torch.equal(model.net[0].weight, before)


@pytest.mark.parametrize(
    "write", [lambda state, new: state.data.copy_(new), lambda state, new: state.numpy().put(range(31), new)]
)
def test_a_posterior_that_is_written_past_autograd_counts_at_once(batch, write):
    model = classifier()
    optimizer = alrao.SGD(model)
    for _ in range(20):
        step(model, optimizer, *batch)
    averaging = model.head.averaging
    write(averaging._state, torch.tensor(averaging._prior(), dtype=torch.float64))
    logits = model.head.weight @ model.net[:2](batch[0]).T + model.head.bias[..., None]
    mixture = logits.softmax(1).mean(0).log().T
    torch.testing.assert_close(model(batch[0]).as_subclass(torch.Tensor), mixture)


@pytest.mark.parametrize("pruned", ["weight", "bias"])
def test_a_pruned_head_is_used_as_pruned(batch, pruned):
    model = classifier()
    kept = "bias" if pruned == "weight" else "weight"
    prune.l1_unstructured(model.head, pruned, 0.5)
    expected = classifier()
    with torch.no_grad():
        getattr(expected.head, pruned).copy_(getattr(model.head, pruned))
        getattr(expected.head, kept).copy_(getattr(model.head, kept))
    expected.net[0].load_state_dict(model.net[0].state_dict())
    assert not getattr(model.head, pruned).all()
    torch.testing.assert_close(model(batch[0]).exp(), expected(batch[0]).exp())


def test_soft_targets_with_a_class_to_ignore_are_refused_as_by_torch(batch):
    target = torch.rand(12, 3)
    for out in (torch.randn(12, 3), classifier()(batch[0])):
        with pytest.raises(RuntimeError, match="ignore_index is not supported for floating point target"):
            F.cross_entropy(out, target, ignore_index=0)


@pytest.mark.parametrize("assign", [False, True])
def test_a_state_with_other_names_changes_nothing(batch, assign):
    model = classifier()
    optimizer = alrao.SGD(model)
    deeper = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3), nn.ReLU(), nn.Linear(3, 3))
    other = alrao.Alrao(deeper).state_dict()
    other = {key: value for key, value in other.items() if "2" not in key and "4" not in key}
    other["4.weight"] = torch.zeros(2)
    before, parameters = copy.deepcopy(model.state_dict()), list(model.parameters())
    with pytest.raises(RuntimeError, match="Missing key"):
        model.load_state_dict(other, assign=assign)
    assert all(torch.equal(model.state_dict()[key], old) for key, old in before.items())
    assert all(p is q for p, q in zip(model.parameters(), parameters, strict=True))
    step(model, optimizer, *batch)


@pytest.mark.filterwarnings("ignore:Full backward hook is firing")  # of torch: the inputs need no gradient
@pytest.mark.parametrize("inside", [True, False])
def test_full_backward_hooks_change_nothing(inside, batch):
    """Hooks of a part of the network, and of the whole model, whose output keeps its type."""
    found = []
    for hooked in (True, False):
        torch.manual_seed(0)
        model, seen = classifier(), []
        if hooked:
            (model.net[1] if inside else model).register_full_backward_hook(lambda *_, s=seen: s.append(1))
        step(model, alrao.SGD(model), *batch)
        assert len(seen) == hooked
        found.append([p.grad for p in model.parameters()])
    assert all(map(torch.equal, *found))


def test_a_regressors_full_backward_hook_is_reported():
    model = alrao.Alrao(nn.Linear(4, 3), likelihood="gaussian")
    model.register_full_backward_hook(lambda *_: None)
    out = model(torch.randn(5, 4, requires_grad=True))
    with pytest.raises(RuntimeError, match=r"no gradient would reach the copies.*torch\.autograd\.Function"):
        alrao.MixtureMSELoss()(out, torch.zeros(5, 3))
