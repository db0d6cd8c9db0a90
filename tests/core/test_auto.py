"""Auto: its steps against a slow reference, its search, its settings, and what it must withstand."""

import copy
from math import inf, nan

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from support.auto_reference import SlowAuto
from support.auto_runs import LONG, batch, build, equal, small, train, weights
from torch import nn

import alrao
from alrao.auto import matrices
from alrao.auto.matrices import matrices_of, orthogonal_steps
from alrao.auto.search import RateSearch
from alrao.integrations._posterior import learning_rates


def the_same(model, optimizer, slow):
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), slow.y[name], rtol=1e-9, atol=1e-12)
    found = slow.eta if slow.searching else slow.found
    assert optimizer.interval() == pytest.approx((found, found), rel=1e-9)
    assert optimizer.param_groups[0]["d"] == pytest.approx(slow.eta, rel=1e-9)
    model.eval()
    for name, p in model.named_parameters():
        torch.testing.assert_close(p.detach(), slow.average(name), rtol=1e-9, atol=1e-12)
    model.train()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weight_decay": 0.1},
        {"weight_decay": 300.0, "steps": 100},  # clamped, and nothing is learned
        {"steps": 100},
        {"steps": 3},
        {"betas": (0.9, 0.95), "eps": 1e-4, "foreach": True},
        {"foreach": False},
    ],
    ids=str,
)
@pytest.mark.parametrize("steady", [1000, 20])
def test_it_is_the_algorithm_as_written_down(options, steady, monkeypatch):
    monkeypatch.setattr("alrao.auto.step.STEADY", steady)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3))
    model = alrao.Alrao(net.double(), 5)
    optimizer = alrao.Auto(model, **options)
    betas = options.get("betas", (0.5, 0.99))
    names = [name for name, _ in model.named_parameters()]
    head = {name for name, p in model.named_parameters() if p in set(model.head.parameters())}
    hidden = (model.net[0].weight, model.net[2].weight)
    matrices = {name for name, p in model.named_parameters() if any(p is each for each in hidden)}
    slow = SlowAuto(
        dict(zip(names, weights(model), strict=True)), head, matrices,
        longest={100: 30, 3: 1}.get(options.get("steps"), 500),
        weight_decay=options.get("weight_decay", 0.3), beta=betas[0], beta2=betas[1],
        eps=options.get("eps", 1e-8), steady=steady,
    )  # fmt: skip
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 60, gamma=0.5)
    for step in range(100):
        x, y = batch(step, torch.float64)
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        grads = {name: p.grad.clone() for name, p in model.named_parameters()}
        slow.step(grads, factor=0.5 if step >= 60 else 1.0)
        optimizer.step()
        schedule.step()
        the_same(model, optimizer, slow)
    assert optimizer.search.over


# The search.


def searched(curvature, distance, *, noise=0.0, steps=None, dim=20, seed=0):
    """A search on a quadratic whose minimum is at a distance from the start, in each of its weights."""
    g = torch.Generator().manual_seed(seed)
    p = nn.Parameter(torch.zeros(dim, dtype=torch.float64))
    optimizer = alrao.Auto([("p", p)], steps=steps)
    target = distance * torch.randn(dim, generator=g, dtype=torch.float64).sign()
    while not optimizer.search.over:
        noisy = target + noise * torch.randn(dim, generator=g, dtype=torch.float64)
        p.grad = curvature * (p.detach() - noisy)
        optimizer.step()
    return optimizer.search


@pytest.mark.parametrize("distance", [1e-4, 1e-3, 1e-2])
@pytest.mark.parametrize("curvature", [1e-2, 1.0, 1e6])
def test_the_rate_follows_the_distance_and_not_the_scale_of_the_loss(curvature, distance):
    search = searched(curvature, distance)
    assert distance / 20 < search.distance < distance
    assert search.rate == pytest.approx(searched(1.0, distance).rate, rel=0.1)  # eps


def test_the_rate_stays_low_where_there_is_only_noise():
    assert searched(1.0, 0.0, noise=1.0).rate < 4e-3


@pytest.mark.parametrize(
    ("total", "made"), [(None, 500), (10_000, 500), (1000, 300), (100, 30), (10, 3), (1, 1)]
)
def test_a_search_that_finds_nothing_ends(total, made):
    search = RateSearch.of(total)
    while not search.over:
        search.observe(-1.0, 1.0)
    assert search.steps == made
    assert search.rate == pytest.approx(1.01e-3, rel=0.01)


def test_a_plateau_is_waited_for():
    g = torch.Generator().manual_seed(0)
    p = nn.Parameter(torch.zeros(20, dtype=torch.float64))
    optimizer = alrao.Auto([("p", p)])
    while not optimizer.search.over:
        noise = torch.randn(20, generator=g, dtype=torch.float64)
        p.grad = noise if optimizer.search.steps < 200 else 100 * (p.detach() - 0.01)
        optimizer.step()
    assert 220 < optimizer.search.steps < 400
    assert 1e-3 < optimizer.search.distance < 0.01


@pytest.mark.parametrize("bad", [nan, inf, -inf])
def test_numbers_that_are_not_finite_do_not_reach_the_estimate(bad):
    search = RateSearch.of(None)
    for _ in range(60):
        search.observe(bad, 1.0)
        search.observe(1.0, bad)
    assert search.distance == 1e-6


def test_steps_without_a_gradient_are_not_counted():
    model, optimizer = build()
    optimizer.step()
    assert optimizer.search.steps == 0
    F.cross_entropy(model(torch.randn(4, 4)), torch.full((4,), -100)).backward()  # nothing is observed
    optimizer.step()
    assert optimizer.search.steps == 1


def test_a_wrapped_network_is_searched_as_the_plain_one():
    torch.manual_seed(0)
    net = small().double()
    twin = copy.deepcopy(net)
    model = alrao.Alrao(net, 5, keep_output=True)
    wrapped, plain = alrao.Auto(model), alrao.Auto(twin)
    for step in range(50):
        x, y = batch(step, torch.float64)
        for each, optimizer in ((model, wrapped), (twin, plain)):
            optimizer.zero_grad()
            F.cross_entropy(each(x), y).backward()
            optimizer.step()
        assert wrapped.search.distance == pytest.approx(plain.search.distance, rel=1e-6)


# The start.


def test_the_copies_start_alike_unless_they_are_trained():
    model, optimizer = build()
    for p in model.head.parameters():
        assert torch.equal(p, p[:1].expand_as(p))
    train(model, optimizer, 0, 60)
    before = weights(model)
    assert not torch.equal(model.head.weight[0], model.head.weight[1])
    alrao.Auto(model)
    assert equal(weights(model), before)


def test_a_kept_output_stays():
    net = small()
    output = net[-1].weight.detach().clone()
    model = alrao.Alrao(net, 5, keep_output=True)
    alrao.Auto(model)
    assert torch.equal(model.head.weight, output.expand(5, -1, -1))


# Groups.


@pytest.mark.filterwarnings("ignore:lr=0.01 gives all 5 copies")
@pytest.mark.parametrize("lr", [0.01, (1e-4, 1e-2)])
def test_a_group_with_its_own_rates_keeps_them(lr):
    model, _ = build()
    others = [p for p in model.parameters() if p is not model.net[0].weight]
    groups = [{"params": others}, {"params": [model.net[0].weight], "lr": lr}]
    optimizer = alrao.Auto(model, params=groups)
    rates = optimizer.rates(model.net[0].weight)
    train(model, optimizer, 0, 60)
    assert torch.equal(optimizer.rates(model.net[0].weight), rates)
    assert optimizer.interval(1) == (lr if isinstance(lr, tuple) else (lr, lr))
    assert optimizer.interval(0)[0] == optimizer.interval(0)[1] != 0.01


@pytest.mark.parametrize("at", [20, 60])
def test_parameters_may_join_later(at):
    model, _ = build()
    late = model.net[0].weight
    optimizer = alrao.Auto(model, steps=LONG, params=[p for p in model.parameters() if p is not late])
    train(model, optimizer, 0, at)
    before = late.detach().clone()
    optimizer.add_param_group({"params": [late]})
    train(model, optimizer, at, 80)
    assert not torch.equal(late, before)
    assert optimizer.interval(1) == optimizer.interval(0)
    assert optimizer.state[late]["k"] == 80 - max(at, 50)
    model.eval()
    assert all(bool(p.isfinite().all()) for p in model.parameters())


@pytest.mark.parametrize("at", [20, 60])
@pytest.mark.parametrize("capturable", [False, True])
def test_parameters_may_be_frozen_and_thawed(capturable, at):
    model, optimizer = build(capturable=capturable)
    weight = model.net[0].weight
    train(model, optimizer, 0, at)
    weight.requires_grad_(False)
    before = weight.detach().clone()
    train(model, optimizer, at, 65)
    assert torch.equal(weight, before)
    weight.requires_grad_(True)
    train(model, optimizer, 65, 70)
    assert not torch.equal(weight, before)
    assert optimizer.state[weight]["k"] == 5 + max(0, at - 50)


@pytest.mark.parametrize("capturable", [False, True])
def test_every_group_counts_its_own_steps(capturable):
    """A counter that two groups share would be advanced twice a step."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    groups = [{"params": list(net[0].parameters())}, {"params": list(net[2].parameters())}]
    optimizer = alrao.Auto(net, params=groups, steps=20, capturable=capturable)
    for step in range(20):
        if step == 15:
            net.load_state_dict({name: p + 1 for name, p in net.state_dict().items()})
        optimizer.zero_grad()
        net(torch.randn(16, 4)).square().mean().backward()
        optimizer.step()
    counts = {(int(optimizer.state[p]["step"]), int(optimizer.state[p]["k"])) for p in net.parameters()}
    assert counts == {(20, 5)}, "the average starts again with the loaded weights"


# Loops.


def test_a_run_may_be_longer_than_its_steps():
    model, optimizer = build(steps=20)
    train(model, optimizer, 0, 60)
    assert optimizer.state[model.head.weight]["k"] == 54
    assert equal(weights(model), weights(model.train()))


def test_a_step_that_a_scaler_skips_changes_nothing():
    model, optimizer = build()
    train(model, optimizer, 0, 55)
    before, search = weights(model), optimizer.search.steps
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    optimizer.zero_grad()
    x, y = batch(0)
    scaler.scale(F.cross_entropy(model(x), y)).backward()
    model.net[0].weight.grad[0, 0] = inf
    scaler.step(optimizer)
    scaler.update()
    assert equal(weights(model), before)
    assert (optimizer.search.steps, optimizer.state[model.head.weight]["k"]) == (search, 5)


def test_a_closure_is_the_same_step():
    one, other = build(), build()
    for step in range(60):
        x, y = batch(step)

        def closure(x=x, y=y):
            one[1].zero_grad()
            loss = F.cross_entropy(one[0](x), y)
            loss.backward()
            return loss

        assert one[1].step(closure).item() > 0
    train(*other, 0, 60)
    assert equal(weights(one[0]), weights(other[0]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("steps", "kept"),
    [(30, {"start", "x", "exp_avg_sq"}), (55, {"exp_avg_sq", "z"})],
    ids=["search", "after"],
)
def test_two_tensors_the_size_of_the_weights_after_the_search(steps, kept, dtype):
    model, optimizer = build(dtype=dtype, hidden=64)
    train(model, optimizer, 0, steps)
    for p in model.parameters():
        large = {key for key, value in optimizer.state[p].items() if getattr(value, "shape", ()) == p.shape}
        if steps == 55 and p is model.net[0].weight:
            assert large == {"exp_avg", "z"}, "a hidden matrix"
        else:
            assert large == kept


# It learns, and nothing breaks it.


@pytest.mark.parametrize("seed", range(3))
def test_it_learns_digits(seed):
    torch.manual_seed(seed)
    data = load_digits()
    x, y = torch.tensor(data.data / 16, dtype=torch.float32), torch.tensor(data.target)
    order = torch.randperm(len(x))
    train_rows, test_rows = order[:1400], order[1400:]
    model = alrao.Alrao(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))
    optimizer = alrao.Auto(model)
    for _ in range(300):
        rows = train_rows[torch.randint(1400, (32,))]
        optimizer.zero_grad()
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        out = model(x[test_rows])
    assert F.cross_entropy(out, y[test_rows]) < 0.3
    assert (out.argmax(1) == y[test_rows]).float().mean() > 0.93


def body_is_finite(model, optimizer):
    values = [value for p in model.body_parameters() for value in (p, *optimizer.state[p].values())]
    return all(bool(torch.as_tensor(value).isfinite().all()) for value in (*values, model.posterior))


@pytest.mark.parametrize("at", [3, 60])
@pytest.mark.parametrize("bad", [nan, inf, -inf, 3e38])
@pytest.mark.parametrize("where", ["inputs", "gradient", "a copy", "the factor"])
def test_wild_numbers_never_reach_the_body(where, bad, at):
    model, optimizer = build(norm=where == "inputs")
    train(model, optimizer, 0, at)
    if where == "a copy":
        model.head.weight.data[2] = bad
    if where == "the factor":
        optimizer.param_groups[0]["lr"] = abs(bad)
    for step in range(3):
        x, y = batch(step)
        if where == "inputs":
            x[3] = bad
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        assert bool(loss.isfinite())
        loss.backward()
        if where == "gradient":
            model.net[0].weight.grad[2, 1] = bad
        optimizer.step()
        assert body_is_finite(model, optimizer)
    optimizer.param_groups[0]["lr"] = 1.0
    train(model, optimizer, 3, 8)
    model.eval()
    assert body_is_finite(model, optimizer)
    with torch.no_grad():
        assert bool(model(batch(0)[0]).isfinite().all())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"steps": 0}, "steps must be a whole number of at least 1, or None"),
        ({"steps": 2.5}, "got 2.5"),
        ({"steps": True}, "got True"),
        ({"betas": (0.0, 0.99)}, r"strictly between 0 and 1, got \(0.0, 0.99\)"),
        ({"betas": (0.7, 1.0)}, "betas"),
        ({"eps": 0.0}, "eps must be positive, got 0.0"),
        ({"weight_decay": -1.0}, "weight_decay must be at least 0"),
    ],
)
def test_refusals(options, words):
    with pytest.raises(ValueError, match=words):
        build(**options)


# Groups.


@pytest.mark.parametrize("lr", [np.float32(1.0), torch.tensor(1.0), 1])
def test_a_number_of_any_type_is_the_factor_of_a_group(lr):
    optimizer = alrao.Auto([{"params": nn.Linear(3, 2).parameters(), "lr": lr}])
    assert not optimizer.search.over
    assert optimizer.param_groups[0]["lr"] == 1.0


def test_a_group_without_rates_needs_a_search():
    layer = nn.Linear(3, 2)
    optimizer = alrao.Auto([{"params": layer.parameters(), "lr": 1e-3}])
    layer(torch.ones(3)).sum().backward()
    optimizer.step()
    with pytest.raises(ValueError, match="there is no search that it could follow"):
        optimizer.add_param_group({"params": nn.Linear(3, 2).parameters()})


def test_rates_that_follow_the_search_have_no_interval_to_move():
    with pytest.raises(ValueError, match="follow Auto's search"):
        alrao.Auto(nn.Linear(3, 2)).set_interval(body=(1e-3, 1e-2))


@pytest.mark.parametrize("at", [20, 60])
def test_a_model_may_be_cast_between_steps(at):
    model, optimizer = build()
    train(model, optimizer, 0, at)
    model.double()
    train(model, optimizer, at, at + 10)
    assert all(p.dtype == torch.float64 for p in model.parameters())
    model.float()
    train(model, optimizer, at + 10, at + 20)
    assert model.eval()(batch(0)[0]).isfinite().all()


def test_a_matrix_keeps_its_kind_of_step_when_another_layer_becomes_the_last():
    torch.manual_seed(0)
    layers = [nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)]

    def made():
        return alrao.Auto([{"params": layers[0].parameters()}, {"params": layers[1].parameters()}], steps=10)

    def step(optimizer):
        optimizer.zero_grad()
        x = torch.randn(16, 4)
        F.cross_entropy(layers[2](layers[1](layers[0](x).tanh()).tanh()), x[:, :3].argmax(1)).backward()
        optimizer.step()

    optimizer = made()
    for _ in range(20):
        step(optimizer)
    optimizer.add_param_group({"params": layers[2].parameters()})
    step(optimizer)
    again = made()
    again.add_param_group({"params": layers[2].parameters()})
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for layer in layers:
        for p in layer.parameters():
            assert optimizer.state[p].keys() == again.state[p].keys()


def trained_plain(between=lambda net, optimizer: None, *, transposed=False, steps=90):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    if transposed:
        for p in net.parameters():
            p.data = p.data.mT.contiguous().mT if p.ndim > 1 else p.data
    optimizer = alrao.Auto(net, steps=steps)
    for seed in range(steps):
        x = torch.randn(16, 4, generator=torch.Generator().manual_seed(seed)).double()
        optimizer.zero_grad()
        F.cross_entropy(net(x), x[:, :3].argmax(1)).backward()
        optimizer.step()
        between(net, optimizer)
    net.eval()
    return net, optimizer


def test_weights_that_are_laid_out_otherwise_take_the_same_steps():
    """They are no case for torch's fused Adam, which takes memory as it comes."""
    (one, _), (other, _) = trained_plain(), trained_plain(transposed=True)
    assert not other[0].weight.is_contiguous()
    for p, q in zip(one.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(p, q, rtol=1e-7, atol=1e-9)


def test_a_state_that_a_program_replaces_is_the_one_that_steps_change():
    def move(net, optimizer):  # as programs do that keep it elsewhere between steps
        for state in optimizer.state.values():
            for key, value in state.items():
                state[key] = value.clone() if isinstance(value, torch.Tensor) else value

    (one, _), (other, _) = trained_plain(), trained_plain(move)
    assert equal(one.parameters(), other.parameters())


def test_the_falling_rate_is_shown_and_resumed(monkeypatch):
    monkeypatch.setattr("alrao.auto.step.STEADY", 10)
    net, optimizer = trained_plain()
    k = optimizer.state[next(net.parameters())]["k"]
    assert k > 10
    present = optimizer.search.rate * (10 / k) ** 0.5
    assert optimizer.param_groups[0]["d"] == pytest.approx(present, rel=1e-12)
    assert learning_rates(optimizer) == pytest.approx([present], rel=1e-12)
    again = alrao.Auto(copy.deepcopy(net))
    again.load_state_dict(optimizer.state_dict())
    assert again.param_groups[0]["d"] == optimizer.param_groups[0]["d"]


def test_a_group_with_its_own_rate_keeps_it(monkeypatch):
    monkeypatch.setattr("alrao.auto.step.STEADY", 10)
    p = nn.Parameter(torch.zeros(1, dtype=torch.float64))
    optimizer = alrao.Auto(params=[{"params": [p], "lr": 0.01}])
    moved = []
    for _ in range(40):
        before = optimizer.state[p]["z"].clone() if "z" in optimizer.state[p] else p.detach().clone()
        p.grad = torch.ones_like(p)
        optimizer.step()
        moved.append(float(before - optimizer.state[p]["z"]))
    assert moved == pytest.approx([0.01] * 40, rel=1e-6)


def test_a_gradient_is_as_it_was_after_a_step():
    net, optimizer = trained_plain()
    net.train()
    before = {p: (p.grad.clone(), p.grad._version) for p in net.parameters()}
    optimizer.step()
    for p, (grad, version) in before.items():
        assert torch.equal(p.grad, grad)
        assert p.grad._version == version


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [0.0, 1e-44, 1e-30, 3e-23, 1e-19, 1e-15, 1e-8, 1.0, 1e14])
def test_no_gradient_is_too_small_or_too_large_for_a_matrix_step(scale, dtype):
    """The squares of 3e-23 are 0 in float32: a policy that has become certain has such gradients."""
    g = [scale * torch.randn(4, 6, dtype=dtype, generator=torch.Generator().manual_seed(0))]
    (step,) = orthogonal_steps(g, [g[0].clone()], [None], 1)
    largest = 0.2 * 6**0.5 * 1.3  # of the singular values
    assert step.isfinite().all()
    assert torch.linalg.matrix_norm(step, 2) <= largest
    if scale >= 1e-8:
        assert torch.linalg.svdvals(step).min() > 0.3 * largest


@pytest.mark.parametrize("units", [False, True], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(128, 192), (192, 128), (64, 192)])
def test_a_wide_matrix_step_is_near_the_orthogonal_one_in_either_type(monkeypatch, shape, units):
    monkeypatch.setattr(matrices, "_has_bfloat16_units", lambda device: units)
    g = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    (step,) = orthogonal_steps([g], [g.clone()], [None], 1)
    left, _, right = torch.linalg.svd(g.double(), full_matrices=False)
    nearest = left @ right
    assert step.dtype == g.dtype
    assert F.cosine_similarity(step.double().flatten(), nearest.flatten(), dim=0) > 0.97
    assert torch.linalg.svdvals(step).sub(0.2 * max(shape) ** 0.5).abs().max() < 0.4 * 0.2 * max(shape) ** 0.5


def test_which_parameters_are_matrices_and_decay():
    class Own(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Embedding(9, 4)
            self.mine = nn.Parameter(torch.ones(4, 4))
            self.token = nn.Parameter(torch.ones(1, 1, 4))
            self.layers = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(4, 2))

        def forward(self, ids):
            return self.layers(self.table(ids) @ self.mine + self.token)

    net = Own()
    names = {p: name for name, p in net.named_parameters()}
    hidden, others = matrices_of(net, set())
    assert {names[p] for p in hidden} == {"layers.0.weight"}
    assert {names[p] for p in others} == {"mine", "layers.2.weight"}
