"""A plain network under Auto: the right weights in each mode, whoever sets it, and after loads and copies."""

import copy
import gc
import io
import pickle
import warnings
import weakref

import pytest
import torch
import torch.nn.functional as F
from support.needs import needs_compile
from support.stepping import same
from torch import nn

import alrao


def small(norm=False):
    return nn.Sequential(nn.Linear(4, 8), *([nn.BatchNorm1d(8)] if norm else []), nn.Tanh(), nn.Linear(8, 3))


def build(seed=0, *, dtype=torch.float32, norm=False, **options):
    torch.manual_seed(seed)
    net = small(norm).to(dtype)
    return net, alrao.Auto(net, **{"steps": 20, **options})


def train(net, optimizer, start=0, stop=15):
    for step in range(start, stop):
        x = torch.randn(16, 4, generator=torch.Generator().manual_seed(step))
        x = x.to(next(net.parameters()).dtype)
        optimizer.zero_grad()
        F.l1_loss(net(x), x[:, :3].sin()).backward()
        optimizer.step()


def trained(**options):
    net, optimizer = build(**options)
    train(net, optimizer)
    return net, optimizer


def weights(net):
    return [p.detach().clone() for p in net.parameters()]


def equal(one, other):
    return all(map(torch.equal, one, other))


def averages(net, optimizer):
    """The averaged weights by their definition, of a network in training mode."""
    return [(p.detach() - 0.5 * optimizer.state[p]["z"]) / 0.5 for p in net.parameters()]


def set_mode(net, mode):
    """As Lightning does: without a call."""
    for module in net.modules():
        module.training = mode


# Who sets the mode.


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_evaluation_mode_has_the_average_and_training_mode_the_training_weights(dtype):
    net, optimizer = trained(dtype=dtype)
    y, x = weights(net), averages(net, optimizer)
    for _ in range(2):
        net.eval()
        assert not equal(weights(net), y)
        for p, average in zip(net.parameters(), x, strict=True):
            tolerance = 1e-5 if dtype == torch.float32 else 2e-2
            torch.testing.assert_close(p.detach().float(), average.float(), rtol=tolerance, atol=tolerance)
        net.train()
        assert equal(weights(net), y)
    twin, its_optimizer = trained(dtype=dtype)
    train(net, optimizer, 15, 20)
    train(twin, its_optimizer, 15, 20)
    assert equal(weights(net), weights(twin)), "evaluating never changes training"


@pytest.mark.parametrize(
    "around",
    [
        nn.ModuleList,
        lambda nets: nn.DataParallel(nets[0]),
        lambda nets: torch.compile(nets[0], backend="eager"),
    ],
)
def test_the_mode_of_what_contains_the_network_counts(around):
    net, _ = trained()
    outer, y = around([net]), weights(net)
    outer.eval()
    assert not equal(weights(net), y)
    outer.train()
    assert equal(weights(net), y)


@needs_compile
def test_a_compiled_network_has_the_weights_of_its_mode():
    net, optimizer = build()
    compiled = torch.compile(net, backend="aot_eager")
    twin, its_optimizer = build()
    train(compiled, optimizer)
    train(twin, its_optimizer)
    x = torch.randn(3, 4)
    for mode in (True, False, True):
        torch.testing.assert_close(compiled.train(mode)(x), twin.train(mode)(x))


def test_a_network_with_its_own_train_keeps_it():
    class Frozen(nn.Sequential):
        def train(self, mode=True):
            super().train(mode)
            self[1].eval()
            return self

    net = Frozen(*small(norm=True))
    optimizer = alrao.Auto(net, steps=20)
    train(net, optimizer)
    y = weights(net)
    assert net.eval() is net
    assert not equal(weights(net), y)
    assert net.train() is net
    assert net.training
    assert not net[1].training
    assert equal(weights(net), y)


def test_a_mode_that_is_set_without_a_call_counts_before_a_closure():
    net, optimizer = trained()
    y = weights(net)
    net.eval()
    set_mode(net, True)

    def closure():
        optimizer.zero_grad()
        return weights(net)

    assert equal(optimizer.step(closure), y)


def test_gradients_at_the_averaged_weights_give_a_warning():
    net, optimizer = trained()
    optimizer.zero_grad()
    net.eval()
    set_mode(net, True)
    net(torch.randn(4, 4)).square().mean().backward()
    with pytest.warns(UserWarning, match=r"without a call of train\(\).*optimizer\.train\(\)"):
        optimizer.step()
    train(net, optimizer, 16, 18)  # without another one
    assert not equal(weights(net), averages(net, optimizer)), "with the training weights"


@pytest.mark.parametrize("given", ["network", "parameters"])
def test_a_step_after_the_optimizers_eval_gives_a_warning(given):
    net = small()
    optimizer = alrao.Auto(net if given == "network" else net.named_parameters(), steps=20)
    train(net, optimizer)
    optimizer.eval()
    with pytest.warns(UserWarning, match=r"after optimizer\.eval\(\)"):
        train(net, optimizer, 15, 16)
    train(net, optimizer, 16, 18)
    assert not equal(weights(net), averages(net, optimizer))


def test_a_step_that_has_the_right_gradients_gives_none():
    """In evaluation mode, before there are averages, and without swap."""
    for steps, options in ((1, {}), (15, {"swap": False})):
        net, optimizer = build(**options)
        train(net, optimizer, 0, steps)
        optimizer.eval()
        train(net, optimizer, steps, steps + 1)
    net, optimizer = trained()
    net.eval()
    train(net, optimizer, 15, 17)  # as one trains with frozen statistics
    x = weights(net)
    assert not equal(weights(net.train()), x)


def test_the_optimizer_places_weights_whatever_the_mode():
    net, optimizer = trained()
    y = weights(net)
    optimizer.eval()
    x = weights(net)
    assert not equal(x, y)
    net(torch.randn(2, 4))
    optimizer.zero_grad()
    assert equal(weights(net), x), "until it, or the mode of the network, says otherwise"
    optimizer.train()
    assert equal(weights(net), y)
    optimizer.eval()
    net.train()
    assert equal(weights(net), y)


def test_without_swap_both_modes_have_the_training_weights():
    """A policy that acts in evaluation mode must be the one that is trained."""
    net, optimizer = trained(swap=False)
    y = weights(net)
    net.eval()
    assert equal(weights(net), y)
    optimizer.eval()
    assert equal(weights(net), y)


def test_statistics_that_are_not_finite_are_repaired():
    net, _optimizer = trained(norm=True)
    before = net[1].running_mean.clone()
    net(torch.full((4, 4), torch.inf))
    assert not net[1].running_mean.isfinite().all()
    net.eval()
    assert net[1].running_mean.isfinite().all()
    net.train()
    assert torch.equal(net[1].running_mean, before)


# Loads, copies, other optimizers.


@pytest.mark.parametrize("part", ["whole", "child", "parent"])
@pytest.mark.parametrize("mode", [True, False])
def test_averages_start_again_from_weights_that_are_loaded(part, mode):
    net, optimizer = trained()
    other = small()
    net.train(mode)
    if part == "child":
        net[0].load_state_dict(other[0].state_dict())
    elif part == "parent":
        nn.ModuleList([net]).load_state_dict(nn.ModuleList([other]).state_dict())
    else:
        net.load_state_dict(other.state_dict())
    net.eval()
    assert equal(weights(net[0]), weights(other[0]))
    net.train()
    assert equal(weights(net[0]), weights(other[0]))
    train(net, optimizer, 15, 16)
    for p, average in zip(net[0].parameters(), averages(net[0], optimizer), strict=True):
        torch.testing.assert_close(p.detach(), average)  # of one point


@pytest.mark.parametrize("mode", [True, False])
def test_a_checkpoint_of_both_continues_to_the_same_bits(mode):
    net, optimizer = trained()
    net.train(mode)
    file = io.BytesIO()
    torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict()}, file)
    twin, its_optimizer = build(seed=1)
    file.seek(0)
    saved = torch.load(file)
    twin.train(mode)
    its_optimizer.load_state_dict(saved["optimizer"])
    twin.load_state_dict(saved["net"])
    for one, one_optimizer in ((net, optimizer), (twin, its_optimizer)):
        one.train()
        train(one, one_optimizer, 15, 20)
    assert equal(weights(twin), weights(net))
    assert same(its_optimizer.state_dict(), optimizer.state_dict())


@pytest.mark.parametrize("mode", [True, False])
def test_a_copy_of_the_network_is_an_ordinary_network(mode):
    net, _optimizer = trained()
    net.train(mode)
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    pickled = torch.load(file, weights_only=False)
    assert b"alrao" not in file.getvalue(), "it is loaded where alrao is not installed"
    for twin in (copy.deepcopy(net), pickled, copy.deepcopy(copy.deepcopy(net))):
        before = weights(twin)
        assert equal(before, weights(net))
        twin.train(not mode)
        assert twin.training is not mode
        assert net.training is mode
        assert equal(weights(twin), before)
        assert twin.eval() is twin


class Stateful(nn.Sequential):
    """A network that pickles itself in its own way, and in a slot beside its ``__dict__``."""

    __slots__ = ("note",)

    def __getstate__(self):
        return self.__dict__


class Slotted(nn.Sequential):
    __slots__ = ("note",)


def disabled(mode=True):
    """In the place of ``train`` of a frozen part, as programs of vision and language have it."""


def frozen_part():
    net = small()
    net.train = disabled
    return net


KINDS = {
    "sequential": small,
    "with BatchNorm": lambda: small(norm=True),
    "own state": lambda: Stateful(*small()),
    "slots": lambda: Slotted(*small()),
    "traced": lambda: torch.fx.symbolic_trace(small()),
    "own train": frozen_part,
}
COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda net: pickle.loads(pickle.dumps(net)),
    "inside a module": lambda net: copy.deepcopy(nn.ModuleList([net]))[0],
}


@pytest.mark.parametrize("way", COPIES)
@pytest.mark.parametrize("kind", KINDS)
def test_copies_have_what_a_copy_without_an_optimizer_has(kind, way):
    net = KINDS[kind]()
    expected = [vars(module).keys() for module in COPIES[way](net).modules()]
    optimizer = alrao.Auto(net, steps=20)
    twin = COPIES[way](net)
    assert [vars(module).keys() for module in twin.modules()] == expected
    twin.eval()
    assert net.training
    train(net, optimizer)
    y = weights(net)
    nn.ModuleList([net]).eval()
    assert equal(weights(net), y) == (kind == "own train"), "the network itself is followed as before"


def test_a_saved_network_is_loaded_with_safe_globals():
    """As pytorch/examples' word_language_model does: the file names the classes of the network only."""
    net, _optimizer = trained(norm=True)
    file = io.BytesIO()
    torch.save(net, file)
    file.seek(0)
    with torch.serialization.safe_globals([nn.Sequential, nn.Linear, nn.BatchNorm1d, nn.Tanh, set]):
        twin = torch.load(file, weights_only=True)
    assert equal(weights(twin), weights(net))


def test_a_network_can_be_scripted_and_exported():
    net, _ = trained()
    x = torch.randn(3, 4)
    expected = net.eval()(x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch: TorchScript is deprecated
        assert torch.equal(torch.jit.script(net)(x), expected)
    torch.testing.assert_close(torch.export.export(net, (x,)).module()(x), expected)


def test_the_network_does_not_keep_its_optimizer_alive_and_keeps_the_average():
    net, optimizer = trained()
    x, gone = averages(net, optimizer), weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert gone() is None
    for p, average in zip(net.eval().parameters(), x, strict=True):
        torch.testing.assert_close(p.detach(), average)
    pickle.dumps(net)


def test_a_second_optimizer_of_the_same_weights_takes_over():
    net, first = trained()
    second = alrao.Auto(net, steps=20)
    y = weights(net)
    net.eval()
    assert equal(weights(net), y), "the second has no averages yet, and the first is silent"
    del first
    gc.collect()
    assert equal(weights(net.train()), y)
    train(net, second)
    y = weights(net)
    assert not equal(weights(net.eval()), y)
    assert equal(weights(net.train()), y)


def test_optimizers_of_disjoint_parameters_each_place_theirs():
    net = small()
    optimizers = [
        alrao.Auto(net, params=net[0].parameters(), steps=20),
        alrao.Auto(net, params=net[2].parameters(), steps=20),
    ]
    for step in range(15):
        x = torch.randn(16, 4, generator=torch.Generator().manual_seed(step))
        for optimizer in optimizers:
            optimizer.zero_grad()
        F.l1_loss(net(x), x[:, :3].sin()).backward()
        for optimizer in optimizers:
            optimizer.step()
    y = weights(net)
    net.eval()
    assert not any(map(torch.equal, weights(net), y))
    net.train()
    assert equal(weights(net), y)


def test_loaded_buffers_are_no_new_weights():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 3))
    optimizer = alrao.Auto(net, steps=10)
    for _ in range(8):
        optimizer.zero_grad()
        net(torch.randn(16, 6)).square().mean().backward()
        optimizer.step()
    before = {p: state["k"] for p, state in optimizer.state.items()}
    net[1].load_state_dict({name: buffer.clone() for name, buffer in net[1].named_buffers()}, strict=False)
    optimizer.zero_grad()
    net(torch.randn(16, 6)).square().mean().backward()
    optimizer.step()
    assert {p: state["k"] for p, state in optimizer.state.items()} == {p: k + 1 for p, k in before.items()}
