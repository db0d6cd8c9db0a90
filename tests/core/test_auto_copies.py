"""Averaged weights beyond one model and one optimizer: references, copies, collapsed and compiled models."""

import copy
import gc
import pickle
import weakref
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from support.auto_runs import averages, batch, build, close, equal, train, trained, weights
from support.needs import needs_compile
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

import alrao


def test_the_model_does_not_keep_the_optimizer():
    _model, optimizer = trained()
    watch = weakref.ref(optimizer)
    del optimizer
    gc.collect()
    assert watch() is None


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("scheduled", [False, True], ids=["alone", "in a cycle"])
def test_a_model_whose_optimizer_was_dropped_is_evaluated_at_its_averages(scheduled, training):
    """As after a function that builds the optimizer and trains."""
    model, optimizer = trained()
    if scheduled:
        torch.optim.lr_scheduler.StepLR(optimizer, 100)
    x, y = averages(model, optimizer), weights(model)
    model.train(training)
    del optimizer
    assert close(weights(model.eval()), x)
    assert equal(weights(model.train()), y)
    assert close(weights(model.collapse())[:2], x[:2])


def test_garbage_collection_writes_no_weights():
    """A trainer in a reference cycle is collected at any time, between forward and backward too."""
    model, optimizer = trained()
    before = weights(model)
    cycle = {"optimizer": optimizer}
    cycle["itself"] = cycle
    del optimizer, cycle
    gc.collect()
    assert equal(weights(model), before)


def test_a_second_run_continues_from_the_training_weights_of_the_first():
    model, optimizer = trained()
    y = weights(model)
    optimizer = alrao.Auto(model)
    assert equal(weights(model), y)
    train(model, optimizer, 60, 70)
    present = weights(model)
    assert not equal(weights(model.eval()), present), "without a warning: it searches again"
    assert equal(weights(model.train()), present)


def test_a_replaced_optimizer_leaves_the_model_to_its_successor():
    model, optimizer = trained()
    twin, its_optimizer = trained()
    state = copy.deepcopy(optimizer.state_dict())
    optimizer = alrao.Auto(model)
    gc.collect()
    optimizer.load_state_dict(state)
    train(model, optimizer, 60, 65)
    train(twin, its_optimizer, 60, 65)
    assert equal(weights(model), weights(twin))


@pytest.mark.parametrize("way", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
@pytest.mark.parametrize("training", [True, False])
def test_a_copy_of_the_model_is_a_plain_model(way, training):
    model, optimizer = trained()
    model.train(training)
    present = weights(model)
    twin = way(model)
    with pytest.warns(UserWarning, match="are not known") if training else nullcontext():
        twin.eval()
    assert equal(weights(twin), present)
    assert equal(weights(twin.train()), present)
    assert equal(weights(model), present)
    assert optimizer.model is model


@pytest.mark.parametrize("way", [copy.deepcopy, lambda each: pickle.loads(pickle.dumps(each))])
@pytest.mark.parametrize("training", [True, False])
def test_model_and_optimizer_copied_together_continue_to_the_same_bits(way, training):
    pair = trained()
    pair[0].train(training)
    twins = way(pair)
    for model, optimizer in (pair, twins):
        model.train()
        train(model, optimizer, 60, 65)
        model.eval()
    assert equal(weights(pair[0]), weights(twins[0]))


@pytest.mark.parametrize("mixture", [False, True])
@pytest.mark.parametrize("training", [True, False])
def test_a_collapsed_network_has_the_averages(training, mixture):
    model, _ = trained()
    x, y = batch(0)
    model.train(training)
    before = weights(model)
    loss = F.cross_entropy(model(x), y) if training else None
    plain = model.collapse(mixture=mixture)
    assert equal(weights(model), before)
    if loss is not None:
        loss.backward()  # the graph is as it was
    model.eval()
    assert torch.equal(plain[0].weight, model.net[0].weight)
    best = model.posterior.argmax()
    if not mixture:
        assert torch.equal(plain[-1].weight, model.head.weight[best])


@needs_compile
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_a_compiled_model_is_one_graph_with_the_right_weights():
    torch._dynamo.reset()
    model, optimizer = build()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    eager, its_optimizer = build()
    with torch._dynamo.config.patch(error_on_recompile=True):
        for step in range(60):
            x, y = batch(step)
            for each, its in ((compiled, optimizer), (eager, its_optimizer)):
                its.zero_grad()
                F.cross_entropy(each(x), y).backward()
                its.step()
    for each in (compiled, eager):
        each.eval()
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), eager(x), rtol=1e-3, atol=1e-4)
    assert not equal(weights(model), weights(model.train()))
    assert close(weights(eager.train()), weights(model)) is True


@needs_compile
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
def test_a_compiled_model_whose_mode_was_set_without_a_call_is_right_after_a_step():
    torch._dynamo.reset()
    model, optimizer = trained()
    compiled = torch.compile(model, backend="eager")
    compiled.eval()
    for module in compiled.modules():
        module.training = True
    train(compiled, optimizer, 60, 61)
    y = weights(model)
    assert "y" not in optimizer.state[model.head.weight]
    assert close(weights(model.eval()), [torch.lerp(optimizer.state[p]["z"], q, 1 / 0.5) for p, q in
                 zip(model.parameters(), y, strict=True)])  # fmt: skip
    assert equal(weights(model.train()), y)


def test_a_model_may_be_cast_after_the_optimizer_was_built():
    model, optimizer = build()
    model.double()
    train(model, optimizer, 0, 60)
    assert optimizer.state[model.head.weight]["z"].dtype == torch.float64
    y = weights(model)
    assert not equal(weights(model.eval()), y)
    assert equal(weights(model.train()), y)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
@pytest.mark.parametrize("by", ["eval", "collapse", "a dropped optimizer"])
def test_a_model_may_be_cast_after_the_training(by, dtype):
    """As for inference: ``model.half().eval()``."""
    model, optimizer = trained()
    expected = averages(model, optimizer)
    model.to(dtype)
    if by == "a dropped optimizer":
        del optimizer
        gc.collect()
    plain = model.collapse() if by == "collapse" else model.eval()
    for p, q in list(zip(plain.parameters(), expected, strict=True))[:2]:
        assert p.dtype == dtype
        torch.testing.assert_close(p.detach().float(), q, rtol=2e-2, atol=2e-2)
    if by == "eval":
        present = weights(model)
        assert equal(weights(model.train().eval()), present)


@pytest.mark.parametrize("capturable", [False, True])
def test_a_model_may_be_moved_after_the_training(capturable):
    """No second device is there: a fake one has no values, but refuses tensors of another, as a real one."""
    model, optimizer = trained(capturable=capturable)
    mode, cuda = FakeTensorMode(), torch.device("cuda")
    p = mode.from_tensor(model.head.weight.detach())
    state = optimizer.state[model.head.weight]
    tensors = {key: value.to("meta") for key, value in state.items() if torch.is_tensor(value)}
    optimizer.averages.state = {
        p: state | {key: FakeTensor(mode, value, cuda) for key, value in tensors.items()}
    }
    optimizer.param_groups[0]["params"] = [p]
    with mode:
        with pytest.raises(RuntimeError, match=r"same device|different devices"):
            optimizer.averages.state[p]["z"] + p
        assert optimizer.averages.average(p, 0.5).device == p.device
