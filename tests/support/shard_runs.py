"""Training on several processes and on one: the cases of the contract, and what they end with."""

from datetime import timedelta
from functools import partial
from itertools import product

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed import checkpoint as dcp
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.parallel import DistributedDataParallel

import alrao
from alrao.contrib.copy_parallel import CopyParallel

COPIES, ROWS, STEPS = 3, 8, 5

CRITERIA = {
    "categorical": F.cross_entropy,
    "gaussian": alrao.MixtureMSELoss(),
    "bernoulli": alrao.MixtureBCELoss(),
}

OPTIMIZERS = {
    "sgd": lambda model: alrao.SGD(model, lr=(1e-2, 1.0)),
    "momentum": lambda model: alrao.SGD(model, lr=(1e-2, 1.0), momentum=0.5, weight_decay=1e-2),
    "adam": lambda model: alrao.Adam(model, lr=(1e-3, 0.1)),
    "adamw": lambda model: alrao.AdamW(model, lr=(1e-3, 0.1), amsgrad=True, maximize=False),
    "per-feature": lambda model: alrao.PerFeature(torch.optim.NAdam, model, lr=(1e-3, 0.1)),
    "per-weight": lambda model: alrao.SGD(model, lr=alrao.paper.PerWeight(alrao.LogUniform(1e-2, 1.0))),
    "auto": lambda model: alrao.Auto(model, steps=8, weight_decay=1e-2),  # two steps of search, then averages
}


class Net(nn.Module):
    """Rows for features, and columns; a bare parameter; fewer rows than processes."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 6)
        self.scale = nn.Parameter(torch.ones(1))
        self.convolution = nn.Conv1d(1, 3, 3)
        self.hidden = nn.Linear(12, 7)
        self.output = nn.Linear(7, 3)

    def forward(self, x):
        x = self.convolution(self.embedding(x)[:, None] * self.scale)
        return self.output(self.hidden(x.flatten(1).tanh()).tanh())


def build(likelihood="categorical", seed=0, **kwargs):
    torch.manual_seed(seed)
    return alrao.Alrao(Net().double(), COPIES, likelihood=likelihood, **kwargs)


def layers(model):
    """The layers of a network, each to be sharded."""
    net = getattr(model, "net", model)
    return [net.embedding, net.convolution, net.hidden, net.output]


def whole(model):
    fully_shard(model)
    return model


def by_layers(model, **kwargs):
    for layer in layers(model):
        fully_shard(layer, **kwargs)
    fully_shard(model, **kwargs)
    return model


def on_devices(model):
    """Each process holds some of the copies."""
    parallelize_module(model, init_device_mesh("cpu", (dist.get_world_size(),)), {"output": CopyParallel()})
    return model


WAYS = {
    "ddp": DistributedDataParallel,
    "whole": whole,
    "layers": by_layers,
    "resharded": partial(by_layers, reshard_after_forward=True),
    "kept": partial(by_layers, reshard_after_forward=False),
    "copies": on_devices,
}


def optimizer_for(model, name="momentum", seed=100):
    torch.manual_seed(seed)
    return OPTIMIZERS[name](model)


def batch(likelihood, step):
    generator = torch.Generator().manual_seed(step)
    x = torch.randint(5, (ROWS,), generator=generator)
    y = torch.randn(ROWS, 3, dtype=torch.float64, generator=generator) + F.one_hot(x % 3, 3)
    return x, {"categorical": y.argmax(1), "gaussian": y, "bernoulli": (y > 0).double()}[likelihood]


def share(rank, world):
    """The rows of a batch that a process gets."""
    return slice(rank * ROWS // world, (rank + 1) * ROWS // world)


def train(model, optimizer, likelihood="categorical", rows=slice(None), *, first=0, steps=STEPS, clip=None):
    for step in range(first, first + steps):
        x, y = (part[rows] for part in batch(likelihood, step))
        optimizer.zero_grad()
        CRITERIA[likelihood](model(x), y).backward()
        if clip is not None:
            optimizer.model.clip_grad_norm_(clip)
        optimizer.step()


def full(x):
    """A tensor, gathered."""
    return (x.full_tensor() if hasattr(x, "full_tensor") else x).detach().clone()


def weights(model):
    """Parameters and posterior, gathered."""
    return {name.removeprefix("module."): full(value) for name, value in model.state_dict().items()}


def ended(model, optimizer, x):
    """What is compared: the weights of training and of evaluation, and the outputs with both."""
    found, outputs = {"train": weights(model)}, {}
    with torch.no_grad():
        for moment in ("evaluated", "trained", "again"):  # nothing in between gathers or shards the weights
            optimizer.model.train(moment == "trained")
            outputs[moment] = model(x).as_subclass(torch.Tensor).detach().clone()
    found |= {"out": outputs, "eval": weights(model)}
    optimizer.model.train()
    return found | {"back": weights(model)}


def case(name, likelihood, way=None, rank=0, world=1, **kwargs):
    """Train a model, sharded in some way or not, and return what it ended with."""
    model = build(likelihood)
    model = model if way is None else WAYS[way](model)
    optimizer = optimizer_for(model, name)
    rows = slice(None) if way == "copies" else share(rank, world)
    train(model, optimizer, likelihood, rows, **kwargs)
    return ended(model, optimizer, batch(likelihood, 0)[0])


def begin(rank, world, folder):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=90),
    )


CHECKPOINTS = [("sgd", 2, True), ("adam", 2, True), ("per-feature", 2, True)]
CHECKPOINTS += [("auto", 1, True), ("auto", 4, True), ("auto", 4, False)]
"""Optimizers, the steps before a checkpoint, and the mode in which it is saved."""


def packed(model, optimizer):
    return {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer)}


def save_part(folder, name, at, training, rank, world):
    """Save a run that was interrupted, by torch's distributed checkpoints."""
    model = by_layers(build())
    optimizer = optimizer_for(model, name)
    train(model, optimizer, rows=share(rank, world), steps=at)
    model.train(training)
    state = packed(model, optimizer)
    assert state["optimizer"]["state"].keys() == dict(model.named_parameters()).keys()
    dcp.save(state, checkpoint_id=f"{folder}/{name}-{at}-{training}")
    assert all(
        isinstance(s[key], DTensor)
        for s in optimizer.state.values()
        for key in s
        if key in ("u", "exp_avg_sq")
    )


def finish(folder, name, at, training, rank=0, world=1):
    """Load a run into another model, sharded if there are several processes, and train on."""
    model = build(seed=1)
    model = whole(model) if world > 1 else model
    optimizer = optimizer_for(model, name, seed=101)
    state = packed(model, optimizer)
    dcp.load(state, checkpoint_id=f"{folder}/{name}-{at}-{training}", no_dist=world == 1)
    set_model_state_dict(model, state["model"])
    set_optimizer_state_dict(model, optimizer, state["optimizer"])
    model.train()
    train(model, optimizer, rows=share(rank, world), first=at, steps=STEPS - at)
    return ended(model, optimizer, batch("categorical", 0)[0])


def all_cases(ways):
    return list(product(OPTIMIZERS, CRITERIA, ways))
