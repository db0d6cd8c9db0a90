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
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
    set_state_dict,
)
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import parallelize_module
from torch.nn.parallel import DistributedDataParallel

import alrao
from alrao.heads import large

LARGE = large.LARGE
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
    "per-weight": lambda model: alrao.SGD(model, lr=alrao.PerWeight(alrao.LogUniform(1e-2, 1.0))),
    "auto": lambda model: alrao.Auto(model, steps=8, weight_decay=1e-3),  # two steps of search, then averages
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
    net = model.net
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
    parallelize_module(
        model, init_device_mesh("cpu", (dist.get_world_size(),)), {"output": alrao.CopyParallel()}
    )
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
    """What is compared: the weights of training, then those of evaluation, and an output."""
    found = {"train": weights(model)}
    optimizer.model.eval()
    with torch.no_grad():
        out = model(x)
    found |= {"eval": weights(model), "out": {"out": out.as_subclass(torch.Tensor).detach().clone()}}
    optimizer.model.train()
    found["back"] = weights(model)
    return found


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
CHECKPOINTS += [("auto", 1, True), ("auto", 3, True), ("auto", 3, False)]
"""Optimizers, the steps before a checkpoint, and the mode in which it is saved."""


def packed(model, optimizer):
    return {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer)}


def save_part(folder, name, at, training, rank, world):
    """Save a run that was interrupted, by torch's distributed checkpoints."""
    model = by_layers(build())
    optimizer = optimizer_for(model, name)
    train(model, optimizer, rows=share(rank, world), steps=at)
    model.train(training)
    dcp.save(packed(model, optimizer), checkpoint_id=f"{folder}/{name}-{at}-{training}")
    assert all(
        isinstance(s[key], DTensor) for s in optimizer.state.values() for key in s if key in ("u", "v")
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


def smooth(out, y):
    return F.cross_entropy(out, y, label_smoothing=0.1)


def late(model, name="momentum"):
    """A model that is sharded after its optimizer is built."""
    optimizer = optimizer_for(model, name)
    by_layers(model)
    return optimizer


def on_columns(model):
    """Parameters are sharded along their last axis, where torch can."""
    fully_shard(model, shard_placement_fn=lambda p: Shard(0 if p.shape[-1] % 2 else p.ndim - 1))
    return model


def fail_copy(model):
    """The second copy has weights that are not finite."""
    with torch.no_grad():
        weight = model.head.weight
        full(weight)  # all processes take part
        part = weight.to_local() if isinstance(weight, DTensor) else weight
        numbers = range(COPIES) if part is weight else model.head.parallel.own.tolist()
        for j, number in enumerate(numbers):
            if number == 1:
                part[j] = torch.inf
    return model


def plain_net(way=None):
    torch.manual_seed(0)
    net = Net().double()
    return net if way is None else way(net)


def special(what, way=None, rank=0, world=1):
    """A run of the contract with something special; the same in one process and in many."""
    rows, rest, shards = share(rank, world), {}, way
    model = build()
    if what == "clip":
        rest["clip"] = 1e-2
    elif what == "late" and way:
        shards = None
    elif what == "columns" and way:
        shards = on_columns
    elif what == "plain":
        model, shards = plain_net(), way
    model = model if shards is None else (WAYS[shards] if isinstance(shards, str) else shards)(model)
    if way == "copies":
        rows = slice(None)
    if what == "failed":
        fail_copy(model)
    if what == "late" and way:
        optimizer = late(model, "per-feature")
    else:
        name = {"late": "per-feature", "plain": "auto"}.get(what, "momentum")
        optimizer = optimizer_for(model, name)
    large.LARGE = 1 if what == "large" and way else LARGE
    criterion = smooth if what == "smooth" else F.cross_entropy
    for step in range(STEPS):
        x, y = (part[rows] for part in batch("categorical", step))
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        if "clip" in rest:
            optimizer.model.clip_grad_norm_(rest["clip"])
        optimizer.step()
    large.LARGE = LARGE
    if what == "gathered" and way:
        options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
        states = get_state_dict(model, optimizer, options=options)
        model = whole(build(seed=1))
        optimizer = optimizer_for(model, seed=101)
        set_state_dict(
            model, optimizer, model_state_dict=states[0], optim_state_dict=states[1], options=options
        )
    if what == "gathered":
        train(model, optimizer, rows=rows, first=STEPS)
    return {"train": weights(model)}


SPECIAL = [("clip", "layers"), ("clip", "copies"), ("late", "layers"), ("columns", "whole")]
SPECIAL += [("smooth", "copies"), ("failed", "copies"), ("plain", "whole"), ("smooth", "layers")]
SPECIAL += [("large", "layers"), ("gathered", "layers")]


def exchanged(rank, world):
    """The largest tensor that a step with copies on several devices exchanges; there are 300 classes."""
    torch.manual_seed(0)
    model = alrao.Alrao(nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 300)), COPIES)
    mesh = init_device_mesh("cpu", (world,))
    parallelize_module(model.head, mesh, alrao.CopyParallel())
    optimizer = alrao.SGD(model)
    x, y = torch.randn(ROWS, 5), torch.randint(300, (ROWS,))
    sizes, before = [], dist.all_reduce
    dist.all_reduce = lambda x, *args, **kwargs: (sizes.append(x.numel()), before(x, *args, **kwargs))[1]
    try:
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    finally:
        dist.all_reduce = before
    plain = model.collapse()  # every process takes part
    assert type(plain[1]) is nn.Linear
    return max(sizes)


def message(do):
    try:
        do()
    except (RuntimeError, TypeError, ValueError) as error:
        return str(error)
    return "no error"


def bad_input(rank, world):
    """The messages of errors, each raised in all processes."""
    x, y = batch("categorical", 0)

    def step(model, optimizer):
        F.cross_entropy(model(x), y).backward()
        optimizer.step()

    def copies():
        torch.manual_seed(0)
        model = alrao.Alrao(Net().double(), 2 + rank)
        step(model, alrao.SGD(model))

    def seeds():
        model = build(seed=rank)
        step(model, alrao.SGD(model))

    def rates():
        model = build()
        alone = [dist.new_group([each]) for each in range(world)][rank]
        torch.manual_seed(rank)
        optimizer = alrao.SGD(model, process_group=alone)
        optimizer.process_group = None
        step(model, optimizer)

    def flattened():
        model = build()
        optimizer = alrao.SGD(model)
        for group in optimizer.param_groups:  # as DeepSpeed's ZeRO does
            group["params"] = [nn.Parameter(torch.cat([p.flatten() for p in group["params"]]))]
        step(model, optimizer)

    def older():
        alrao.SGD(FullyShardedDataParallel(build(), device_id=torch.device("cpu"), use_orig_params=True))

    def inside():  # as Lightning's FSDPStrategy does
        model = build()
        FullyShardedDataParallel(nn.Sequential(model), device_id=torch.device("cpu"), use_orig_params=True)
        alrao.SGD(model)

    def muon():
        net = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 3, bias=False))
        alrao.PerFeature(torch.optim.Adafactor, whole(alrao.Alrao(net, COPIES)))

    def part():
        model = whole(build())
        optimizer = optimizer_for(model)
        step(model, optimizer)
        plain = build()
        optimizer_for(plain).load_state_dict(optimizer.state_dict())

    def collapse():
        whole(build()).collapse()

    bad = (copies, seeds, rates, flattened, older, inside, muon, part, collapse)
    return {do.__name__: message(do) for do in bad}


def policy(rank, world):
    """A mixed precision policy: the losses of the first and the last step, and the types."""
    torch.manual_seed(0)
    model = alrao.Alrao(Net(), COPIES)
    by_layers(model, mp_policy=MixedPrecisionPolicy(torch.bfloat16, torch.float32))
    optimizer = alrao.SGD(model, lr=(1e-2, 1.0))
    losses = []
    for _ in range(30):
        x, y = (each[share(rank, world)] for each in batch("categorical", 0))
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return {
        "first": losses[0],
        "last": losses[-1],
        "dtype": str(next(model.parameters()).dtype),
        "out": str(model(x).dtype),
    }


def contract(rank, world, folder, cases):
    """Run cases in a process of many; the first one keeps what they ended with."""
    begin(rank, world, folder)
    found = {key: case(*key, rank=rank, world=world) for key in cases}
    for each in CHECKPOINTS:
        save_part(folder, *each, rank, world)
    found |= {key: special(*key, rank, world) for key in SPECIAL}
    found |= {do.__name__: do(rank, world) for do in (exchanged, policy, bad_input)}
    if rank == 0:
        torch.save(found, f"{folder}/found.pt")
    dist.destroy_process_group()


def resumed(rank, world, folder, source):
    """Resume the checkpoints in another number of processes."""
    begin(rank, world, folder)
    found = {key: finish(source, *key, rank, world) for key in CHECKPOINTS}
    if rank == 0:
        torch.save(found, f"{folder}/found.pt")
    dist.destroy_process_group()


def all_cases(ways):
    return list(product(OPTIMIZERS, CRITERIA, ways))
