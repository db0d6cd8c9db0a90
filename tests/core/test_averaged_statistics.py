"""BatchNorm's statistics in evaluation mode are those of the averaged weights, without a call."""

import copy
import io
import pickle

import pytest
import torch
import torch.nn.functional as F
from support.needs import needs_compile
from torch import nn
from torch.optim.swa_utils import update_bn
from torch.utils.checkpoint import checkpoint

import alrao
from alrao.statistics import LASTING, ROWS

BATCH = 64
WINDOW = ROWS // BATCH
STEPS = 60


def network():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 16),
        nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3),
    )  # fmt: skip


def data(steps=STEPS):
    torch.manual_seed(1)
    x = 2 + torch.randn(steps, BATCH, 6)
    return list(zip(x, x[:, :, :3].argmax(2), strict=True))


def train(model, optimizer, batches, call=None):
    torch.manual_seed(2)
    for x, y in batches:
        optimizer.zero_grad()
        F.cross_entropy((call or model)(x), y).backward()
        optimizer.step()


def trained(wrapped=True, steps=STEPS, **options):
    model = alrao.Alrao(network()) if wrapped else network()
    optimizer = alrao.Auto(model, steps=40, **options)  # a search of 12
    train(model, optimizer, data(steps))
    return model, optimizer


def running(model):
    norms = (m for m in model.modules() if isinstance(m, nn.BatchNorm1d))
    return [value.clone() for m in norms for value in (m.running_mean, m.running_var)]


def expected(model, batches):
    """Torch's statistics for the weights that a model in evaluation mode has."""
    twin = copy.deepcopy(model.collapse() if isinstance(model, alrao.Alrao) else model)
    for each in twin:
        if isinstance(each, nn.Dropout):
            each.p = 0.0
    update_bn([x for x, _ in batches], twin)
    return running(twin)


both = pytest.mark.parametrize("wrapped", [True, False])


@both
def test_they_are_those_of_the_last_batches_at_the_averaged_weights(wrapped):
    model, _ = trained(wrapped)
    gathered = running(model)
    model.eval()
    torch.testing.assert_close(running(model), expected(model, data()[-WINDOW:]))
    assert not torch.allclose(gathered[0], running(model)[0], atol=1e-3)


@both
@pytest.mark.parametrize("saves", [True, False])
def test_frequent_evaluations_show_those_of_the_present_weights(wrapped, saves):
    model, optimizer = trained(wrapped, 0)
    batches = data()
    for start in range(0, 56, LASTING):
        model.train()
        train(model, optimizer, batches[start : start + LASTING])
        model.eval()
        if saves:
            optimizer.state_dict()
        torch.testing.assert_close(running(model), expected(model, batches[start : start + LASTING]))


@both
def test_an_evaluation_changes_no_training(wrapped):
    def run(evaluates):
        model, optimizer = trained(wrapped, 30)
        if evaluates:
            model.eval()
            model.train()
            optimizer.state_dict()
        train(model, optimizer, data()[30:])
        return [p.detach().clone() for p in model.parameters()]

    torch.testing.assert_close(run(True), run(False), rtol=0, atol=0)


@both
@pytest.mark.parametrize("evaluating", [True, False])
@pytest.mark.parametrize("more", [0, 3, WINDOW])
def test_a_resumed_run_shows_the_same_bits(wrapped, evaluating, more):
    model, optimizer = trained(wrapped, 30)
    model.train(not evaluating)
    file = io.BytesIO()
    torch.save([model.state_dict(), optimizer.state_dict()], file)
    file.seek(0)
    states = torch.load(file)
    other = alrao.Alrao(network()) if wrapped else network()
    resumed = alrao.Auto(other, steps=40)
    other.load_state_dict(states[0])
    resumed.load_state_dict(states[1])
    for each, its in ((model, optimizer), (other, resumed)):
        each.train()
        train(each, its, data()[30 : 30 + more])
        each.eval()
    torch.testing.assert_close(running(model), running(other), rtol=0, atol=0)


@both
def test_torchs_update_bn_gives_those_of_the_averaged_weights(wrapped):
    model, _ = trained(wrapped)
    batches = data()[:WINDOW]
    update_bn([x for x, _ in batches], model)
    model.eval()
    torch.testing.assert_close(running(model), expected(model, batches))


@both
def test_recalibrated_ones_stay_until_there_are_new_batches(wrapped):
    model, _ = trained(wrapped)
    alrao.recalibrate(model, [x for x, _ in data()[:3]])
    model.eval()
    torch.testing.assert_close(running(model), expected(model, data()[:3]))


@both
def test_copies_and_pickles_hold_nothing_of_ours(wrapped):
    model, optimizer = trained(wrapped)
    net = model.net if wrapped else model
    model.eval()
    for copied in (copy.deepcopy(net), pickle.loads(pickle.dumps(net))):
        assert not any(module._forward_pre_hooks for module in copied.modules())
    if wrapped:
        assert not any(module._forward_pre_hooks for module in model.collapse().modules())
    twin, its = copy.deepcopy((model, optimizer))
    model.train(), twin.train()
    train(model, optimizer, data()[:5])
    train(twin, its, data()[:5])
    model.eval(), twin.eval()
    torch.testing.assert_close(running(model), running(twin), rtol=0, atol=0)


def test_a_network_whose_parts_are_called():
    class Parts(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.ModuleDict({"net": network()})

    parts = Parts()
    net = parts.inner["net"]
    optimizer = alrao.Auto(parts, steps=40)
    train(net, optimizer, data())
    parts.eval()
    torch.testing.assert_close(running(net), expected(net, data()[-WINDOW:]))


def test_layers_that_are_frozen_keep_theirs():
    model = network()
    model[1].eval()
    optimizer = alrao.Auto(model, steps=40)
    train(model, optimizer, data())
    model.eval()
    assert torch.equal(model[1].running_mean, torch.zeros(16))
    assert not torch.equal(model[5].running_mean, torch.zeros(16))


def test_the_switch_turns_it_off():
    model, _ = trained(recalibrate=False)
    gathered = running(model)
    model.eval()
    torch.testing.assert_close(running(model), gathered, rtol=0, atol=0)


def test_a_network_that_only_trains_is_said_to():
    class OnlyTrains(nn.Sequential):
        def forward(self, x):
            if not self.training:
                raise ValueError("not now")
            return super().forward(x)

    model = OnlyTrains(*network())
    optimizer = alrao.Auto(model, steps=40)
    train(model, optimizer, data())
    gathered = running(model)
    with pytest.warns(UserWarning, match=r"not now.*recalibrate=False"):
        model.eval()
    torch.testing.assert_close(running(model), gathered, rtol=0, atol=0)
    model.train()
    train(model, optimizer, data()[:2])
    model.eval()  # once


def test_activation_checkpoints():
    model = network()
    optimizer = alrao.Auto(model, steps=40)
    train(model, optimizer, data(), lambda x: checkpoint(model, x, use_reentrant=False))
    model.eval()
    torch.testing.assert_close(running(model), expected(model, data()[-WINDOW:]))


@needs_compile
def test_a_compiled_network_trains_as_before():
    model = network()
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    optimizer = alrao.Auto(model, steps=40)
    train(compiled, optimizer, data(15))
    gathered = running(model)
    model.eval()
    torch.testing.assert_close(running(model), gathered, rtol=0, atol=0)


def test_a_network_collapsed_in_training_mode_has_those_of_the_averaged_weights():
    model, _ = trained()
    collapsed = [model.collapse(), model.eval().collapse()]
    torch.testing.assert_close(*(running(each) for each in collapsed), rtol=0, atol=0)


def test_steps_without_a_training_pass_change_nothing():
    model = network()
    optimizer = alrao.Auto(model, steps=40)
    model.eval()
    train(model, optimizer, data()[:3])
    model.train()
    train(model, optimizer, data())
    model.eval()
    torch.testing.assert_close(running(model), expected(model, data()[-WINDOW:]))


def test_a_backward_pass_may_follow_a_save():
    model, optimizer = trained()
    x, y = data()[0]
    loss = F.cross_entropy(model(x), y)
    optimizer.zero_grad()
    optimizer.state_dict()
    loss.backward()
    assert all(p.grad.isfinite().all() for p in model.parameters())


def test_inputs_may_be_written_over():
    model, optimizer = trained(False, 0)
    other, its = trained(False, 0)
    buffer = torch.empty_like(data()[0][0])

    def call(x):
        buffer.copy_(x)
        return model(buffer)

    train(model, optimizer, data(), call=call)
    train(other, its, data())
    buffer.fill_(100.0)
    model.eval(), other.eval()
    torch.testing.assert_close(running(model), running(other), rtol=0, atol=0)


def test_a_failure_leaves_those_that_training_has_gathered():
    model, optimizer = trained(False)
    model.eval()
    model.train()
    train(model, optimizer, data()[:2])
    gathered = running(model)
    handle = model.register_forward_pre_hook(lambda module, args: (args[0][:, :1],))
    with pytest.warns(UserWarning, match="could not be computed"):
        model.eval()
    torch.testing.assert_close(running(model), gathered, rtol=0, atol=0)
    handle.remove()
    model.train()
    train(model, optimizer, data())
    model.eval()
    torch.testing.assert_close(running(model), expected(model, data()[-WINDOW:]))


def test_a_hook_of_the_user_is_applied_once():
    model = network()
    model.register_forward_pre_hook(lambda module, args: (args[0] * 2 + 1,))
    optimizer = alrao.Auto(model, steps=40)
    train(model, optimizer, data())
    model.eval()
    torch.testing.assert_close(running(model), expected(model, data()[-WINDOW:]))


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_trained_network_can_be_scripted():
    model, _ = trained(False)
    model.eval()
    x = data()[0][0]
    torch.testing.assert_close(torch.jit.script(model)(x), model(x))


def test_buffers_that_passes_change_are_restored():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = network()
            self.register_buffer("calls", torch.zeros(()))

        def forward(self, x):
            self.calls += 1
            return self.net(x)

    model = Counts()
    optimizer = alrao.Auto(model, steps=40)
    train(model, optimizer, data())
    optimizer.state_dict()
    model.eval()
    assert model.calls == len(data())


def test_layers_may_lose_their_statistics():
    model, optimizer = trained(False)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d):
            module.running_mean = module.running_var = None
    train(model, optimizer, data()[:2])
    model.eval()
    assert model(data()[0][0]).isfinite().all()


@pytest.mark.parametrize("converted", [False, True])
def test_an_evaluation_leaves_what_a_network_keeps_in_attributes(converted):
    class Stateful(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell, self.norm, self.output = nn.GRUCell(4, 8), nn.BatchNorm1d(8), nn.Linear(8, 3)
            self.hidden, self.passes = torch.zeros(16, 8), 0

        def forward(self, x):
            self.passes += 1
            self.hidden = self.cell(x, self.hidden.detach())
            if not self.training:
                self.evaluated = True
            return self.output(self.norm(self.hidden))

    net = Stateful()
    model = alrao.Alrao(net) if converted else net
    optimizer = alrao.Auto(model, steps=10)
    for _ in range(6):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.randn(16, 4)), torch.arange(16) % 3).backward()
        optimizer.step()
    hidden, passes = net.hidden, net.passes
    model.eval()
    assert net.hidden is hidden
    assert net.passes == passes
    assert not hasattr(net, "evaluated")
