"""Weights that a program changes between Auto's steps: what is evaluated is what the program has written."""

import copy
import gc

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import alrao
from alrao.runtime.edits import Written

X = torch.randn(256, 8, generator=torch.Generator().manual_seed(0))
Y = X @ torch.randn(8, 3, generator=torch.Generator().manual_seed(1))


def network(hidden=16):
    torch.manual_seed(2)
    return nn.Sequential(nn.Linear(8, hidden), nn.Tanh(), nn.Linear(hidden, 3))


def loss_of(net):
    return F.mse_loss(net(X), Y)


def train(net, optimizer, steps, after=lambda: None):
    for step in range(steps):
        rows = torch.randint(len(X), (32,), generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        F.mse_loss(net(X[rows]), Y[rows]).backward()
        optimizer.step()
        after()


def masked(p):
    mask = torch.rand(p.shape, generator=torch.Generator().manual_seed(3)) < 0.5
    p.mul_(mask.to(p.dtype))


def clamped(p):
    p.clamp_(-0.1, 0.1)


def renormalised(p):
    p.div_(p.norm(dim=-1, keepdim=True).clamp(min=1.0))


EDITS = {"masked": masked, "clamped": clamped, "renormalised": renormalised}


@pytest.mark.parametrize("through", ["data", "no_grad"])
@pytest.mark.parametrize("edit", EDITS)
def test_weights_changed_after_each_step_are_changed_in_evaluation_too(edit, through):
    net = network()
    optimizer = alrao.Auto(net, steps=300)

    def change():
        with torch.no_grad():
            for layer in (net[0], net[2]):
                EDITS[edit](layer.weight.data if through == "data" else layer.weight)

    train(net, optimizer, 300, change)
    training = loss_of(net).item()
    net.eval()
    assert loss_of(net).item() < 1.5 * training + 0.05
    for layer in (net[0], net[2]):
        now = layer.weight.detach().clone()
        EDITS[edit](now)
        torch.testing.assert_close(now, layer.weight.detach(), rtol=0.2, atol=0.02)
    if edit == "masked":
        mask = torch.rand(net[0].weight.shape, generator=torch.Generator().manual_seed(3)) < 0.5
        assert not net[0].weight.detach()[~mask].any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_edit_at_the_end_of_the_search_is_in_a_checkpoint(dtype):
    runs = []
    for resumed in False, True:
        net = network().to(dtype)
        optimizer = alrao.Auto(net, steps=10)
        for step in range(6):
            if step == 3:
                assert optimizer.search.over
                net.eval()
                with torch.no_grad():
                    masked(net[0].weight)
                if resumed:
                    states = copy.deepcopy([net.state_dict(), optimizer.state_dict()])
                    net = network().to(dtype)
                    optimizer = alrao.Auto(net, steps=10)
                    net.load_state_dict(states[0])
                    optimizer.load_state_dict(states[1])
                net.train()
            optimizer.zero_grad()
            F.mse_loss(net(X.to(dtype)), Y.to(dtype)).backward()
            optimizer.step()
        runs.append((net[0].weight.detach().clone(), optimizer.state[net[0].weight]["z"]))
    for one, other in zip(*runs, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("at", [10, 100], ids=["in the search", "after it"])
@pytest.mark.parametrize("training", [True, False])
def test_a_layer_that_is_set_once_stays_set(training, at):
    net = network()
    optimizer = alrao.Auto(net, steps=167)
    train(net, optimizer, at)
    net.train(training)
    net[0].weight.data.fill_(0.5)
    net[2].weight.data[0] = 0.25
    net.eval()
    assert bool((net[0].weight == 0.5).all())
    assert bool((net[2].weight[0] == 0.25).all())
    net.train()
    assert bool((net[0].weight == 0.5).all())
    assert bool((net[2].weight[0] == 0.25).all())
    other = copy.deepcopy(optimizer.state[net[2].weight].get("z"))
    if other is not None and training is False:
        assert not torch.equal(other[1:], net[2].weight[1:]), "the average of the other rows is kept"
    train(net, optimizer, 60)
    assert loss_of(net.eval()).isfinite()


@pytest.mark.parametrize("cast", [False, True], ids=["", "cast to float64 meanwhile"])
def test_an_embedding_with_a_largest_norm_is_evaluated_without_a_change_to_its_training(cast):
    def build():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Embedding(10, 4, max_norm=1.0), nn.Flatten(), nn.Linear(12, 3))
        return net, alrao.Auto(net, steps=100)

    def train(net, optimizer, steps, visit):
        for step in steps:
            rows = torch.randint(10, (16, 3), generator=torch.Generator().manual_seed(step))
            optimizer.zero_grad()
            F.cross_entropy(net(rows), rows[:, 0] % 3).backward()
            optimizer.step()
            if visit:
                with torch.no_grad():
                    net.eval()(rows)
                net.double() if cast else None
                net.train().float()

    runs = [build(), build()]
    for (net, optimizer), visit in zip(runs, (False, True), strict=True):
        train(net, optimizer, range(80), visit)
    (one, its), (other, _) = runs
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.equal(p, q), "evaluation changes nothing"
    assert its.state[one[2].weight]["k"] == 50


GIVEN = {
    "the network": lambda net: net,
    "parameters": lambda net: net.parameters(),
    "named parameters": lambda net: net.named_parameters(),
    "some of the parameters": lambda net: [net[0].weight],
}


@pytest.mark.parametrize("older", GIVEN)
@pytest.mark.parametrize("newer", GIVEN)
def test_only_the_newest_of_two_optimizers_steps(older, newer):
    net = network()
    first = alrao.Auto(GIVEN[older](net))
    train(net, first, 2)
    second = alrao.Auto(GIVEN[newer](net))
    loss_of(net).backward()
    second.step()
    with pytest.raises(RuntimeError, match="only one optimizer can average them"):
        first.step()
    first.state_dict()


@pytest.mark.parametrize("older", GIVEN)
def test_an_optimizer_of_the_network_does_not_step_beside_one_of_its_alrao_model(older):
    net = network()
    first = alrao.Auto(GIVEN[older](net))
    alrao.Auto(alrao.Alrao(net, 3))
    with pytest.raises(RuntimeError, match=r"only one optimizer can average|not those that the"):
        first.step()


def test_two_optimizers_of_different_parameters_both_step():
    net = network()
    first = alrao.Auto(net[0])
    second = alrao.Auto(net[2])
    before = [p.detach().clone() for p in net.parameters()]
    loss_of(net).backward()
    first.step()
    second.step()
    assert not any(map(torch.equal, before, net.parameters()))


def test_a_torch_optimizer_in_between_is_followed():
    net = network()
    optimizer = alrao.Auto(net, steps=100)
    train(net, optimizer, 60)
    other = torch.optim.SGD(net.parameters(), lr=0.01)
    train(net, other, 60)
    now = [p.detach().clone() for p in net.parameters()]
    assert all(map(torch.equal, now, net.eval().parameters()))


def test_neurons_that_change_their_places_do_so_in_all_sets_of_weights():
    net = network()
    optimizer = alrao.Auto(net, steps=100)
    train(net, optimizer, 60)
    order = torch.randperm(16, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        for p in (net[0].weight, net[0].bias):
            p.copy_(p[order])
        net[2].weight.copy_(net[2].weight[:, order])
    before = loss_of(net).item()
    net.eval()
    assert loss_of(net).item() <= 1.01 * before


@pytest.mark.parametrize("columns", [8, 9, 2048], ids=["few", "an odd number", "many"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_a_change_of_one_bit_or_of_the_order_is_noticed(dtype, columns):
    torch.manual_seed(0)
    params = [nn.Parameter(torch.randn(9, columns).to(dtype)) for _ in range(3)]
    params[2].data = torch.randn(columns, 9).to(dtype).mT  # not contiguous
    written = Written()
    for change in (lambda p: p.data.view(-1)[5:6].neg_(), lambda p: p.data.copy_(p.data.flip(0).clone())):
        for p in params[:2]:
            written.note(params, [], reads=True)
            assert not written.changed(reads=True)
            change(p)
            assert [each is p for each, _ in written.changed(reads=True)] == [True]
    written.note(params, [], reads=True)
    params[2].data[3, 4] += 1
    assert [each is params[2] for each, _ in written.changed(reads=True)] == [True]


@pytest.mark.parametrize("size", [8, 2**16], ids=["a few", "many"])
def test_the_memory_of_weights_that_have_moved_is_released(size):
    p, written = nn.Parameter(torch.zeros(size)), Written()
    written.note([p], [], reads=True)
    memory = p.untyped_storage().data_ptr()
    p.data = torch.ones(size)
    written.note([p], [], reads=False)  # as on a device
    kept = [each for each in gc.get_objects() if type(each) is torch.Tensor and each.device.type == "cpu"]
    assert all(each.untyped_storage().data_ptr() != memory for each in kept)


@pytest.mark.parametrize("capturable", [True, False])
def test_a_save_after_all_entries_were_edited_changes_no_training(capturable):
    """A captured step cannot tell that all entries have changed; a save could, and must not."""

    def train(save):
        torch.manual_seed(0)
        net = nn.Linear(6, 4)
        optimizer = alrao.Auto(net, steps=3, capturable=capturable)
        for step in range(8):
            optimizer.zero_grad()
            net(torch.randn(16, 6)).square().mean().backward()
            optimizer.step()
            if step > 2:
                with torch.no_grad():
                    net.weight.div_(net.weight.norm(dim=1, keepdim=True) + 1e-3)
                if save:
                    optimizer.state_dict()
        return net.eval().weight

    assert torch.equal(train(save=True), train(save=False))
