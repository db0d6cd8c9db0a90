"""The optimizers: torch's own, with a rate for each feature; groups, memory, hooks, and what they refuse."""

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from support.stepping import batches, deep_mlp, make, same, snapshot, train
from torch import nn
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.profiler import ProfilerActivity, profile

import alrao

OPTIMIZERS = [alrao.SGD, alrao.Adam, alrao.AdamW]


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64, 8),
        nn.ReLU(),
        nn.Linear(8, 3),
    )


# A number for lr and one copy: torch's own optimizer.

SAME_AS_TORCH = [
    ("SGD", {"lr": 0.1}),
    ("SGD", {"lr": 0.05, "momentum": 0.9}),
    ("SGD", {"lr": 0.05, "momentum": 0.9, "dampening": 0.3}),
    ("SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
    ("SGD", {"lr": 0.1, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("Adam", {"lr": 0.01}),
    ("Adam", {"lr": 0.01, "weight_decay": 0.1}),
    ("Adam", {"lr": 0.01, "amsgrad": True, "betas": (0.8, 0.95), "eps": 1e-6}),
    ("AdamW", {"lr": 0.01}),
    ("AdamW", {"lr": 0.01, "weight_decay": 0.2, "amsgrad": True}),
]


@pytest.mark.parametrize("foreach", [None, False, True])
@pytest.mark.parametrize(("name", "options"), SAME_AS_TORCH, ids=str)
def test_with_a_number_and_one_copy_it_is_torchs_optimizer_to_the_bit(name, options, foreach):
    net = deep_mlp()
    plain = copy.deepcopy(net)
    model = alrao.Alrao(net, copies=1, keep_output=True)
    train(model, getattr(alrao, name)(model, foreach=foreach, **options), 30)
    train(plain, getattr(torch.optim, name)(plain.parameters(), **options), 30)
    for p, q in zip(model.collapse().parameters(), plain.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize(("name", "options"), [SAME_AS_TORCH[3], SAME_AS_TORCH[6]], ids=str)
def test_the_same_holds_for_convolutions_with_batchnorm(name, options):
    net = cnn()
    plain = copy.deepcopy(net)
    model = alrao.Alrao(net, copies=1, keep_output=True)
    train(model, getattr(alrao, name)(model, **options), 30, (1, 6, 6))
    train(plain, getattr(torch.optim, name)(plain.parameters(), **options), 30, (1, 6, 6))
    assert same(dict(model.collapse().state_dict()), dict(plain.state_dict()))


@pytest.mark.parametrize("wrapped", [True, False], ids=["wrapped", "plain"])
@pytest.mark.parametrize(("name", "options"), SAME_AS_TORCH, ids=str)
def test_a_warm_up_from_zero_is_torchs_to_the_bit(name, options, wrapped):
    net = deep_mlp()
    plain = copy.deepcopy(net)
    model = alrao.Alrao(net, copies=1, keep_output=True) if wrapped else net
    for trained, chosen in (
        (model, getattr(alrao, name)(model, **options)),
        (plain, getattr(torch.optim, name)(plain.parameters(), **options)),
    ):
        scheduler = torch.optim.lr_scheduler.LambdaLR(chosen, lambda step: min(1.0, step / 3))
        for x, y in batches(6, 6):
            chosen.zero_grad()
            F.cross_entropy(trained(x), y).backward()
            chosen.step()
            scheduler.step()
    for p, q in zip(model.parameters(), plain.parameters(), strict=True):
        assert torch.equal(p.view_as(q), q)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_maximize_the_log_likelihood_is_to_minimize_its_negative(optimizer):
    ends = []
    for maximize in (False, True):
        torch.manual_seed(3)
        model, chosen = make(optimizer, lr=(1e-4, 0.1), weight_decay=0.01, maximize=maximize)
        train(model, chosen, sign=-1 if maximize else 1)
        ends.append(dict(model.state_dict()))
    assert same(*ends)


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (alrao.SGD, {}),
        (alrao.SGD, {"momentum": 0.9, "weight_decay": 0.1}),
        (alrao.Adam, {}),
        (alrao.AdamW, {}),
    ],
)
def test_all_at_once_is_the_same_as_one_by_one(optimizer, options):
    ends = []
    for foreach in (True, False):
        torch.manual_seed(3)
        model, chosen = make(optimizer, lr=(1e-4, 0.1), foreach=foreach, **options)
        train(model, chosen)
        ends.append(dict(model.state_dict()))
    assert same(*ends)


# Complex parameters.


class Rotation(nn.Module):
    """Weights in the frequency domain, as of a Fourier layer, and real ones."""

    def __init__(self, dtype=torch.complex64):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 6, dtype=dtype))
        self.bias = nn.Parameter(torch.randn(4, dtype=dtype.to_real()))

    def forward(self, x):
        return (x.to(self.weight.dtype) @ self.weight.T).abs() + self.bias


def fit(model, optimizer, steps=10):
    dtype = model.bias.dtype
    for x, y in batches(steps, 6):
        optimizer.zero_grad()
        F.mse_loss(model(x.to(dtype)), F.one_hot(y, 4).to(dtype)).backward()
        optimizer.step()


@pytest.mark.filterwarnings("ignore:no feature rule for layers of type Rotation")
@pytest.mark.parametrize("foreach", [None, True])
@pytest.mark.parametrize(("name", "options"), SAME_AS_TORCH, ids=str)
def test_complex_weights_train_as_torchs_to_the_bit(name, options, foreach):
    net = Rotation()
    plain = copy.deepcopy(net)
    fit(net, getattr(alrao, name)(net, foreach=foreach, **options))
    fit(plain, getattr(torch.optim, name)(plain.parameters(), **options))
    for p, q in zip(net.parameters(), plain.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.filterwarnings("ignore:no feature rule for layers of type Rotation")
@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize(("name", "options"), SAME_AS_TORCH, ids=str)
def test_every_complex_feature_trains_at_its_own_rate(name, options, capturable):
    net = Rotation(torch.complex128)
    optimizer = getattr(alrao, name)(net, **{**options, "lr": (1e-3, 1e-1), "capturable": capturable})
    groups = []
    apart = [[nn.Parameter(row.detach().clone()) for row in p] for p in (net.weight, net.bias)]
    for p, rows in zip((net.weight, net.bias), apart, strict=True):
        rates = optimizer.rates(p).flatten().tolist()
        groups += [{"params": [row], "lr": lr} for row, lr in zip(rows, rates, strict=True)]
    theirs = getattr(torch.optim, name)(groups, **options)
    for _ in range(10):
        for p, rows in zip((net.weight, net.bias), apart, strict=True):
            p.grad = torch.randn_like(p)
            for row, grad in zip(rows, p.grad, strict=True):
                row.grad = grad.clone()
        optimizer.step()
        theirs.step()
    for p, rows in zip((net.weight, net.bias), apart, strict=True):
        torch.testing.assert_close(p, torch.stack(list(rows)))


# Weights of 16 bits.

NARROW = [
    (dtype, name, options)
    for dtype in (torch.bfloat16, torch.float16)
    for name, options in SAME_AS_TORCH
    if name == "SGD" or dtype is torch.bfloat16  # 1e-8 is 0 in float16: torch's Adam divides by it
]


def fit_narrow(model, optimizer, first, last):
    for x, y in list(batches(last, 6))[first:]:
        optimizer.zero_grad()
        F.cross_entropy(model(x.to(model[0].weight.dtype)).float(), y).backward()
        optimizer.step()


@pytest.mark.parametrize("foreach", [None, True])
@pytest.mark.parametrize(("dtype", "name", "options"), NARROW, ids=str)
def test_narrow_weights_train_as_torchs_to_the_bit(dtype, name, options, foreach):
    net = deep_mlp().to(dtype)
    plain = copy.deepcopy(net)
    fit_narrow(net, getattr(alrao, name)(net, foreach=foreach, **options), 0, 10)
    fit_narrow(plain, getattr(torch.optim, name)(plain.parameters(), **options), 0, 10)
    for p, q in zip(net.parameters(), plain.parameters(), strict=True):
        assert torch.equal(p, q)


@pytest.mark.parametrize("capturable", [False, True])
@pytest.mark.parametrize("rate", [0.05, (1e-3, 1e-1)], ids=["one rate", "an interval"])
@pytest.mark.parametrize(("dtype", "name", "options"), NARROW, ids=str)
def test_a_resumed_run_of_narrow_weights_is_the_same_to_the_bit(dtype, name, options, rate, capturable):
    def build():
        torch.manual_seed(0)
        net = deep_mlp().to(dtype)
        return net, getattr(alrao, name)(net, **{**options, "lr": rate, "capturable": capturable})

    net, optimizer = build()
    fit_narrow(net, optimizer, 0, 5)
    saved = snapshot(net, optimizer)
    fit_narrow(net, optimizer, 5, 10)
    resumed, of_resumed = build()
    resumed.load_state_dict(saved[0])
    of_resumed.load_state_dict(saved[1])
    fit_narrow(resumed, of_resumed, 5, 10)
    assert same(snapshot(resumed, of_resumed), snapshot(net, optimizer))


# Parameter groups.


@pytest.mark.filterwarnings("ignore:the copies of the head have gradients")  # set by hand
def test_groups_have_their_own_interval_and_decay():
    model = alrao.Alrao(deep_mlp())
    body, head = list(model.net[:4].parameters()), list(model.head.parameters())
    weights, biases = [p for p in body if p.ndim > 1], [p for p in body if p.ndim == 1]
    groups = [
        {"params": weights, "lr": (1e-6, 1e-4), "weight_decay": 0.5},
        {"params": biases, "lr": 0.25},
        {"params": head},
    ]
    optimizer = alrao.SGD(model, lr=(1e-3, 1.0), params=groups)
    before = [p.detach().clone() for p in model.parameters()]
    for p in model.parameters():
        p.grad = torch.zeros_like(p)  # so that the decay alone moves
    optimizer.step()
    for p, old in zip(model.parameters(), before, strict=True):
        rates = optimizer.rates(p)
        decay = 0.5 if any(p is w for w in weights) else 0.0
        torch.testing.assert_close(p.detach(), old - rates * decay * old)
        lo, hi = (1e-6, 1e-4) if decay else (0.25, 0.25) if any(p is b for b in biases) else (1e-3, 1.0)
        assert lo * (1 - 1e-6) <= rates.min().item() <= rates.max().item() <= hi * (1 + 1e-6)


def test_named_parameters_are_taken_as_torch_takes_them():
    model = alrao.Alrao(deep_mlp())
    optimizer = alrao.SGD(model, params=model.named_parameters())
    before = copy.deepcopy(dict(model.named_parameters()))
    train(model, optimizer, 2)
    assert not any(torch.equal(p, before[name]) for name, p in model.named_parameters())


def test_add_param_group_unfreezes_a_layer():
    model = alrao.Alrao(deep_mlp())
    late = list(model.net[0].parameters())
    early = [p for p in model.parameters() if not any(p is q for q in late)]
    optimizer = alrao.SGD(model, params=early)
    before = [p.detach().clone() for p in late]
    train(model, optimizer)
    assert all(map(torch.equal, late, before))
    optimizer.add_param_group({"params": late, "lr": (1e-3, 1e-2)})
    train(model, optimizer)
    assert not any(map(torch.equal, late, before))
    assert all(1e-3 <= rate <= 1e-2 for rate in optimizer.rates(late[0]).flatten().tolist())


def test_a_group_added_after_a_resume_has_the_rates_it_would_have_had():
    rates, saved = [], None
    for seed in (1, 2):
        torch.manual_seed(seed)
        model = alrao.Alrao(deep_mlp())
        optimizer = alrao.SGD(model, params=model.head.parameters())
        saved = saved or optimizer.state_dict()
        optimizer.load_state_dict(saved)
        optimizer.add_param_group({"params": model.net[0].parameters()})
        rates.append(optimizer.rates(model.net[0].bias))
    assert torch.equal(*rates)


def test_strangers_are_refused_and_nothing_changes():
    model, optimizer = make()
    before = snapshot(model, optimizer)
    stranger = nn.Parameter(torch.zeros(7, 2))
    with pytest.raises(ValueError, match=r"\(7, 2\).*not the model's"):
        optimizer.add_param_group({"params": [stranger]})
    assert same(snapshot(model, optimizer), before)
    train(model, optimizer, 1)
    with pytest.raises(ValueError, match="not the model's"):
        alrao.SGD(model, params=[*model.parameters(), stranger])


def test_groups_without_the_copies_are_refused():
    model = alrao.Alrao(deep_mlp())
    with pytest.raises(ValueError, match=r"model\.head\.parameters\(\)"):
        alrao.SGD(model, params=model.net[0].parameters())


# Gradients that are not there, or sparse.


@pytest.mark.parametrize(("optimizer", "options"), [(alrao.SGD, {"momentum": 0.9}), (alrao.AdamW, {})])
def test_parameters_without_gradient_are_skipped(optimizer, options):
    model, chosen = make(optimizer, weight_decay=0.1, lr=(1e-4, 0.1), **options)
    frozen = model.net[0]
    before = copy.deepcopy(dict(frozen.named_parameters()))
    frozen.requires_grad_(False)
    train(model, chosen)
    assert same(dict(frozen.named_parameters()), before)
    frozen.requires_grad_(True)
    train(model, chosen)
    moved = copy.deepcopy(dict(frozen.named_parameters()))
    assert not any(torch.equal(moved[name], before[name]) for name in before)
    frozen.requires_grad_(False)
    train(model, chosen)
    assert same(dict(frozen.named_parameters()), moved)


def words(sparse):
    torch.manual_seed(5)
    model = alrao.Alrao(nn.Sequential(nn.Embedding(20, 4, sparse=sparse), nn.Flatten(), nn.Linear(12, 3)))
    return model, [(torch.randint(20, (8, 3)), torch.randint(3, (8,))) for _ in range(5)]


@pytest.mark.parametrize(
    "lr",
    [(1e-3, 1.0), alrao.Constant(0.1), alrao.paper.PerWeight((1e-3, 1.0)), alrao.paper.Redrawn((1e-3, 1.0))],
    ids=["interval", "number", "per weight", "redrawn"],
)
@pytest.mark.filterwarnings("ignore:lr=0.1 gives all")
@pytest.mark.parametrize("maximize", [False, True])
def test_sparse_gradients_with_sgd_equal_dense_ones(lr, maximize):
    ends = []
    for sparse in (True, False):
        model, data = words(sparse)
        optimizer = alrao.SGD(model, lr=lr, maximize=maximize, generator=torch.Generator().manual_seed(1))
        for x, y in data:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            (-loss if maximize else loss).backward()
            assert model.net[0].weight.grad.is_sparse is sparse
            optimizer.step()
        ends.append(dict(model.state_dict()))
    torch.testing.assert_close(*ends, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [(alrao.Adam, {}), (alrao.AdamW, {}), (alrao.SGD, {"momentum": 0.9}), (alrao.SGD, {"weight_decay": 0.1})],
)
def test_sparse_gradients_are_refused_where_they_would_become_dense(optimizer, options):
    model, [(x, y), *_] = words(sparse=True)
    groups = [{"params": model.head.parameters()}, {"params": model.net[0].parameters()}]
    chosen = optimizer(model, params=groups, **options)  # the group that can be updated comes first
    before = snapshot(model, chosen)
    F.cross_entropy(model(x), y).backward()
    with pytest.raises(RuntimeError, match=r"sparse.*sparse=False"):
        chosen.step()
    assert same(snapshot(model, chosen), before)


# Weight decay of fast features; memory.


@pytest.mark.filterwarnings("ignore:the copies of the head have gradients")  # set by hand
def test_decoupled_decay_never_overshoots_zero():
    model, optimizer = make(alrao.AdamW, lr=(0.01, 100.0), weight_decay=0.5)
    before = [p.detach().clone() for p in model.parameters()]
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    stopped = 0
    for p, old in zip(model.parameters(), before, strict=True):
        factor = (1 - optimizer.rates(p) * 0.5).clamp(min=0)
        torch.testing.assert_close(p.detach(), old * factor, rtol=1e-5, atol=1e-8)
        stopped += int((factor == 0).sum())
    assert stopped > 0


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [
        (alrao.SGD, {}),
        (alrao.SGD, {"momentum": 0.9, "weight_decay": 0.1}),
        (alrao.SGD, {"momentum": 0.9, "weight_decay": 0.1, "nesterov": True}),
        (alrao.Adam, {}),
        (alrao.Adam, {"weight_decay": 0.1, "amsgrad": True}),
        (alrao.AdamW, {}),
    ],
)
@pytest.mark.filterwarnings("ignore:Warning. Profiler clears events:UserWarning")
def test_a_step_sets_aside_no_more_than_the_largest_parameter(optimizer, options):
    layers = [layer for _ in range(5) for layer in (nn.Linear(64, 64), nn.ReLU())]
    model = alrao.Alrao(nn.Sequential(*layers, nn.Linear(64, 3)), copies=4)
    chosen = optimizer(model, **options)
    train(model, chosen, 2, (64,))  # the first step makes the state
    [(x, y)] = batches(1, 64)
    chosen.zero_grad()
    F.cross_entropy(model(x), y).backward()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        chosen.step()
    events = recorded.profiler.kineto_results.events()
    sizes = [event.nbytes() for event in events if event.name() == "[memory]"]  # negative when freed
    largest = max(p.nbytes for p in model.parameters())
    assert sizes, "the profiler saw the step"
    assert max(sizes) <= largest
    alive = torch.tensor(sizes).cumsum(0)
    # Decay, Nesterov or Adam's denominator need a second one, but never one for all layers at once.
    assert int(alive.max()) <= 2 * largest + 4096


def test_rates_take_less_than_a_hundredth_of_the_parameters_memory():
    widths = [64] * 2 + [128] * 2 + [256] * 4 + [512] * 8
    with torch.device("meta"):
        convolutions = [
            layer
            for before, after in zip([3, *widths[:-1]], widths, strict=True)
            for layer in (nn.Conv2d(before, after, 3, padding=1), nn.BatchNorm2d(after), nn.ReLU())
        ]
        net = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(512, 10))
    model = alrao.Alrao(net)
    optimizer = alrao.SGD(model)
    state = [value for entry in optimizer.state_dict()["state"].values() for value in entry.values()]
    assert len(state) == len(model.body_parameters())
    assert sum(rate.nbytes for rate in state) <= 0.01 * sum(p.nbytes for p in model.parameters())


# Hooks of the step, and marks for the profiler.


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


# What is refused, with nothing changed.


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("flag", ["differentiable", "fused"])
def test_flags_that_cannot_work_are_refused(optimizer, flag):
    with pytest.raises(ValueError, match=f"{flag}=True is not supported"):
        make(optimizer, **{flag: True})


@pytest.mark.parametrize(
    ("optimizer", "options", "message"),
    [
        (alrao.SGD, {"momentum": -0.1}, "momentum must be at least 0, got -0.1"),
        (alrao.SGD, {"weight_decay": -1}, "weight_decay must be at least 0, got -1"),
        (alrao.SGD, {"nesterov": True}, "nesterov.*momentum=0"),
        (alrao.Adam, {"betas": (0.9, 1.0)}, r"betas.*\(0.9, 1.0\)"),
        (alrao.AdamW, {"eps": float("nan")}, "eps must be at least 0, got nan"),
        (alrao.SGD, {"evidence": "max"}, "evidence must be 'mean' or 'sum', got 'max'"),
    ],
)
def test_bad_options_are_refused(optimizer, options, message):
    with pytest.raises(ValueError, match=message):
        make(optimizer, **options)


NOT_LIKELIHOODS = {
    "squared error of log-probabilities": lambda out, y: F.mse_loss(out, 4 * F.one_hot(y, 3) - 5.0),
    "squared error of probabilities": lambda out, y: F.mse_loss(out.exp(), F.one_hot(y, 3).float()),
    "entropy added": lambda out, y: F.cross_entropy(out, y) - (out.exp() * out).sum(1).mean(),
    "confidence penalty": lambda out, y: F.cross_entropy(out, y) + (out.exp() * out).sum(1).mean(),
    "unlikelihood": lambda out, y: F.cross_entropy(out, y) - (1.001 - out.exp()[:, 0]).log().mean(),
    "likelihood with the wrong sign": lambda out, y: -F.cross_entropy(out, y),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("loss", NOT_LIKELIHOODS)
def test_a_loss_that_is_no_negative_log_likelihood_is_refused_with_nothing_changed(optimizer, loss):
    model, chosen = make(optimizer, lr=(1e-4, 0.1), **({"momentum": 0.9} if optimizer is alrao.SGD else {}))
    model.head.weight.data.mul_(8)  # opinions, as in training: at the start every probability is about 1/3
    train(model, chosen, 3)
    before = snapshot(model, chosen)
    [(x, y)] = batches(1, 6)
    chosen.zero_grad()
    NOT_LIKELIHOODS[loss](model(x), y).backward()
    with pytest.raises(RuntimeError, match=r"not a negative log-likelihood.*cross_entropy.*Nothing has been"):
        chosen.step()
    assert same(snapshot(model, chosen), before)
    train(model, chosen, 1)  # and it goes on, with the right loss
    assert not same(snapshot(model, chosen), before)


@pytest.mark.parametrize(
    ("likelihood", "loss", "criterion"),
    [("gaussian", F.mse_loss, "MixtureMSELoss"), ("bernoulli", F.l1_loss, "MixtureBCELoss")],
)
def test_a_loss_past_the_criterion_is_refused_with_nothing_changed(likelihood, loss, criterion):
    model = alrao.Alrao(deep_mlp(), likelihood=likelihood)
    optimizer = alrao.SGD(model)
    before = snapshot(model, optimizer)
    loss(model(torch.randn(5, 6)), torch.rand(5, 3)).backward()
    with pytest.raises(RuntimeError, match=criterion):
        optimizer.step()
    assert same(snapshot(model, optimizer), before)
