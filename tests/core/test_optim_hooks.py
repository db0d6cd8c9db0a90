"""Hooks of the step and marks for the profiler, as torch's own optimizers have them."""

import copy
import pickle

import pytest
import torch
from support.stepping import make, same, snapshot, train
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.profiler import ProfilerActivity, profile

import alrao

OPTIMIZERS = [alrao.SGD, alrao.Adam, alrao.AdamW]


def plain():
    model = torch.nn.Linear(6, 3)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def hooked(optimizer, called):
    """Register every kind of hook; what removes them again."""

    def note(name):
        return lambda *_: called.append(name)

    return [
        register_optimizer_step_post_hook(note("after any")),
        register_optimizer_step_pre_hook(note("before any")),
        optimizer.register_step_post_hook(note("after this")),
        optimizer.register_step_pre_hook(note("before this")),
    ]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_hooks_are_called_in_the_order_of_torch(optimizer):
    orders = []
    for model, built in (plain(), make(optimizer)):
        called = []
        handles = hooked(built, called)
        train(model, built, steps=2)
        for handle in handles:
            handle.remove()
        train(model, built, steps=2)
        orders.append(called)
    assert orders[0] == orders[1]
    assert len(orders[0]) == 8


@pytest.mark.parametrize("which", range(4))
def test_each_kind_of_hook_is_called_by_itself(which):
    model, optimizer = make()
    called = []
    handles = hooked(optimizer, called)
    kept = handles.pop(which)
    for handle in handles:
        handle.remove()
    train(model, optimizer, steps=3)
    kept.remove()
    assert len(called) == 3


def test_hooks_that_do_nothing_change_nothing():
    states = []
    for hook in (False, True):
        torch.manual_seed(0)
        model, optimizer = make()
        if hook:
            optimizer.register_step_pre_hook(lambda *_: None)
        train(model, optimizer)
        states.append(snapshot(model, optimizer))
    assert same(*states)


def test_a_hook_may_give_the_step_another_closure():
    _, optimizer = make()
    optimizer.register_step_pre_hook(lambda self, args, kwargs: ((self, lambda: 7.0), kwargs))
    assert optimizer.step(lambda: 3.0) == 7.0


@pytest.mark.parametrize("way", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
@pytest.mark.parametrize("model_and_optimizer", [plain, make])
def test_hooks_are_not_copied(model_and_optimizer, way):
    built = model_and_optimizer()
    called = []
    handle = built[1].register_step_post_hook(lambda *_: called.append(1))
    train(*way(built), steps=1)
    assert not called
    train(*built, steps=1)
    handle.remove()
    assert called == [1]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_a_profiler_finds_the_step_and_the_clearing_of_gradients(optimizer):
    torch.manual_seed(0)
    model, built = make(optimizer)
    with profile(activities=[ProfilerActivity.CPU]) as recorded:
        train(model, built, steps=2)
    counts = {event.key: event.count for event in recorded.key_averages()}
    name = optimizer.__name__
    assert counts[f"Optimizer.step#{name}.step"] == counts[f"Optimizer.zero_grad#{name}.zero_grad"] == 2
    torch.manual_seed(0)
    other = make(optimizer)
    train(*other, steps=2)
    assert same(snapshot(model, built), snapshot(*other))


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_are_cleared(set_to_none):
    model, optimizer = make()
    train(model, optimizer, steps=1)
    assert all(p.grad is not None for p in model.parameters())
    optimizer.zero_grad(set_to_none)
    grads = [p.grad for p in model.parameters()]
    assert all(grad is None if set_to_none else not grad.any() for grad in grads)
    assert model.head.evidence.grad is None
