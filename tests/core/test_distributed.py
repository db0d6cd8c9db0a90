"""Two processes with half of the batch each train as one process does with all of it."""

from datetime import timedelta

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from support.processes import together
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import alrao
from alrao.contrib.zoom import Zoom

pytestmark = pytest.mark.skipif(not dist.is_gloo_available(), reason="needs gloo")

CRITERIA = {
    "categorical": F.cross_entropy,
    "gaussian": alrao.MixtureMSELoss(),
    "bernoulli": alrao.MixtureBCELoss(),
}
STEPS = 5


def build(likelihood, seed=0):
    torch.manual_seed(seed)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    return alrao.Alrao(net.double(), 4, likelihood=likelihood)


def optimizer_for(model, rank, **kwargs):
    torch.manual_seed(100 + rank)  # other processes have other seeds
    return alrao.SGD(model, lr=(1e-2, 1.0), momentum=0.5, **kwargs)


def auto_for(model, rank):
    torch.manual_seed(100 + rank)
    return alrao.Auto(model, steps=8)  # two steps of search, then averages


def asleep_for(model, rank):
    """An optimizer two of whose four copies sleep: one is looked at every three steps."""
    optimizer = optimizer_for(model, rank, sleep=True)
    optimizer.model.head.awake = optimizer.model.head.part = slice(1, 3)
    optimizer._sleep.every = [3, 1, 1, 1]
    optimizer._sleep.behind = [0.0] * 4
    return optimizer


def batch(likelihood, step):
    generator = torch.Generator().manual_seed(step)
    x, y = torch.randn(2, 12, 4, dtype=torch.float64, generator=generator)
    y = y[:, :3]
    return x, {"categorical": y.argmax(1), "gaussian": y, "bernoulli": (y > 0).double()}[likelihood]


def train(model, optimizer, likelihood, rows, ignored=False, scale=1.0, zoom=None, evaluates=False):
    """The state after every step."""
    seen = []
    for step in range(STEPS):
        x, y = (part[rows] for part in batch(likelihood, step))
        y = torch.full_like(y, -100) if ignored else y
        optimizer.zero_grad()
        (scale * CRITERIA[likelihood](model(x), y)).backward()
        optimizer.step()
        if zoom is not None:
            zoom.step()
        if evaluates:
            model.eval()  # through the wrapper; nobody else takes part
            optimizer.model(x)
            model.train()
        seen.append({name: value.clone() for name, value in optimizer.model.state_dict().items()})
    return seen


def plain(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)).double()


def train_plain(net, optimizer, rows, evaluates=False):
    """The weights of a plain network after every step, with a loss that is no likelihood."""
    seen = []
    for step in range(STEPS):
        x, y = (part[rows] for part in batch("gaussian", step))
        optimizer.zero_grad()
        F.l1_loss(net(x), y).backward()
        optimizer.step()
        if evaluates:
            net.eval()
            net.train()
        seen.append({str(i): p.detach().clone() for i, p in enumerate(net.parameters())})
    return seen


def rates(model, optimizer):
    return [optimizer.rates(p) for p in model.parameters()]


def refused(model, optimizer, wrong):
    """Whether the step is refused, after a loss that is wrong on one of the ranks only."""
    x, y = batch("categorical", 0)
    out = model(x)
    (out.exp().square().sum() if wrong else F.cross_entropy(out, y)).backward()
    try:
        optimizer.step()
    except RuntimeError as error:
        return "not a negative log-likelihood" in str(error)
    return False


def worker(rank, folder):
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2, timeout=timedelta(seconds=60)
    )
    half, result = slice(6 * rank, 6 * rank + 6), {}
    for likelihood in CRITERIA:
        model = DistributedDataParallel(build(likelihood, seed=rank))  # rank 0's parameters go to all
        optimizer = optimizer_for(model, rank)
        result[f"{likelihood} rates"] = rates(model, optimizer)
        result[likelihood] = train(model, optimizer, likelihood, half)

    model = DistributedDataParallel(build("categorical"))
    result["ignored"] = train(model, optimizer_for(model, rank), "categorical", half, ignored=rank == 1)

    model = build("categorical", seed=rank)
    optimizer = optimizer_for(model, rank)
    zoom = Zoom(optimizer, 4, every=1)  # before rank 0's parameters go to all
    model = DistributedDataParallel(model)
    result["zoom"] = train(model, optimizer, "categorical", half, zoom=zoom)

    model = DistributedDataParallel(build("categorical", seed=rank))
    optimizer = auto_for(model, rank)
    result["auto"] = train(model, optimizer, "categorical", half, evaluates=rank == 0)

    model = DistributedDataParallel(build("categorical", seed=rank))
    result["asleep"] = train(model, asleep_for(model, rank), "categorical", half)

    net = DistributedDataParallel(plain(seed=rank))
    result["plain"] = train_plain(net, auto_for(net, rank), half, evaluates=rank == 0)

    together = dist.new_group([0, 1])
    model = DistributedDataParallel(build("categorical"), process_group=together)
    optimizer = optimizer_for(model, rank, process_group=together)
    result["group"] = train(model, optimizer, "categorical", half)

    alone = [dist.new_group([0]), dist.new_group([1])][rank]
    model = build("categorical")
    optimizer = optimizer_for(model, rank, process_group=alone)
    result["alone rates"] = rates(model, optimizer)
    result["alone"] = train(model, optimizer, "categorical", half)

    model = DistributedDataParallel(build("categorical"))
    result["refused"] = refused(model, optimizer_for(model, rank), wrong=rank == 1)
    torch.save(result, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    """What each of two processes ended with."""
    folder = tmp_path_factory.mktemp("ranks")
    together(worker, 2, folder)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(2)]


def assert_same(one, other, **tolerance):
    assert len(one) == len(other) == STEPS
    for a, b in zip(one, other, strict=True):
        assert a.keys() == b.keys()
        for name in a:
            torch.testing.assert_close(a[name], b[name], **tolerance)


@pytest.mark.parametrize("likelihood", list(CRITERIA))
def test_rates_are_the_same_although_the_seeds_differ(ranks, likelihood):
    key = f"{likelihood} rates"
    assert len(ranks[0][key]) == 4
    assert all(torch.equal(a, b) for a, b in zip(ranks[0][key], ranks[1][key], strict=True))


@pytest.mark.parametrize("what", [*CRITERIA, "ignored", "group", "zoom", "auto", "asleep"])
def test_ranks_stay_in_step_to_the_bit(ranks, what):
    assert_same(ranks[0][what], ranks[1][what], rtol=0, atol=0)


@pytest.mark.parametrize("likelihood", list(CRITERIA))
def test_two_halves_equal_the_whole(ranks, likelihood):
    model = build(likelihood)
    expected = train(model, optimizer_for(model, 0), likelihood, slice(None))
    # The evidence is summed in float32; all else is in float64.
    assert_same(ranks[0][likelihood], expected, rtol=1e-5, atol=1e-6)
    assert model.posterior.max() - model.posterior.min() > 1e-3


def test_a_rank_whose_half_is_ignored_adds_nothing(ranks):
    model = build("categorical")
    expected = train(model, optimizer_for(model, 0), "categorical", slice(6), scale=0.5)
    assert_same(ranks[0]["ignored"], expected, rtol=1e-5, atol=1e-6)


def test_zoom_narrows_in_all_processes_as_in_one(ranks):
    model = build("categorical")
    optimizer = optimizer_for(model, 0)
    expected = train(model, optimizer, "categorical", slice(None), zoom=Zoom(optimizer, 4, every=1))
    assert_same(ranks[0]["zoom"], expected, rtol=1e-5, atol=1e-6)


def test_auto_trains_in_all_processes_as_in_one_while_one_evaluates(ranks):
    model = build("categorical")
    optimizer = auto_for(model, 0)
    expected = train(model, optimizer, "categorical", slice(None))
    assert_same(ranks[0]["auto"], expected, rtol=1e-5, atol=1e-6)
    assert optimizer.state[model.head.weight]["k"] == STEPS - 2


def test_copies_sleep_in_all_processes_as_in_one(ranks):
    model = build("categorical")
    expected = train(model, asleep_for(model, 0), "categorical", slice(None))
    assert_same(ranks[0]["asleep"], expected, rtol=1e-5, atol=1e-6)
    weights = [ranks[0]["asleep"][step]["2.weight"] for step in range(STEPS)]
    assert torch.equal(weights[0][0], weights[1][0])  # asleep
    assert not torch.equal(weights[1][0], weights[2][0])  # looked at
    assert torch.equal(weights[0][3], weights[-1][3])


def test_auto_trains_a_plain_network_in_all_processes_as_in_one(ranks):
    net = plain()
    optimizer = auto_for(net, 0)
    expected = train_plain(net, optimizer, slice(None))
    assert_same(ranks[0]["plain"], expected, rtol=1e-9, atol=1e-9)
    assert_same(ranks[1]["plain"], ranks[0]["plain"], rtol=0, atol=0)
    assert optimizer.state[net[0].weight]["k"] == STEPS - 2


def test_a_process_group_of_both(ranks):
    assert_same(ranks[0]["group"], ranks[0]["categorical"], rtol=0, atol=0)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_group_of_its_own(ranks, rank):
    model = build("categorical")
    optimizer = optimizer_for(model, rank)
    for drawn, expected in zip(ranks[rank]["alone rates"], rates(model, optimizer), strict=True):
        assert torch.equal(drawn, expected)
    expected = train(model, optimizer, "categorical", slice(6 * rank, 6 * rank + 6))
    assert_same(ranks[rank]["alone"], expected, rtol=0, atol=0)


def test_a_wrong_loss_on_one_rank_is_refused_on_both(ranks):
    assert [rank["refused"] for rank in ranks] == [True, True]
