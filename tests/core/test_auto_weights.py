"""The right weights at the right time: averages in evaluation mode, training weights in training mode."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from support.auto_runs import averages, batch, build, close, equal, train, trained, weights
from support.stepping import same
from torch import nn

import alrao

# Who decides.


def test_evaluation_mode_has_the_average_and_training_mode_the_training_weights():
    model, optimizer = trained()
    y, x = weights(model), averages(model, optimizer)
    assert not equal(y, x)
    assert close(weights(model.eval()), x)
    assert equal(weights(model.train()), y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_evaluating_restores_the_bits(dtype):
    model, optimizer = trained(dtype=dtype)
    state = copy.deepcopy(optimizer.state_dict())
    y = weights(model)
    for _ in range(3):
        model.eval()
        assert not equal(weights(model), y)
        model(batch(0, dtype)[0])
        model.train()
        assert equal(weights(model), y)
    assert same(optimizer.state_dict(), state)
    twin, its_optimizer = trained(dtype=dtype)
    train(model, optimizer, 60, 65)
    train(twin, its_optimizer, 60, 65)
    assert equal(weights(model), weights(twin)), "evaluating never changes training"


def test_during_the_search_the_average_of_its_weights_is_evaluated():
    model, optimizer = build()
    seen = []
    for step in range(30):
        train(model, optimizer, step, step + 1)
        seen.append(weights(model))
        if step in (0, 1, 12, 29):  # evaluations in between change nothing
            parts = torch.arange(1.0, step + 2, dtype=torch.float64).square()
            for i, p in enumerate(model.eval().parameters()):
                way = torch.stack([each[i].double() for each in seen])
                mean = torch.tensordot(parts / parts.sum(), way, 1)
                torch.testing.assert_close(p.detach().double(), mean, rtol=1e-5, atol=1e-6)
            model.train()
            assert equal(weights(model), seen[-1])


def test_the_mode_may_be_set_without_a_call():
    """Lightning does so after validation."""
    model, optimizer = trained()
    y = weights(model)
    model.eval()
    for module in model.modules():
        module.training = True
    model(batch(0)[0])
    assert equal(weights(model), y)
    model.training = False
    model(batch(0)[0])
    assert not equal(weights(model), y)
    twin, its_optimizer = trained()
    model.training = True
    train(model, optimizer, 60, 65)
    train(twin, its_optimizer, 60, 65)
    assert equal(weights(model), weights(twin))


def test_the_modes_of_parts_swap_nothing():
    model, _ = trained(norm=True)
    y = weights(model)
    model.net[1].eval()
    model.head.eval()
    model(batch(0)[0])
    assert equal(weights(model), y)


def test_a_tool_that_keeps_the_network_itself_evaluates_averaged_weights_too():
    model, optimizer = trained(norm=True)
    net, y = model.net, weights(model)
    with torch.no_grad():
        expected = model.eval()(batch(0)[0])
        model.train()
        shown = net.eval()(batch(0)[0])
    assert torch.equal(shown, expected)
    assert not model.training
    net.train()
    assert model.training
    assert equal(weights(model), y)
    twin, its_optimizer = trained(norm=True)
    twin.eval()
    twin.train()
    for each, its in ((model, optimizer), (twin, its_optimizer)):
        train(each, its, 60, 65)
    assert equal(weights(model), weights(twin))
    again = pickle.loads(pickle.dumps(model.eval()))
    assert "train" not in vars(again.net)


class Wrapper(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module

    def forward(self, *args):
        return self.module(*args)


def test_wrappers_call_through():
    model, optimizer = build()
    wrapper = Wrapper(model)
    train(model, optimizer, 0, 60)
    y = weights(model)
    wrapper.eval()
    assert not equal(weights(model), y)
    wrapper.train()
    assert equal(weights(model), y)


def test_the_optimizers_own_eval_and_train_are_harmless():
    model, optimizer = trained()
    y = weights(model)
    x = averages(model, optimizer)
    for _ in range(2):
        optimizer.eval()
        assert close(weights(model), x)
    for _ in range(2):
        optimizer.train()
        assert equal(weights(model), y)
    model.eval()
    optimizer.eval()
    assert close(weights(model), x)
    optimizer.train()
    model.train()
    assert equal(weights(model), y)


@pytest.mark.filterwarnings("ignore:10 steps in a row were made in evaluation mode")
@pytest.mark.parametrize("training", [True, False])
def test_steps_in_evaluation_mode(training):
    """The gradient is taken where it is taken; the average advances and stays in the parameters."""
    model, optimizer = build(dtype=torch.float64)
    model.train(training)
    train(model, optimizer, 0, 51)
    states = [optimizer.state[p] for p in model.parameters()]
    y = weights(model) if training else [state["y"].clone() for state in states]
    z = [state["z"].clone() for state in states]
    before = [state["exp_avg_sq"].clone() if "exp_avg_sq" in state else None for state in states]
    data, target = batch(51, torch.float64)
    optimizer.zero_grad()
    F.cross_entropy(model(data), target).backward()
    grads = [p.grad.clone() for p in model.parameters()]
    optimizer.step()
    c = 4 / 5
    for p, old_y, old_z, v, g in zip(model.parameters(), y, z, before, grads, strict=True):
        if v is None:  # a hidden matrix, which does not move at this step
            delta = torch.zeros_like(g)
        else:
            v = 0.99 * v + 0.01 * g**2
            delta = optimizer.rates(p) * g / ((v / (1 - 0.99**52)).sqrt() + 1e-8)
        new_z = old_z - delta
        new_y = old_y + c * (old_z - old_y) - (1 - 0.5 * (1 - c)) * delta
        torch.testing.assert_close(optimizer.state[p]["z"], new_z)
        torch.testing.assert_close(p.detach(), new_y if training else (new_y - 0.5 * new_z) / 0.5)


def test_accumulated_gradients_across_an_evaluation():
    model, optimizer = trained()
    twin, its_optimizer = trained()
    for each, its, evaluates in ((model, optimizer, True), (twin, its_optimizer, False)):
        its.zero_grad()
        for step in (60, 61):
            x, y = batch(step)
            (F.cross_entropy(each(x), y) / 2).backward()
            if evaluates:
                each.eval()
                with torch.no_grad():
                    each(x)
                each.train()
        its.step()
    assert equal(weights(model), weights(twin))


# How.


def test_a_swap_between_forward_and_backward_is_an_error_and_not_a_wrong_gradient():
    model, _ = trained()
    x, y = batch(0)
    loss = F.cross_entropy(model(x), y)
    model.eval()
    with pytest.raises(RuntimeError, match="inplace"):
        loss.backward()


def test_no_state_is_made_under_inference_mode():
    model, optimizer = trained()
    y = weights(model)
    with torch.inference_mode():
        model.eval()
        model(batch(0)[0])
        model.training = True
        model(batch(0)[0])
        model.eval()
    assert not any(p.is_inference() for p in model.parameters())
    tensors = [v for s in optimizer.state.values() for v in s.values() if isinstance(v, torch.Tensor)]
    assert not any(value.is_inference() for value in tensors)
    model.train()
    assert equal(weights(model), y)
    train(model, optimizer, 60, 62)


def test_narrow_weights_are_averaged_in_float32():
    """In bfloat16 steps below the resolution must add up, and the average must follow."""
    model, optimizer = build(dtype=torch.bfloat16)
    other, its_optimizer = build(dtype=torch.float32)
    with torch.no_grad():
        for p, q in zip(model.parameters(), other.parameters(), strict=True):
            q.copy_(p)
    train(model, optimizer, 0, 150)
    train(other, its_optimizer, 0, 150)
    for p in model.parameters():
        state = optimizer.state[p]
        moment = state["exp_avg"] if "exp_avg" in state else state["exp_avg_sq"]
        assert state["z"].dtype == moment.dtype == torch.float32
        assert state["rest"].dtype == torch.bfloat16
    x = torch.cat([batch(step)[0] for step in range(200, 220)])
    with torch.no_grad():
        losses = [
            F.cross_entropy(each(x.to(next(each.parameters()).dtype)).float(), x[:, :3].argmax(1)).item()
            for each in (model.eval(), other.eval())
        ]
    assert losses[0] == pytest.approx(losses[1], abs=0.05)


# BatchNorm.


def test_recalibration_takes_the_statistics_at_the_averages():
    model, _ = trained(norm=True)
    norm = model.net[1]
    loader = [batch(step) for step in range(100, 110)]
    y, momentum = weights(model), norm.momentum
    model.net[2].eval()
    alrao.recalibrate(model, loader)
    assert equal(weights(model), y)
    assert (model.training, norm.training, model.net[2].training) == (True, True, False)
    assert norm.momentum == momentum
    model.eval()
    with torch.no_grad():
        hidden = [model.net[0](x) for x, _ in loader]
    torch.testing.assert_close(norm.running_mean, torch.stack([h.mean(0) for h in hidden]).mean(0))
    torch.testing.assert_close(norm.running_var, torch.stack([h.var(0) for h in hidden]).mean(0))
    x = weights(model)
    alrao.recalibrate(model, [inputs for inputs, _ in loader])
    assert not model.training
    assert equal(weights(model), x)


def test_recalibration_without_batches_is_refused_and_changes_nothing():
    model, _ = trained(norm=True)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(ValueError, match="at least one batch"):
        alrao.recalibrate(model, [])
    assert all(torch.equal(value, model.state_dict()[key]) for key, value in before.items())
    plain, _ = trained()
    alrao.recalibrate(plain, [])  # there is nothing to take


def test_recalibration_with_numbers_that_are_not_finite_keeps_the_old_ones():
    model, _ = trained(norm=True)
    mean = model.net[1].running_mean.clone()
    alrao.recalibrate(model, [torch.full((4, 4), torch.nan)])
    assert torch.equal(model.net[1].running_mean, mean)
    plain = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
    plain(torch.randn(16, 4))
    mean = plain[1].running_mean.clone()
    alrao.recalibrate(plain, [torch.full((4, 4), torch.nan)])
    assert torch.equal(plain[1].running_mean, mean)
