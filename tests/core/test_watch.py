"""An optimizer of torch that trains an Alrao model causes one warning; nothing else does."""

import copy
import pickle
import warnings

import pytest
import torch
import torch.nn.functional as F
from support.small import mlp
from torch import nn
from torch.optim.optimizer import _global_optimizer_post_hooks
from torch.optim.swa_utils import AveragedModel, update_bn

import alrao


def made():
    return alrao.Alrao(mlp(), 3)


def loss_of(model):
    return F.cross_entropy(model(torch.randn(6, 4)), torch.randint(3, (6,)))


def messages(run):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        run()
    assert all(each.filename == __file__ for each in caught)
    return [str(each.message) for each in caught]


def train(model, optimizer, steps=10, of_model=False):
    for _ in range(steps):
        (model if of_model else optimizer).zero_grad()
        loss_of(model).backward()
        optimizer.step()


@pytest.mark.parametrize("of_model", [False, True])
@pytest.mark.parametrize("way", ["foreach", "fused", None])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_an_optimizer_of_torch_is_noticed_once(kind, way, of_model):
    model = made()
    options = {"foreach": False} if way is None else {way: True}
    optimizer = kind(model.parameters(), lr=0.1, **options)
    (message,) = messages(lambda: train(model, optimizer, of_model=of_model))
    assert "alrao.Auto(model)" in message
    assert not messages(lambda: train(model, optimizer))


def test_a_copy_that_is_trained_so_is_noticed_too():
    model = made()
    train(model, alrao.SGD(model))
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert messages(lambda twin=twin: train(twin, torch.optim.SGD(twin.parameters(), lr=0.1)))


def test_a_model_whose_own_forward_is_not_run_is_noticed():
    model = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def epochs():
        for _ in range(5):
            model.train()
            for _ in range(2):
                optimizer.zero_grad()
                F.cross_entropy(model.net(torch.randn(6, 4)), torch.randint(3, (6,))).backward()
                optimizer.step()
            model.eval()

    assert len(messages(epochs)) == 1


KINDS = {
    "SGD": alrao.SGD,
    "Adam": alrao.Adam,
    "Auto": alrao.Auto,
    "PerFeature": lambda model, **options: alrao.PerFeature(torch.optim.NAdam, model, **options),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_optimizers_of_alrao_are_not(kind):
    model = made()

    def run():
        optimizer = KINDS[kind](model)
        for _ in range(4):
            train(model.train(), optimizer, 3)
            model.eval()
            with torch.no_grad():
                model(torch.randn(6, 4))
        train(*copy.deepcopy((model.train(), optimizer)))

    assert not messages(run)


def test_accumulation_is_not():
    model = made()

    def run():
        for _ in range(10):
            loss_of(model).backward()
        optimizer = alrao.SGD(model)
        for _ in range(3):
            for _ in range(5):
                loss_of(model).backward()
            optimizer.step()
            optimizer.zero_grad()

    assert not messages(run)


CHANGES = {
    "load_state_dict": lambda model: model.load_state_dict(copy.deepcopy(model.state_dict())),
    "load_state_dict, assigned": lambda model: model.load_state_dict(
        copy.deepcopy(model.state_dict()), assign=True
    ),
    "double and float": lambda model: model.double().float(),
    "a device and back": lambda model: model.to("meta").to_empty(device="cpu"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_weights_that_are_loaded_or_moved_are_not(change):
    model = made()

    def run():
        for _ in range(8):
            model(torch.randn(6, 4))
            CHANGES[change](model)

    assert not messages(run)


def test_weights_that_are_initialised_by_hand_are_not():
    model = made()

    def run():
        model(torch.randn(6, 4))
        nn.init.normal_(model.head.weight)
        nn.init.normal_(model.head.weight)
        loss_of(model).backward()
        train(model, alrao.SGD(model))

    assert not messages(run)


def test_averages_of_the_weights_are_not():
    model = made()

    def run():
        optimizer = alrao.SGD(model)
        average = AveragedModel(model)
        for _ in range(6):
            train(model, optimizer, 1)
            average.update_parameters(model)
            with torch.no_grad():
                average(torch.randn(6, 4))
        update_bn([torch.randn(6, 4)], average)

    assert not messages(run)


@pytest.mark.parametrize("way", ["load", "data", "in place"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_target_network_that_follows_is_not(kind, way):
    model = made()
    for target in (copy.deepcopy(model), made()):
        optimizer = KINDS[kind](model)
        target.load_state_dict(model.state_dict())

        def run(target=target, optimizer=optimizer):
            for _ in range(6):
                values = target(torch.randn(6, 4)).detach()
                assert values.isfinite().all()
                train(model, optimizer, 1)
                pairs = zip(target.parameters(), model.parameters(), strict=True)
                if way == "load":
                    target.load_state_dict(model.state_dict())
                for p, q in pairs if way == "data" else ():
                    p.data.copy_(0.3 * q.data + 0.7 * p.data)
                with torch.no_grad():
                    for p, q in pairs if way == "in place" else ():
                        p.mul_(0.7).add_(q, alpha=0.3)

        assert not messages(run)
        x = torch.randn(6, 4)
        target.load_state_dict(model.state_dict())
        assert torch.equal(target(x).exp(), model(x).exp()), "with the posterior"


def test_a_frozen_head_is_not():
    model = made()

    def run():
        model.head.requires_grad_(False)
        train(model, torch.optim.SGD(model.body_parameters(), lr=0.1))

    assert not messages(run)


def test_a_body_trained_by_torch_beside_is_not():
    model = made()

    def run():
        ours = alrao.SGD(model, params=model.head.parameters())
        theirs = torch.optim.SGD(model.body_parameters(), lr=0.1)
        for _ in range(6):
            ours.zero_grad(), theirs.zero_grad()
            loss_of(model).backward()
            theirs.step(), ours.step()

    assert not messages(run)


def test_one_hook_serves_all_models():
    made()
    hooks = len(_global_optimizer_post_hooks)
    models = [made(), made()]
    assert len(_global_optimizer_post_hooks) == hooks
    for model in models:
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
        assert len(messages(lambda model=model, optimizer=optimizer: train(model, optimizer))) == 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_hook_does_not_slow_the_steps_of_alrao_down(kind):
    model = made()
    optimizer = KINDS[kind](model)
    marked = []
    optimizer._optimizer_step_code = lambda: marked.append(1)  # torch's wrapper around a step calls it
    train(model, optimizer, 3)
    assert not marked
    optimizer.register_step_post_hook(lambda *_: None)
    train(model, optimizer, 3)
    assert len(marked) == 3


def test_an_optimizer_of_alrao_that_is_not_stepped_does_not_count():
    model = made()
    alrao.SGD(model)
    assert messages(lambda: train(model, torch.optim.SGD(model.parameters(), lr=0.1)))


def test_fused_steps_of_another_network_are_not():
    model, other = made(), mlp()
    optimizer = torch.optim.SGD(other.parameters(), lr=0.1, fused=True)

    def run():
        for _ in range(6):
            loss_of(model).backward()
            loss_of(other).backward()
            optimizer.step()

    assert not messages(run)
