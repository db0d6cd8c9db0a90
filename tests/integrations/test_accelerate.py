"""Accelerate with Alrao models: the same as a plain loop, states that are resumed, two processes as one."""

import pytest
import torch
import torch.nn.functional as F
from support.accelerate_runs import accelerated, data, halves, made, shards
from support.hf_models import accelerate
from support.processes import as_by_torchrun

import alrao

Accelerator = accelerate.Accelerator


@pytest.fixture(autouse=True)
def _fresh():
    """Accelerate keeps the settings of the first accelerator of a process."""
    for name in ("AcceleratorState", "GradientState", "PartialState"):
        getattr(accelerate.state, name)._reset_state()


def plainly(model, optimizer, loader, epochs=2, clip=None):
    for _ in range(epochs):
        for x, y in loader:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            if clip is not None:
                model.clip_grad_norm_(clip)
            optimizer.step()


def check_same(found, expected, **tolerance):
    found, expected = found.state_dict(), expected.state_dict()
    assert found.keys() == expected.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], **(tolerance or {"rtol": 0, "atol": 0}))


@pytest.mark.parametrize("clip", [None, 0.1])
def test_the_same_as_a_plain_loop(clip):
    model, optimizer = made()
    accelerator = Accelerator(cpu=True)
    accelerated(accelerator, *accelerator.prepare(model, optimizer, data()), clip=clip)
    expected, by_hand = made()
    plainly(expected, by_hand, data(), clip=clip)
    check_same(model, expected)
    assert model.posterior.max() - model.posterior.min() > 1e-3


def test_accumulated_batches_count_as_one():
    model, optimizer = made()
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    accelerated(accelerator, *accelerator.prepare(model, optimizer, data(2)))
    expected, by_hand = made()
    plainly(expected, by_hand, data(8))
    check_same(model, expected, rtol=1e-5, atol=1e-6)  # the evidence is summed in float32


def test_mixed_precision():
    model, _ = made()
    model.float()
    optimizer = alrao.SGD(model)
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    model, optimizer, loader = accelerator.prepare(model, optimizer, data(8))
    for _ in range(20):
        for x, y in loader:
            accelerator.backward(F.cross_entropy(model(x.float()), y))
            optimizer.step()
            optimizer.zero_grad()
    x, y = loader.dataset.tensors
    out = model(x.float())
    assert out.dtype == torch.float32
    assert (out.argmax(1) == y).double().mean() > 0.7


@pytest.mark.parametrize("evaluates", [False, True])
@pytest.mark.parametrize("auto", [False, True])
def test_a_schedule_and_a_state_that_is_resumed(auto, evaluates, tmp_path):
    def prepared(seed):
        accelerator = Accelerator(cpu=True)
        model, optimizer = made(seed)
        if auto:
            optimizer = alrao.Auto(model, steps=14)  # four steps of search, then averages
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.5)
        return accelerator, *accelerator.prepare(model, optimizer, data(), scheduler)

    def train(accelerator, model, optimizer, loader, scheduler, epochs):
        for _ in range(epochs):
            model.train()
            optimizer.train()  # Accelerate passes it on where there is one
            accelerated(accelerator, model, optimizer, loader, 1)
            scheduler.step()
            if evaluates:
                model.eval()
                optimizer.eval()

    whole = prepared(0)
    train(*whole, epochs=2)
    whole[0].save_state(tmp_path)
    train(*whole, epochs=3)
    resumed = prepared(1)  # other weights and rates, until they are loaded
    resumed[0].load_state(tmp_path)
    train(*resumed, epochs=3)
    check_same(resumed[1], whole[1])
    check_same(resumed[1].train(not evaluates), whole[1].train(not evaluates))
    assert resumed[2].param_groups[0]["lr"] == 0.5


@pytest.mark.slow
def test_two_shards_are_one_process(tmp_path):
    as_by_torchrun(shards, 2, tmp_path)
    found = torch.load(tmp_path / "0.pt", weights_only=True)
    for kind in ("sgd", "auto"):
        model, optimizer = made()
        if kind == "auto":
            torch.manual_seed(5)
            optimizer = alrao.Auto(model, steps=8)
        plainly(model, optimizer, data(8))
        for name, value in model.state_dict().items():
            torch.testing.assert_close(found[kind][name], value, rtol=1e-5, atol=1e-6)
            assert torch.equal(found[f"{kind} resumed"][name], found[f"{kind} later"][name])


@pytest.mark.slow
def test_two_processes_are_one(tmp_path):
    as_by_torchrun(halves, 2, tmp_path)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    assert first["refused"] == second["refused"] == "the 2 processes have drawn different learning rates"
    expected, by_hand = made()
    plainly(expected, by_hand, data(8))
    for name, value in expected.state_dict().items():
        assert torch.equal(first["model"][name], second["model"][name]), name
        torch.testing.assert_close(first["model"][name], value, rtol=1e-5, atol=1e-6)
