"""Accelerate and the Trainer of Hugging Face train plain networks under Auto as a plain loop does."""

import copy

import pytest
import torch
import torch.nn.functional as F
from support.accelerate_loops import data
from support.hf_models import accelerate, classifier, examples, trainer
from torch import nn

import alrao


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def auto(net):
    torch.manual_seed(1)
    return alrao.Auto(net, steps=14)


def train(net, optimizer, loader, backward=lambda loss: loss.backward()):
    for _ in range(2):
        net.train()
        for x, _ in loader:
            backward(F.l1_loss(net(x), x[:, :3].sin()))
            optimizer.step()
            optimizer.zero_grad()
        net.eval()


def test_accelerate_trains_a_plain_network_as_a_loop_does():
    net, twin = network(), network()
    accelerator = accelerate.Accelerator(cpu=True)
    prepared, optimizer, loader = accelerator.prepare(net, auto(net), data())
    train(prepared, optimizer, loader, accelerator.backward)
    other = auto(twin)
    train(twin, other, data())
    assert all(map(torch.equal, net.parameters(), twin.parameters()))
    net.train()
    assert not all(map(torch.equal, net.parameters(), twin.parameters())), "twin shows the average"


def test_the_trainer_trains_a_plain_network_and_evaluates_its_average(tmp_path):
    torch.manual_seed(0)
    net = classifier()
    optimizer = auto(net)
    constant = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    made = trainer(tmp_path, net, optimizer, scheduler=constant, max_steps=12)
    made.train()
    net.train()
    twin = copy.deepcopy(net).eval()
    with torch.no_grad():
        for p, q in zip(net.parameters(), twin.parameters(), strict=True):
            if "z" in optimizer.state[p]:
                q.copy_((p - 0.5 * optimizer.state[p]["z"]) / 0.5)  # by definition
        rows = examples()
        inputs, labels = torch.stack([row["input_ids"] for row in rows]), [row["labels"] for row in rows]
        expected = twin(inputs, labels=torch.tensor(labels)).loss.item()
        ours = net.eval()(inputs, labels=torch.tensor(labels)).loss.item()
    assert made.evaluate()["eval_loss"] == pytest.approx(expected, rel=1e-4)
    assert ours == pytest.approx(expected, rel=1e-4)
    assert {state["k"] for state in optimizer.state.values() if "k" in state} == {8}
