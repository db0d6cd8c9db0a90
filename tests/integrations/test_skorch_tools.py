"""skorch's files, pickles and callbacks with nets of Alrao."""

import io
import pickle

import numpy as np
import pytest
import torch
from support.skorch_nets import QUIET, Net, X, check_same_weights, seeded, y

import alrao

pytest.importorskip("skorch", reason="needs alrao[skorch]")

from skorch import callbacks

from alrao.integrations.skorch import AlraoNetClassifier, GradientNormClipping

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
