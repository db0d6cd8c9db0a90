"""skorch's nets with Alrao: training as in a plain loop, skorch's parameters, files and callbacks."""

import doctest
import functools
import importlib
import io
import pickle
import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import alrao

pytest.importorskip("skorch", reason="needs alrao[skorch]")

import skorch
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from skorch import callbacks

import alrao.integrations.skorch as leaf
from alrao.integrations.skorch import (
    AlraoNet,
    AlraoNetBinaryClassifier,
    AlraoNetClassifier,
    AlraoNetRegressor,
    GradientNormClipping,
)

rng = np.random.default_rng(0)
X = rng.normal(size=(120, 5)).astype(np.float32)
y = X[:, :3].argmax(1)
LINEAR = (X[:, :1] - 2 * X[:, 1:2]).astype(np.float32)
QUIET = {"verbose": 0, "train_split": None, "batch_size": 20, "max_epochs": 3}


class Net(nn.Module):
    """A module as users of skorch write it: arguments, and logits at the end."""

    def __init__(self, units=16, outputs=3):
        super().__init__()
        self.hidden, self.out = nn.Linear(5, units), nn.Linear(units, outputs)

    def forward(self, x):
        return self.out(torch.tanh(self.hidden(x)))


def seeded(net, inputs=X, targets=y):
    torch.manual_seed(7)
    return net.fit(inputs, targets)


def check_same_weights(net, expected):
    found = net.module_.state_dict() if hasattr(net, "module_") else net.state_dict()
    assert found.keys() == expected.keys()
    for name, value in found.items():
        assert torch.equal(value, expected[name]), name


MOMENTUM = {"optimizer": alrao.SGD, "optimizer__momentum": 0.9}

# What is trained.


@pytest.mark.parametrize("criterion", [nn.NLLLoss, nn.CrossEntropyLoss])
def test_one_copy_at_one_rate_is_what_skorch_itself_trains(criterion):
    # The oracle is skorch and torch.optim alone; its module returns logits, as ours does.
    plain = skorch.NeuralNetClassifier(
        Net,
        criterion=nn.CrossEntropyLoss,
        optimizer=torch.optim.SGD,
        lr=0.1,
        optimizer__momentum=0.5,
        **QUIET,
    )
    ours = AlraoNetClassifier(
        Net, criterion=criterion, alrao__copies=1, alrao__keep_output=True, optimizer=alrao.SGD, lr=0.1,
        optimizer__momentum=0.5, **QUIET,
    )  # fmt: skip
    seeded(plain), seeded(ours)
    assert ours.history[:, "train_loss"] == pytest.approx(plain.history[:, "train_loss"], rel=1e-5)
    np.testing.assert_allclose(ours.predict_proba(X), plain.predict_proba(X), rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(ours.predict(X), plain.predict(X))


@pytest.mark.parametrize("criterion", [nn.NLLLoss, nn.CrossEntropyLoss])
@pytest.mark.parametrize("optimizer", [alrao.SGD, alrao.Adam, alrao.Auto])
def test_the_same_as_a_plain_loop_to_the_bit(criterion, optimizer):
    epochs = 30 if optimizer is alrao.Auto else 3  # longer than its search
    options = {**QUIET, "max_epochs": epochs, "alrao__copies": 4}
    net = seeded(AlraoNetClassifier(Net, criterion=criterion, optimizer=optimizer, **options))
    torch.manual_seed(7)
    model = alrao.Alrao(Net(), 4)
    by_hand = optimizer(model)  # with its own interval of rates: not skorch's 0.01
    for start in [*range(0, 120, 20)] * epochs:
        by_hand.zero_grad()
        rows = slice(start, start + 20)
        F.cross_entropy(model(torch.from_numpy(X[rows])), torch.from_numpy(y[rows])).backward()
        by_hand.step()
    check_same_weights(net, model.eval().state_dict())
    assert model.posterior.max() - model.posterior.min() > 1e-3


def test_it_learns_without_a_rate():
    net = AlraoNetClassifier(
        Net, max_epochs=15, batch_size=16, verbose=0, iterator_train__shuffle=True, module__units=32
    )
    assert seeded(net).score(X, y) > 0.85
    assert isinstance(net.optimizer_, alrao.Auto)
    assert net.history[-1, "valid_acc"] > 0.5  # skorch's own callback, on its own split


def test_probabilities_are_probabilities():
    for criterion in (nn.NLLLoss, nn.CrossEntropyLoss):
        net = seeded(AlraoNetClassifier(Net, criterion=criterion, **QUIET))
        probabilities = net.predict_proba(X)
        np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-5)
        assert (probabilities >= 0).all()
        picked = probabilities[np.arange(len(y)), y]
        with torch.no_grad():
            loss = net.get_loss(net.forward(X), torch.from_numpy(y)).item()
        assert loss == pytest.approx(-np.log(picked).mean(), rel=1e-5)


def test_a_nonlinearity_of_ones_own_is_kept():
    net = seeded(AlraoNetClassifier(Net, predict_nonlinearity=None, **QUIET))
    np.testing.assert_allclose(np.exp(net.predict_proba(X)).sum(1), 1, rtol=1e-5)  # the output as it is


def test_regression():
    net = AlraoNetRegressor(Net, module__outputs=1, max_epochs=20, batch_size=8, verbose=0)
    assert seeded(net, X, LINEAR).score(X, LINEAR) > 0.6
    assert net.predict(X).shape == (120, 1)
    assert isinstance(net.criterion_, alrao.MixtureMSELoss)


def test_regression_with_one_copy_is_what_skorch_itself_trains():
    class HalfSquared(nn.Module):
        def forward(self, prediction, target):
            return (prediction - target).square().sum(1).mean() / 2

    plain = skorch.NeuralNetRegressor(Net, criterion=HalfSquared, module__outputs=1, lr=0.05, **QUIET)
    ours = AlraoNetRegressor(
        Net, module__outputs=1, optimizer=alrao.SGD, lr=0.05, alrao__copies=1, alrao__keep_output=True,
        **QUIET,
    )  # fmt: skip
    seeded(plain, X, LINEAR), seeded(ours, X, LINEAR)
    np.testing.assert_allclose(ours.predict(X), plain.predict(X), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("criterion", [nn.BCEWithLogitsLoss, alrao.MixtureBCELoss])
def test_binary_classification(criterion):
    target = (X[:, 0] > 0).astype(np.float32)
    net = AlraoNetBinaryClassifier(
        Net, criterion=criterion, module__outputs=1, max_epochs=15, batch_size=8, verbose=0
    )
    seeded(net, X, target)
    assert net.score(X, target) > 0.7
    probabilities = net.predict_proba(X)
    assert probabilities.shape == (120, 2)
    np.testing.assert_allclose(probabilities.sum(1), 1, rtol=1e-6)
    np.testing.assert_array_equal(net.predict(X), probabilities[:, 1] > 0.5)


def test_several_labels():
    target = (X[:, :3] > 0).astype(np.float32)
    net = AlraoNet(
        Net, alrao.MixtureBCELoss, alrao__likelihood="bernoulli", max_epochs=20, batch_size=8, verbose=0
    )
    probabilities = seeded(net, X, target).predict_proba(X)
    assert ((probabilities >= 0) & (probabilities <= 1)).all()
    assert ((probabilities > 0.5) == target).mean() > 0.7


# skorch's parameters.


def test_groups_go_by_the_names_of_the_module():
    net = AlraoNetClassifier(
        Net,
        optimizer=alrao.SGD,
        optimizer__param_groups=[("hidden.*", {"lr": (1e-3, 1e-2), "momentum": 0.5})],
        lr=(0.1, 1.0),
        **QUIET,
    ).initialize()
    first, rest = net.optimizer_.param_groups
    assert {id(p) for p in first["params"]} == {id(p) for p in net.module_.hidden.parameters()}
    assert first["momentum"] == 0.5
    assert rest["momentum"] == 0.0
    drawn = net.optimizer_.rates(net.module_.hidden.weight)
    assert 1e-3 <= drawn.min() <= drawn.max() <= 1e-2
    assert net.optimizer_.rates(net.module_.head.bias).flatten()[[0, -1]].tolist() == pytest.approx([0.1, 1])


def test_a_freezer_finds_its_parameters():
    net = AlraoNetClassifier(Net, callbacks=[callbacks.Freezer("hidden*")], module__units=8, **QUIET)
    torch.manual_seed(7)
    before = Net(8).hidden.weight.detach().clone()
    seeded(net)
    assert torch.equal(net.module_.hidden.weight, before)
    assert net.module_.head.weight.requires_grad


def test_grid_search_over_the_module_the_copies_and_the_rates():
    search = GridSearchCV(
        AlraoNetClassifier(Net, optimizer=alrao.SGD, **QUIET),
        {"module__units": [4, 8], "alrao__copies": [2, 3], "lr": [(1e-3, 1.0), (1e-2, 0.1)]},
        cv=2,
        error_score="raise",
    ).fit(X, y)
    best = search.best_estimator_
    assert best.module_.head.copies == search.best_params_["alrao__copies"]
    assert best.module_.hidden.out_features == search.best_params_["module__units"]
    rates = best.optimizer_.copy_rates()
    assert (rates[0].item(), rates[-1].item()) == pytest.approx(search.best_params_["lr"])


def test_in_a_pipeline_and_cross_validated():
    net = AlraoNetClassifier(
        Net, **{**QUIET, "max_epochs": 10, "batch_size": 8}, iterator_train__shuffle=True
    )
    predicted = cross_val_predict(make_pipeline(StandardScaler(), net), 1000 * X + 5, y, cv=3)
    assert (predicted == y).mean() > 0.6


def test_clones_have_the_parameters():
    net = AlraoNetClassifier(Net, lr=(1e-3, 0.5), alrao__copies=3, optimizer=alrao.Adam, **QUIET)
    twin = clone(seeded(net))
    assert twin.get_params()["alrao__copies"] == 3
    assert (twin.lr, twin.optimizer) == ((1e-3, 0.5), alrao.Adam)
    assert not twin.initialized_
    check_same_weights(seeded(twin), net.module_.state_dict())


def test_new_rates_of_a_net_in_training():
    net = seeded(AlraoNetClassifier(Net, optimizer=alrao.SGD, **QUIET))
    before = {name: value.clone() for name, value in net.module_.state_dict().items()}
    net.set_params(lr=(1e-4, 1.0))
    assert net.optimizer_.param_groups[0]["lr"] == 1.0  # the schedule's factor
    assert net.optimizer_.rates(net.module_.head.bias).flatten()[[0, -1]].tolist() == pytest.approx([1e-4, 1])
    assert net.get_params()["lr"] == (1e-4, 1.0)
    check_same_weights(net, before)  # what was learnt stays
    net.partial_fit(X, y)
    assert not torch.equal(net.module_.head.weight, before["out.weight"])
    net.set_params(optimizer__lr=alrao.LogUniform(0.5, 1.0))
    assert net.optimizer_.rates(net.module_.hidden.weight).min() >= 0.5


def test_other_options_of_a_net_in_training():
    net = seeded(AlraoNetClassifier(Net, alrao__copies=3, **MOMENTUM, **QUIET))
    net.set_params(optimizer__momentum=0.5, optimizer__param_groups__0__lr=0.1)
    assert [(group["momentum"], group["lr"]) for group in net.optimizer_.param_groups] == [(0.5, 0.1)]
    net.set_params(alrao__copies=6)
    assert net.module_.head.copies == 6
    assert net.optimizer_.model is net.module_
    net.partial_fit(X, y)
    net.set_params(module__units=4)
    assert net.module_.hidden.out_features == 4
    assert net.partial_fit(X, y).predict(X).shape == y.shape


@pytest.mark.parametrize(("options", "epochs"), [(MOMENTUM, 2), ({}, 10)])
def test_parts_go_on_where_the_last_one_ended(options, epochs):
    whole = seeded(AlraoNetClassifier(Net, **{**QUIET, "max_epochs": 2 * epochs}, **options))
    parts = AlraoNetClassifier(Net, **{**QUIET, "max_epochs": epochs}, **options)
    torch.manual_seed(7)
    parts.partial_fit(X, y).partial_fit(X, y)
    check_same_weights(parts, whole.module_.state_dict())


def test_an_instance_stays_as_it_was_and_starts_every_fit():
    module = Net()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    net = AlraoNetClassifier(module, alrao__keep_output=True, **QUIET).initialize()
    assert torch.equal(net.module_.hidden.weight, module.hidden.weight)
    assert torch.equal(net.module_.head.weight[0], module.out.weight)
    net.fit(X, y).fit(X, y)
    check_same_weights(module, before)


def test_an_alrao_model_is_taken_as_it_is():
    model = alrao.Alrao(Net(), 3)
    net = seeded(AlraoNetClassifier(model, **QUIET))
    assert net.module_ is model
    assert net.predict_proba(X).shape == (120, 3)


def test_a_net_class_of_ones_own():
    class Doubled(skorch.NeuralNet):
        def get_loss(self, *args, **kwargs):
            return 2 * super().get_loss(*args, **kwargs)

    class AlraoDoubled(AlraoNet, Doubled):
        pass

    net = seeded(AlraoDoubled(Net, nn.CrossEntropyLoss, alrao__copies=2, **QUIET))
    single = seeded(AlraoNet(Net, nn.CrossEntropyLoss, alrao__copies=2, **QUIET))
    assert net.history[0, "batches", 0, "train_loss"] == 2 * single.history[0, "batches", 0, "train_loss"]


def test_any_optimizer_of_torch():
    net = AlraoNetClassifier(Net, optimizer=functools.partial(alrao.PerFeature, torch.optim.NAdam), **QUIET)
    assert seeded(net).optimizer_.param_groups[0]["optimizer"] == "NAdam"
    assert net.history[-1, "train_loss"] < net.history[0, "train_loss"]


# torch's compiler makes an instance of the class itself while it traces; and as skorch compiles the criterion
# too, it looks at the gradient of its input.
@pytest.mark.filterwarnings(
    "ignore:.*autograd.function.Function.* should not be instantiated:DeprecationWarning",
    "ignore:The .grad attribute of a Tensor that is not a leaf Tensor:UserWarning",
)
@pytest.mark.slow
def test_compiled_modules():
    options = {"optimizer__param_groups": [("hidden*", {"momentum": 0.5})], **QUIET}
    net = seeded(AlraoNetClassifier(Net, compile=True, compile__backend="eager", **options))
    plain = seeded(AlraoNetClassifier(Net, **options))
    assert net.history[:, "train_loss"] == pytest.approx(plain.history[:, "train_loss"], rel=1e-4)
    np.testing.assert_allclose(net.predict_proba(X).sum(1), 1, rtol=1e-5)


# What is refused.


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"optimizer": torch.optim.SGD}, TypeError, r"one of alrao's.*got SGD.*alrao\.PerFeature"),
        ({"optimizer": alrao.SGD, "lr": (1.0, 1e-3)}, ValueError, "from low to high"),
        (
            {"lr": (1e-3, 1.0)},
            ValueError,
            r"Auto finds the rates itself, got lr=\(0\.001, 1\.0\).*alrao\.SGD",
        ),
        ({"alrao_copies": 3}, ValueError, "did you mean alrao__copies"),
        ({"alrao__copys": 3}, TypeError, "copys"),
        ({"alrao__copies": 0}, ValueError, "copies"),
        ({"alrao__output": "nowhere"}, ValueError, "got 'nowhere'"),
        ({"module__outputs": 1}, ValueError, "likelihood='bernoulli'"),
    ],
)
def test_bad_input_is_refused_by_name(options, error, message):
    with pytest.raises(error, match=message):
        AlraoNetClassifier(Net, **QUIET, **options).initialize()


def test_a_factor_that_is_no_number():
    net = AlraoNetClassifier(Net, **QUIET).initialize()
    with pytest.raises(ValueError, match=r"a factor on its drawn rates.*got .*0__lr=\(0\.1, 1\)"):
        net.set_params(optimizer__param_groups__0__lr=(0.1, 1))
    assert net.optimizer_.param_groups[0]["lr"] == 1.0


def test_a_module_that_ends_in_a_softmax_is_refused():
    with pytest.raises(ValueError, match="softmax"):
        AlraoNetClassifier(nn.Sequential(Net(), nn.Softmax(1)), **QUIET).fit(X, y)


def test_a_loss_that_cannot_train_copies_is_refused():
    net = AlraoNetRegressor(Net, criterion=nn.MSELoss, module__outputs=1, **QUIET)
    with pytest.raises(RuntimeError, match=r"alrao\.MixtureMSELoss"):
        net.fit(X, LINEAR)


def test_skorchs_own_net_trains_an_alrao_model():
    net = skorch.NeuralNetClassifier(alrao.Alrao(Net()), optimizer=alrao.Auto, lr=1.0, **QUIET).initialize()
    assert net.optimizer_.model is net.module_


def test_doctests():
    assert doctest.testmod(leaf).failed == 0


def test_without_skorch_the_import_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "skorch", None)
    monkeypatch.delitem(sys.modules, "alrao.integrations.skorch")
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'alrao\[skorch\]'"):
        importlib.import_module("alrao.integrations.skorch")


# Files.


@pytest.mark.parametrize(("optimizer", "epochs"), [(alrao.Adam, 3), (alrao.Auto, 12)])
def test_saved_parameters_go_on_to_the_same_bits(optimizer, epochs, tmp_path):
    options = {"alrao__copies": 3, "optimizer": optimizer, **QUIET, "max_epochs": epochs}
    net = seeded(AlraoNetClassifier(Net, **options))
    files = {f"f_{name}": str(tmp_path / name) for name in ("params", "optimizer", "history")}
    net.save_params(**files)
    other = AlraoNetClassifier(Net, **options).initialize()
    other.load_params(**files)
    np.testing.assert_array_equal(other.predict_proba(X), net.predict_proba(X))
    net.partial_fit(X, y), other.partial_fit(X, y)
    check_same_weights(other, net.module_.state_dict())
    assert len(other.history) == 2 * epochs


def test_what_is_saved_and_predicted_are_the_averaged_weights(tmp_path):
    """Without validation data nothing but the end of an epoch puts the module into evaluation mode."""
    save = callbacks.Checkpoint(dirname=tmp_path, monitor=None)
    net = seeded(AlraoNetClassifier(Net, callbacks=[save], **{**QUIET, "max_epochs": 30}))
    averaged = {name: value.clone() for name, value in net.module_.state_dict().items()}
    expected = net.predict_proba(X)
    check_same_weights(net.module_.eval(), averaged)
    assert not torch.equal(net.module_.train().head.weight, averaged["out.weight"])
    other = AlraoNetClassifier(Net, **QUIET).initialize()
    other.load_params(f_params=tmp_path / "params.pt")  # without the optimizer's
    np.testing.assert_array_equal(other.predict_proba(X), expected)


def test_the_best_epoch_is_restored(tmp_path):
    best = callbacks.Checkpoint(dirname=tmp_path, monitor="valid_loss_best", load_best=True)
    options = {"max_epochs": 20, "batch_size": 20, "verbose": 0}
    net = seeded(AlraoNetClassifier(Net, callbacks=[best], **options))
    expected = torch.load(tmp_path / "params.pt", weights_only=True)
    check_same_weights(net, expected)
    net.predict(X)
    check_same_weights(net, expected)
    check_same_weights(net.module_.train().eval(), expected)


def test_checkpoints_and_the_end_of_training(tmp_path):
    checkpoint = callbacks.Checkpoint(dirname=tmp_path, monitor="valid_loss_best")
    early = callbacks.EarlyStopping(patience=2, threshold=10.0)
    net = AlraoNetClassifier(Net, max_epochs=20, verbose=0, callbacks=[checkpoint, early])
    seeded(net)
    assert len(net.history) == 3  # no improvement is enough for this threshold
    fresh = AlraoNetClassifier(Net, verbose=0).initialize()
    fresh.load_params(checkpoint=checkpoint)
    best = int(np.argmin(net.history[:, "valid_loss"]))
    assert sum(net.history[:, "valid_loss_best"]) >= 1
    assert len(fresh.history) == best + 1


@pytest.mark.parametrize("optimizer", [alrao.Adam, alrao.Auto])
def test_pickles_go_on_to_the_same_bits(optimizer):
    net = seeded(AlraoNetClassifier(Net, optimizer=optimizer, **{**QUIET, "max_epochs": 12}))
    twin = pickle.loads(pickle.dumps(net))
    assert twin.optimizer_.model is twin.module_
    net.partial_fit(X, y), twin.partial_fit(X, y)
    check_same_weights(twin, net.module_.state_dict())


def test_trimmed_for_prediction():
    net = seeded(AlraoNetClassifier(Net, **QUIET))
    expected = net.predict_proba(X)
    net.trim_for_prediction()
    file = io.BytesIO()
    pickle.dump(net, file)
    file.seek(0)
    np.testing.assert_array_equal(pickle.load(file).predict_proba(X), expected)


# Callbacks.


def test_a_schedule_is_a_factor():
    policy = callbacks.LRScheduler(torch.optim.lr_scheduler.StepLR, step_size=1, gamma=0.5)
    net = seeded(AlraoNetClassifier(Net, callbacks=[policy], optimizer=alrao.SGD, lr=(1e-3, 1.0), **QUIET))
    assert net.history[:, "event_lr"] == [1.0, 0.5, 0.25]
    assert net.optimizer_.rates(net.module_.head.bias).max().item() == pytest.approx(1.0)  # as drawn


def test_scores_see_probabilities():
    scoring = [
        callbacks.EpochScoring("neg_log_loss", lower_is_better=False, name="nll"),
        callbacks.EpochScoring("roc_auc_ovr", lower_is_better=False, name="auc", use_caching=False),
    ]
    net = seeded(AlraoNetClassifier(Net, verbose=0, callbacks=scoring, max_epochs=5))
    assert [-score for score in net.history[:, "nll"]] == pytest.approx(
        net.history[:, "valid_loss"], rel=1e-4
    )
    assert net.history[-1, "auc"] > 0.5


class Watch(callbacks.Callback):
    """Remembers the gradients as they are once the callbacks before it have seen them."""

    def on_grad_computed(self, net, named_parameters, **kwargs):
        self.seen = {name: p.grad.clone() for name, p in named_parameters}


def test_clipping_is_for_each_copy_on_its_own():
    before, after = Watch(), Watch()
    clip = GradientNormClipping(gradient_clip_value=0.05)
    net = AlraoNetClassifier(
        Net, alrao__copies=4, callbacks=[("a", before), ("b", clip), ("c", after)],
        **{**QUIET, "batch_size": 120, "max_epochs": 1},
    )  # fmt: skip
    seeded(net)
    for part in (["hidden.weight", "hidden.bias"], *[["out.weight", "out.bias", copy] for copy in range(4)]):
        *names, copy = part if len(part) == 3 else (*part, slice(None))
        gradient, clipped = (
            torch.cat([seen[name][copy].flatten() for name in names]) for seen in (before.seen, after.seen)
        )
        norm = gradient.norm()
        assert norm > 0.05
        torch.testing.assert_close(clipped, gradient * 0.05 / norm, rtol=1e-3, atol=1e-7)


def test_clipping_at_nothing_leaves_the_gradients():
    net = seeded(AlraoNetClassifier(Net, callbacks=[GradientNormClipping()], **QUIET))
    check_same_weights(net, seeded(AlraoNetClassifier(Net, **QUIET)).module_.state_dict())


def test_clipping_of_everything_together_is_warned_of():
    net = AlraoNetClassifier(Net, callbacks=[callbacks.GradientNormClipping(1.0)], **QUIET)
    with pytest.warns(UserWarning, match=r"GradientNormClipping of alrao\.integrations\.skorch"):
        net.initialize()
