"""What trainers give an optimizer: a model, parameters, named pairs or groups, by keyword or not."""

import copy
import inspect
import logging
import pickle
import warnings
from collections import defaultdict

import pytest
import torch
import torch.nn.functional as F
from support.stepping import batches, deep_mlp, make, same, snapshot, train
from torch import nn

import alrao

OPTIMIZERS = {
    "SGD": alrao.SGD,
    "Adam": alrao.Adam,
    "AdamW": alrao.AdamW,
    "Auto": alrao.Auto,
    "PerFeature": lambda *args, **options: alrao.PerFeature(torch.optim.NAdam, *args, **options),
}

FORMS = {
    "parameters": lambda net: net.parameters(),
    "a list": lambda net: list(net.parameters()),
    "named": lambda net: net.named_parameters(),
    "groups": lambda net: [{"params": list(net.parameters())[i:j]} for i, j in ((0, 3), (3, None))],
    "an iterator of groups": lambda net: iter([{"params": net.parameters(), "weight_decay": 0.1}]),
    "named groups": lambda net: [{"params": net.named_parameters(), "weight_decay": 0.1}],
    "single": lambda net: [{"params": p} for p in net.parameters()],
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("keyword", [False, True])
def test_parameters_of_a_plain_network_are_trained(optimizer, form, keyword):
    net = deep_mlp()
    before = [p.detach().clone() for p in net.parameters()]
    given = FORMS[form](net)
    chosen = OPTIMIZERS[optimizer](params=given) if keyword else OPTIMIZERS[optimizer](given)
    assert [p for group in chosen.param_groups for p in group["params"]] == list(net.parameters())
    if form in ("an iterator of groups", "named groups"):
        assert chosen.param_groups[0]["weight_decay"] == 0.1
    train(net, chosen, 3)
    assert not any(map(torch.equal, before, net.parameters()))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("form", FORMS)
def test_parameters_of_an_alrao_model_find_it_to_the_bit(optimizer, form):
    found = []
    for by_model in (True, False):
        torch.manual_seed(0)
        model = alrao.Alrao(deep_mlp(), 4)
        options = {"params": FORMS[form](model)} if "group" in form or form == "single" else {}
        given = model if by_model else FORMS[form](model)
        torch.manual_seed(1)
        chosen = OPTIMIZERS[optimizer](given, **(options if by_model else {}))
        assert chosen.model is model
        train(model, chosen, 60)
        model.eval()
        weights, state = snapshot(model, chosen)
        for group in state["param_groups"]:
            group.pop("param_names", None)
        found.append((weights, state))
    assert same(*found)
    assert model.posterior.max() > 0.11


def test_parameters_of_a_copied_or_loaded_model_find_that_one(tmp_path):
    model = alrao.Alrao(deep_mlp(), 4)
    twin = copy.deepcopy(model)
    torch.save(model, tmp_path / "model.pt")
    loaded = torch.load(tmp_path / "model.pt", weights_only=False)
    for each in (model, twin, loaded):
        assert alrao.Auto(each.parameters()).model is each


def test_parameters_of_two_alrao_models_are_refused():
    one, other = alrao.Alrao(deep_mlp()), alrao.Alrao(deep_mlp())
    with pytest.raises(TypeError, match="one Alrao model"):
        alrao.Auto([*one.parameters(), *other.parameters()])


def test_parameters_beside_those_of_an_alrao_model_are_refused():
    model, more = alrao.Alrao(deep_mlp()), nn.Linear(2, 2)
    with pytest.raises(ValueError, match="are not the model's"):
        alrao.Auto([*model.parameters(), *more.parameters()])


def test_the_body_of_an_alrao_model_without_its_head_is_refused():
    model = alrao.Alrao(deep_mlp())
    with pytest.raises(ValueError, match="no parameter of the head"):
        alrao.Auto(model.net[0].parameters())


# Features.


def test_axis_0_has_the_features_of_parameters_without_a_module(caplog):
    shapes = {(5, 3): (5, 1), (4, 3, 2, 2): (4, 1, 1, 1), (1, 6): (1, 1), (7,): (7,), (1, 9, 8): (1, 1, 1)}
    params = [nn.Parameter(torch.randn(shape)) for shape in shapes] + [nn.Parameter(torch.tensor(1.0))]
    with caplog.at_level(logging.INFO, "alrao"):
        optimizer = alrao.SGD(params, lr=(1e-3, 1.0))
    assert [tuple(optimizer.rates(p).shape) for p in params] == [*shapes.values(), ()]
    everything = torch.cat([optimizer.rates(p).flatten() for p in params])
    assert len(everything.unique()) == len(everything)
    (record,) = caplog.records
    assert record.levelno == logging.INFO
    assert "without their layers" in record.getMessage()
    assert "optimizer.eval()" not in record.getMessage(), "SGD has one set of weights, and no such method"
    caplog.clear()
    with caplog.at_level(logging.INFO, "alrao"):
        alrao.Auto(params)
    (record,) = caplog.records
    assert "optimizer.eval()" in record.getMessage()


def test_parameters_of_linear_layers_are_trained_as_the_network():
    found = []
    for by_network in (True, False):
        torch.manual_seed(0)
        net = deep_mlp()
        optimizer = alrao.Auto(net if by_network else net.parameters())
        train(net, optimizer, 60)
        optimizer.eval()
        found.append(copy.deepcopy(net.state_dict()))
    assert same(*found)


def test_a_model_needs_no_assumptions(caplog):
    with caplog.at_level(logging.INFO, "alrao"):
        alrao.Auto(deep_mlp())
        model = alrao.Alrao(deep_mlp())
        alrao.Auto(model.parameters())
    assert not caplog.records


def test_leaf_tensors_are_trained_as_torch_does():
    x = torch.zeros(3, requires_grad=True)
    optimizer = alrao.Auto([x])
    for _ in range(200):
        optimizer.zero_grad()
        ((x - torch.tensor([1.0, 2.0, 3.0])) ** 2).sum().backward()
        optimizer.step()
    optimizer.eval()
    assert (x - torch.tensor([1.0, 2.0, 3.0])).abs().max() < 0.7


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    "given",
    [
        [],
        None,
        3,
        torch.zeros(3, requires_grad=True),
        "net",
        [deep_mlp(), nn.Parameter(torch.zeros(3))],
        [{"params": deep_mlp()}],
        [{}],
    ],
)
def test_what_is_no_model_and_no_parameters_is_refused(optimizer, given):
    with pytest.raises(TypeError, match=r"alrao\.Auto\(net\) or alrao\.Auto\(net\.parameters\(\)\)"):
        OPTIMIZERS[optimizer](given)


def test_a_set_of_parameters_is_refused_as_in_torch():
    with pytest.raises(TypeError, match="ordered"):
        alrao.SGD([{"params": set(deep_mlp().parameters())}])


def test_uninitialized_parameters_are_refused():
    net = nn.Sequential(nn.LazyLinear(3))
    with pytest.raises(ValueError, match="run one forward pass"):
        alrao.Auto(net.parameters())


# Signatures and numbers, as trainers write them.


@pytest.mark.parametrize("kind", [alrao.SGD, alrao.Adam, alrao.AdamW, alrao.Auto])
def test_a_tool_that_reads_the_signature_sees_torchs(kind):
    _, first, second, *_ = inspect.signature(kind.__init__).parameters
    assert (first, second) == ("params", "lr")
    assert "model" not in inspect.signature(kind.__init__).parameters
    assert next(iter(inspect.signature(kind).parameters)) == "params"


def test_auto_takes_what_adam_takes_in_its_order():
    net = deep_mlp()
    optimizer = alrao.Auto(net.parameters(), 0.5, [0.8, 0.95], 1e-7, 1)
    (group,) = optimizer.param_groups
    assert (group["lr"], group["betas"], group["eps"], group["weight_decay"]) == (0.5, [0.8, 0.95], 1e-7, 1)
    for lr in (1, torch.tensor(1.0)):
        assert type(alrao.Auto(deep_mlp(), lr=lr).param_groups[0]["lr"]) is float


@pytest.mark.parametrize("capturable", [False, True])
def test_the_factor_of_auto_is_the_learning_rate_of_its_groups(capturable):
    """Half the factor from the start is the factor, halved, before the first step."""
    found = []
    for lr in (0.5, 1.0):
        torch.manual_seed(0)
        net = deep_mlp()
        optimizer = alrao.Auto(net, lr=lr, steps=20, capturable=capturable)
        for group in optimizer.param_groups:
            if capturable:
                group["lr"].fill_(0.5)
            else:
                group["lr"] = 0.5
        train(net, optimizer, 30)
        found.append([p.detach().clone() for p in net.parameters()])
    assert same(*found)


def test_a_scheduler_starts_from_the_factor():
    optimizer = alrao.Auto(deep_mlp(), lr=0.5)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == 0.25


def test_a_learning_rate_in_the_place_of_the_factor_causes_a_warning_at_once():
    net = deep_mlp()
    with pytest.warns(UserWarning, match=r"lr=0\.001.*factor on all rates.*lr=1\.0"):
        optimizer = alrao.Auto(net.parameters(), lr=1e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # and not again
        train(net, optimizer, 3)
        alrao.Auto(net.parameters(), lr=0.1)


@pytest.mark.parametrize("lr", [(1e-4, 1e-2), "1.0", -1.0, float("nan"), True])
def test_a_factor_is_a_number(lr):
    with pytest.raises((TypeError, ValueError), match="lr of Auto is a factor"):
        alrao.Auto(deep_mlp(), lr=lr)


def test_a_group_has_its_own_rates_or_its_own_factor():
    """Trainers for rate-free optimizers write a factor near 1 into groups; a learning rate is far below."""
    net = deep_mlp()
    groups = [
        {"params": net[0].parameters(), "lr": 1e-3},
        {"params": net[2].parameters(), "lr": 0.5},
        {"params": net[4].parameters()},
    ]
    optimizer = alrao.Auto(groups, lr=1.0)
    assert [group["lr"] for group in optimizer.param_groups] == [1.0, 0.5, 1.0]
    train(net, optimizer, 60)
    assert bool((optimizer.rates(net[0].weight) == 1e-3).all())
    assert optimizer.interval(1) == optimizer.interval(2)
    assert optimizer.interval(1)[0] != 1e-3


# Modes and checkpoints without a network.


def trained_without_a_network(steps=70):
    torch.manual_seed(0)
    net = deep_mlp()
    optimizer = alrao.Auto(net.parameters(), steps=100)
    train(net, optimizer, steps)
    return net, optimizer


def test_the_optimizers_mode_selects_the_weights():
    net, optimizer = trained_without_a_network()
    training = copy.deepcopy(net.state_dict())
    net.eval()
    assert same(net.state_dict(), training), "the mode of a network is not seen"
    optimizer.eval()
    averaged = copy.deepcopy(net.state_dict())
    assert not same(averaged, training)
    optimizer.train()
    assert same(net.state_dict(), training)


def test_a_step_in_evaluation_mode_is_noticed():
    net, optimizer = trained_without_a_network()
    optimizer.eval()
    [(x, y)] = batches(1, 6)
    F.cross_entropy(net(x), y).backward()
    with pytest.warns(UserWarning, match=r"optimizer\.train\(\) before the forward pass"):
        optimizer.step()


@pytest.mark.parametrize("evaluates", [False, True])
@pytest.mark.parametrize("optimizer_first", [False, True])
@pytest.mark.parametrize("steps", [20, 70])
def test_a_run_without_a_network_is_resumed_to_the_bit(evaluates, optimizer_first, steps):
    net, optimizer = trained_without_a_network(steps)
    if evaluates:
        optimizer.eval()
    states = [copy.deepcopy(each.state_dict()) for each in (net, optimizer)]
    torch.manual_seed(5)
    again = deep_mlp()
    resumed = alrao.Auto(again.parameters())
    pairs = list(zip((again, resumed), states, strict=True))
    for each, state in reversed(pairs) if optimizer_first else pairs:
        each.load_state_dict(state)
    for each, chosen in ((net, optimizer), (again, resumed)):
        chosen.train()
        train(each, chosen, 5)
        chosen.eval()
    assert same(net.state_dict(), again.state_dict())


@pytest.mark.parametrize("evaluates", [False, True])
def test_a_copy_of_network_and_optimizer_continues_alike(evaluates):
    net, optimizer = trained_without_a_network()
    if evaluates:
        optimizer.eval()
    both = [(net, optimizer), copy.deepcopy((net, optimizer)), pickle.loads(pickle.dumps((net, optimizer)))]
    for each, chosen in both:
        chosen.train()
        train(each, chosen, 5)
        chosen.eval()
    assert same(*(each.state_dict() for each, _ in both[:2]))
    assert same(*(each.state_dict() for each, _ in both[1:]))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("steps", [0, 3, 70])
def test_more_parameters_are_added_as_in_torch(optimizer, steps):
    """Trainers unfreeze layers so."""
    net = deep_mlp()
    chosen = OPTIMIZERS[optimizer](net[0].parameters())
    train(net, chosen, steps)
    before, rates = net[4].weight.detach().clone(), chosen.rates(net[0].weight).clone()
    chosen.add_param_group({"params": net[4].parameters()})
    assert torch.equal(chosen.rates(net[0].weight), rates)
    train(net, chosen, 3)
    assert not torch.equal(net[4].weight, before)
    twin = OPTIMIZERS[optimizer]([{"params": net[i].parameters()} for i in (0, 4)])
    twin.load_state_dict(chosen.state_dict())
    assert same(twin.rates(net[4].weight), chosen.rates(net[4].weight))


def test_parameters_of_another_network_are_refused_beside_a_network():
    optimizer = alrao.Auto(deep_mlp())
    with pytest.raises(ValueError, match="are not the model's"):
        optimizer.add_param_group({"params": nn.Linear(2, 2).parameters()})


@pytest.mark.parametrize("steps", [3, 70])
@pytest.mark.parametrize("converted", [False, True])
def test_a_trainer_that_clears_the_state_starts_the_averages_again(steps, converted):
    """fastai does so when it freezes layers."""
    torch.manual_seed(0)
    model = alrao.Alrao(deep_mlp(), 4) if converted else deep_mlp()
    optimizer = alrao.Auto(model, steps=100)
    train(model, optimizer, steps)
    rates = [optimizer.rates(p) for p in model.parameters()]
    optimizer.state = defaultdict(dict)
    train(model, optimizer, 1)
    assert same(rates, [optimizer.rates(p) for p in model.parameters()]), "places are drawn once"
    train(model, optimizer, 70)
    model.eval()
    assert optimizer.search.over
    assert optimizer.averages.differ


@pytest.mark.parametrize("clear", ["in place", "another"])
@pytest.mark.parametrize("steps", [3, 70])
@pytest.mark.parametrize("converted", [False, True])
def test_a_state_cleared_in_evaluation_mode_leaves_the_weights_that_were_evaluated(steps, converted, clear):
    torch.manual_seed(0)
    model = alrao.Alrao(deep_mlp(), 4) if converted else deep_mlp()
    optimizer = alrao.Auto(model, steps=100)
    train(model, optimizer, steps)
    model.eval()
    shown = [p.detach().clone() for p in model.parameters()]
    if clear == "another":
        optimizer.state = defaultdict(dict)
    else:
        optimizer.state.clear()
    model.train()
    assert same(shown, list(model.parameters()))
    train(model, optimizer, 1)
    assert not same(shown, list(model.parameters()))


def test_make_still_builds_with_groups_beside_a_model():
    model, optimizer = make(alrao.Auto)
    groups = [{"params": model.net[:3].parameters()}, {"params": model.head.parameters()}]
    assert len(alrao.Auto(model, params=groups).param_groups) == 2
    assert len(alrao.Auto(model=model).param_groups) == len(optimizer.param_groups) == 1


# Parameters that others take the place of.

BUILT = {
    "SGD": alrao.SGD,
    "Auto": alrao.Auto,
    "capturable": lambda model: alrao.AdamW(model, capturable=True),
    "PerFeature": lambda model: alrao.PerFeature(torch.optim.NAdam, model),
}


def assigned(model):
    model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)


def assigned_in_part(model):
    last = {name: p.detach().clone() for name, p in model.state_dict().items() if name == "0.bias"}
    model.load_state_dict(last, strict=False, assign=True)


@pytest.mark.parametrize("steps", [0, 2])
@pytest.mark.parametrize("change", [assigned, assigned_in_part])
@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("kind", BUILT)
def test_parameters_that_are_not_the_models_any_more_are_refused(kind, wrapped, change, steps):
    net = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3))
    model = alrao.Alrao(net, 3) if wrapped else net
    optimizer = BUILT[kind](model)

    def step():
        model.zero_grad()
        nn.functional.cross_entropy(model(torch.randn(6, 4)), torch.arange(6) % 3).backward()
        optimizer.step()

    for _ in range(steps):
        step()
    change(model)
    with pytest.raises(RuntimeError, match=r"the first '0\.\w+', are not those.*Build the optimizer after"):
        step()


def test_a_layer_that_is_left_out_is_no_fault():
    net = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3))
    optimizer = alrao.Auto(net)
    left_out = net[1].weight
    before = [p.detach().clone() for p in (left_out, net[0].weight)]
    del net[1]
    for _ in range(3):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(torch.randn(6, 4)), torch.arange(6) % 3).backward()
        optimizer.step()
    assert torch.equal(left_out, before[0])
    assert not torch.equal(net[0].weight, before[1])


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("converted", [False, True])
def test_a_layer_that_a_network_has_got_since_is_added(optimizer, converted):
    model = alrao.Alrao(deep_mlp()) if converted else deep_mlp()
    net = model.net if converted else model
    chosen = OPTIMIZERS[optimizer](model)
    train(model, chosen, 3)
    rates = chosen.rates(net[0].weight).clone()
    net[1] = nn.Linear(net[0].out_features, net[0].out_features)
    before = net[1].weight.detach().clone()
    chosen.add_param_group({"params": net[1].parameters()})
    assert torch.equal(chosen.rates(net[0].weight), rates)
    train(model, chosen, 3)
    assert not torch.equal(net[1].weight, before)


@pytest.mark.parametrize(
    "container", [nn.ModuleList, lambda parts: nn.ModuleDict(dict(zip("ab", parts, strict=True)))]
)
def test_the_mode_of_a_list_of_modules_is_that_of_its_parts(container):
    one, other = nn.Linear(4, 4), nn.Linear(4, 4)
    optimizer = alrao.Auto(container([one, other]))
    for _ in range(3):
        optimizer.zero_grad()
        other(one(torch.ones(2, 4))).square().sum().backward()
        optimizer.step()
    one.eval()
    assert not optimizer.averages.evaluating
    other.eval()
    assert optimizer.averages.evaluating


@pytest.mark.filterwarnings("ignore:.*is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:no feature rule")
@pytest.mark.parametrize("script", [torch.jit.script, lambda m: torch.jit.trace(m, torch.ones(1, 4))])
def test_a_scripted_part_is_trained_and_a_scripted_network_refused(script):
    with pytest.raises(TypeError, match="scripted or traced network"):
        alrao.Auto(script(nn.Linear(4, 4)))
    for convert in lambda net: net, alrao.Alrao:
        part = script(nn.Linear(4, 4))
        before = part.weight.detach().clone()
        model = convert(nn.Sequential(part, nn.Linear(4, 3)))
        optimizer = alrao.Auto(model)
        for _ in range(3):
            optimizer.zero_grad()
            F.cross_entropy(model(torch.ones(2, 4)), torch.tensor([0, 1])).backward()
            optimizer.step()
        assert not torch.equal(part.weight, before)
        model.eval()
        assert optimizer.averages.evaluating


def test_parameters_over_the_same_memory_are_refused():
    encoder, decoder = nn.Linear(4, 2), nn.Linear(2, 4)
    decoder.weight.data = encoder.weight.data.T
    with pytest.raises(ValueError, match="same memory"):
        alrao.Auto([encoder, decoder])
    optimizer = alrao.Auto(encoder)
    alrao.AdamW([encoder, decoder], lr=1e-3)
    with torch.device("meta"):
        alrao.Auto(nn.Sequential(nn.Linear(4, 2), nn.Linear(2, 4)))
    decoder.weight.requires_grad_(False)
    alrao.Auto([encoder, decoder])
    with pytest.raises(RuntimeError, match="another Auto"):
        optimizer.step()
