"""Special runs on several processes, and what is refused: more of the contract of :mod:`shard_runs`."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.parallel import parallelize_module

import alrao
from alrao.contrib.copy_parallel import CopyParallel
from alrao.heads import vocabulary
from support.shard_runs import (
    CHECKPOINTS,
    COPIES,
    ROWS,
    STEPS,
    WAYS,
    Net,
    batch,
    begin,
    build,
    by_layers,
    case,
    finish,
    full,
    optimizer_for,
    save_part,
    share,
    train,
    weights,
    whole,
)

LARGE = vocabulary.LARGE


def smooth(out, y):
    return F.cross_entropy(out, y, label_smoothing=0.1)


def late(model, name="momentum"):
    """A model that is sharded after its optimizer is built."""
    optimizer = optimizer_for(model, name)
    by_layers(model)
    return optimizer


def on_columns(model):
    """Parameters are sharded along their last axis, where torch can."""
    world = dist.get_world_size()
    fully_shard(model, shard_placement_fn=lambda p: Shard(0 if p.shape[-1] % world else p.ndim - 1))
    return model


def on_second_axis(model):
    """Heads are sharded over the classes, other matrices over their inputs."""
    fully_shard(model, shard_placement_fn=lambda p: Shard(min(1, p.ndim - 1)))
    return model


def on_two_axes(model):
    """Each pair of processes has a whole model, in two shards."""
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("pairs", "shards"))
    fully_shard(model, mesh=mesh)
    return model


PLACED = {"second-axis": on_second_axis, "two-axes": on_two_axes}


def even_model():
    """A model whose axes can be divided by the number of processes."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Embedding(5, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
    return alrao.Alrao(net.double(), COPIES)


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


def resumed_plain(model, optimizer, way):
    """A plain network and its optimizer after a checkpoint, sharded again."""
    options = StateDictOptions(full_state_dict=True, broadcast_from_rank0=True)
    states = get_state_dict(model, optimizer, options=options)
    torch.manual_seed(1)
    model = way(Net().double())
    optimizer = alrao.Auto(model, steps=20)
    set_state_dict(model, optimizer, model_state_dict=states[0], optim_state_dict=states[1], options=options)
    return model, optimizer


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
    elif what in PLACED:
        model, shards = even_model(), PLACED[what] if way else None
    elif what.startswith("plain"):
        model, shards = plain_net(), on_columns if what == "plain-columns" and way else way
    model = model if shards is None else (WAYS[shards] if isinstance(shards, str) else shards)(model)
    if way == "copies":
        rows = slice(None)
    if what == "failed":
        fail_copy(model)
    if what == "late" and way:
        optimizer = late(model, "per-feature")
    else:
        optimizer = optimizer_for(model, "per-feature" if what == "late" else "momentum")
    if what.startswith("plain"):
        torch.manual_seed(100)
        on_device = what == "plain-device"
        optimizer = alrao.Auto(model, steps=20, capturable=on_device)  # six steps of search
    vocabulary.LARGE = 1 if what == "large" and way else LARGE
    criterion = smooth if what == "smooth" else F.cross_entropy
    for step in range(15 if what.startswith("plain") else STEPS):
        if what == "plain-gathered" and way and step == 3:  # in the midst of the search
            model, optimizer = resumed_plain(model, optimizer, WAYS[way])
        x, y = (part[rows] for part in batch("categorical", step))
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        if "clip" in rest:
            optimizer.model.clip_grad_norm_(rest["clip"])
        optimizer.step()
    vocabulary.LARGE = LARGE
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
    found = {"train": weights(model)}
    if what.startswith("plain"):
        found["search"] = {"distance": torch.tensor(optimizer.search.distance)}
    return found


SPECIAL = [("clip", "layers"), ("clip", "copies"), ("late", "layers"), ("columns", "whole")]
SPECIAL += [("smooth", "copies"), ("failed", "copies"), ("plain", "whole"), ("smooth", "layers")]
SPECIAL += [("plain", "layers"), ("plain-columns", "whole")]
SPECIAL += [("plain-gathered", "whole"), ("plain-device", "layers")]
SPECIAL += [("large", "layers"), ("gathered", "layers"), *((what, "whole") for what in PLACED)]


def exchanged(rank, world):
    """The largest tensor that a step with copies on several devices exchanges; there are 300 classes."""
    torch.manual_seed(0)
    model = alrao.Alrao(nn.Sequential(nn.Linear(5, 4), nn.Linear(4, 300)), COPIES)
    mesh = init_device_mesh("cpu", (world,))
    parallelize_module(model.head, mesh, CopyParallel())
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

    def sharded_copies():
        torch.manual_seed(0)
        alrao.Auto(whole(alrao.Alrao(Net().double(), 2 + rank)))

    def seeds():
        model = build(seed=rank)
        step(model, alrao.SGD(model))

    def heads():
        torch.manual_seed(0)
        net = Net().double()
        torch.manual_seed(rank)
        model = alrao.Alrao(net, COPIES)
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

    def smaller():  # each process shards a model over itself only
        model = whole(build())
        optimizer = optimizer_for(model)
        step(model, optimizer)
        alone = init_device_mesh("cpu", (world, 1), mesh_dim_names=("all", "alone"))["alone"]
        few = fully_shard(build(), mesh=alone)
        optimizer_for(few).load_state_dict(optimizer.state_dict())

    def collapse():
        whole(build()).collapse()

    bad = (
        copies,
        sharded_copies,
        seeds,
        heads,
        rates,
        flattened,
        older,
        inside,
        muon,
        part,
        smaller,
        collapse,
    )
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
