"""Lightning trains Alrao models as a plain loop does; the callback logs, clips each copy, and refuses."""

import csv
import doctest
import importlib
import math
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from support import lightning_ranks
from support.lightning_modules import ROWS, Module, loader, network, pl, seeded, table, trainer
from support.processes import as_by_torchrun

import alrao
from alrao.contrib.zoom import Zoom
from alrao.integrations import lightning as leaf
from alrao.integrations.lightning import AlraoCallback, MisconfigurationException

pytestmark = [
    # Lightning's own use of torch's trees.
    pytest.mark.filterwarnings("ignore:`isinstance.treespec, LeafSpec.` is deprecated:FutureWarning"),
    # On machines with more cores than these tests need.
    pytest.mark.filterwarnings("ignore:.*does not have many workers:UserWarning"),
]


class Watch(pl.Callback):
    """Remembers the gradients as they are when the optimizer is about to use them."""

    def on_before_optimizer_step(self, trainer, module, optimizer):
        self.seen = {name: p.grad.clone() for name, p in module.model.net.named_parameters()}


class Validated(Module):
    def validation_step(self, batch, index):
        self.log("valid", F.cross_entropy(self.model(batch[0]), batch[1]))


AUTO = {"optimizer": alrao.Auto, "steps": 14}  # four steps of search, then averages


def check_same(found, expected, **tolerance):
    found, expected = found.state_dict(), expected.state_dict()
    assert found.keys() == expected.keys()
    for name, value in found.items():
        torch.testing.assert_close(value, expected[name], **(tolerance or {"rtol": 0, "atol": 0}))


# Training.


def test_the_same_as_a_plain_loop_to_the_bit():
    module = seeded(Module, lr=(1e-3, 1.0), momentum=0.9)
    trainer(3).fit(module, loader())
    model = seeded(lambda: alrao.Alrao(network(), 4))
    optimizer = alrao.SGD(model, lr=(1e-3, 1.0), momentum=0.9)
    for _ in range(3):
        for x, y in loader():
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    check_same(module.model, model)
    assert model.posterior.max() - model.posterior.min() > 1e-3


class Plain(pl.LightningModule):
    """The oracle: a network and an optimizer of torch alone."""

    def __init__(self):
        super().__init__()
        self.net = network()

    def training_step(self, batch, index):
        return F.cross_entropy(self.net(batch[0]), batch[1])

    def configure_optimizers(self):
        return torch.optim.SGD(self.net.parameters(), lr=0.3, momentum=0.9)


@pytest.mark.parametrize("options", [{}, {"accumulate_grad_batches": 2}, {"precision": "64-true"}])
def test_one_copy_at_one_rate_is_what_lightning_itself_trains(options):
    plain = seeded(Plain)
    trainer(4, **options).fit(plain, loader(8))
    module = seeded(Module, copies=1, lr=0.3, momentum=0.9)
    trainer(4, **options).fit(module, loader(8))
    check_same(module.model.collapse(), plain.net, rtol=1e-9, atol=1e-12)


def test_accumulated_batches_count_as_one():
    parts = seeded(Module, lr=(1e-2, 1.0))
    trainer(3, accumulate_grad_batches=4).fit(parts, loader(4))
    whole = seeded(Module, lr=(1e-2, 1.0))
    trainer(3).fit(whole, loader(16))
    check_same(parts.model, whole.model, rtol=1e-5, atol=1e-6)  # the evidence is summed in float32


def test_mixed_precision():
    module = seeded(Module)
    module.float()
    before = module.model.posterior.clone()
    x, y = table().tensors
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x.float(), y), 16)
    trainer(20, precision="bf16-mixed").fit(module, data)
    assert not torch.equal(module.model.posterior, before)
    assert (module.model(x.float()).argmax(1) == y).float().mean() > 0.7


def checkpointed(folder):
    keep = pl.callbacks.ModelCheckpoint(folder, every_n_epochs=1, save_top_k=-1, filename="{epoch}")
    return {"enable_checkpointing": True, "callbacks": [keep, AlraoCallback()]}


@pytest.mark.filterwarnings("ignore:Checkpoint directory .* exists and is not empty:UserWarning")
@pytest.mark.parametrize("options", [{"optimizer": alrao.SGD}, {"optimizer": alrao.Adam}, AUTO], ids=str)
def test_a_resumed_run_ends_with_the_same_bits(options, tmp_path):
    options = {**options, "scheduled": True}
    whole = seeded(Module, **options)
    trainer(4, **checkpointed(tmp_path)).fit(whole, loader())
    torch.manual_seed(1234)  # other weights and rates, until they are loaded
    resumed = Module(**options)
    again = trainer(4, **checkpointed(tmp_path))
    again.fit(resumed, loader(), ckpt_path=tmp_path / "epoch=1.ckpt")
    check_same(resumed.model, whole.model)
    check_same(resumed.model.eval(), whole.model.eval())
    assert again.global_step == 4 * ROWS // 16
    assert again.optimizers[0].param_groups[0]["lr"] == 0.5**4


def test_a_checkpoint_loads_as_a_module(tmp_path):
    module = seeded(Module)
    fit = trainer(2)
    fit.fit(module, loader())
    fit.save_checkpoint(tmp_path / "last.ckpt")
    loaded = Module.load_from_checkpoint(tmp_path / "last.ckpt", weights_only=True)
    check_same(loaded.model, module.model)


def test_training_stops_early():
    stop = pl.callbacks.EarlyStopping("valid", patience=2, min_delta=100.0)
    fit = trainer(50, callbacks=[stop, AlraoCallback()])
    fit.fit(seeded(Validated), loader(), loader())
    assert fit.current_epoch == 3  # the first, and two without enough improvement
    assert math.isfinite(fit.callback_metrics["valid"])


# Auto. Lightning sets ``training`` after a validation without a call of train().


def test_validations_by_lightning_change_nothing():
    module = seeded(Validated, **AUTO)
    trainer(3, val_check_interval=2).fit(module, loader(), loader())
    model = seeded(lambda: alrao.Alrao(network(), 4))
    optimizer = alrao.Auto(model, steps=14)
    for _ in range(3):
        for x, y in loader():
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    module.model(table().tensors[0])  # the forward pass notices that the mode is training
    assert module.model.training
    check_same(module.model, model)
    check_same(module.model.eval(), model.eval())
    averaged = model.head.weight.detach().clone()
    assert not torch.equal(averaged, model.train().head.weight)


def test_validation_is_of_the_averaged_weights_and_so_are_its_checkpoints(tmp_path):
    keep = pl.callbacks.ModelCheckpoint(tmp_path, monitor="valid", filename="best")
    fit = trainer(3, enable_checkpointing=True, callbacks=[keep])
    module = seeded(Validated, **AUTO)
    fit.fit(module, loader(), loader())
    best = Validated.load_from_checkpoint(tmp_path / "best.ckpt", weights_only=True)  # without the optimizer
    trainer().validate(best, loader(), verbose=False)
    x, y = table().tensors
    losses = F.cross_entropy(best.model.eval()(x), y).item()
    assert losses == pytest.approx(keep.best_model_score.item(), rel=1e-6)
    trainer().validate(module, loader(), verbose=False)
    if keep.best_model_score == fit.callback_metrics["valid"]:
        check_same(module.model.eval(), best.model)


def test_a_checkpoint_of_training_weights_is_not_evaluated_in_silence(tmp_path):
    fit = trainer(3)
    fit.fit(seeded(Module, **AUTO), loader())  # no validation
    fit.save_checkpoint(tmp_path / "last.ckpt")
    loaded = Validated.load_from_checkpoint(tmp_path / "last.ckpt", weights_only=True)
    with pytest.warns(UserWarning, match="the averaged weights, which should be evaluated, are not known"):
        trainer().validate(loaded, loader(), verbose=False)


def test_lightnings_own_clipping_and_monitor_with_auto(tmp_path):
    """The monitor logs the rate of the next step, and leaves the factor; without the callback the factor."""
    made = []
    for callbacks in ([AlraoCallback()], []):
        logger = pl.loggers.CSVLogger(tmp_path / str(len(made)))
        fit = trainer(
            4, gradient_clip_val=1.0, logger=logger, log_every_n_steps=1,
            callbacks=[pl.callbacks.LearningRateMonitor("step"), *callbacks],
        )  # fmt: skip
        fit.fit(seeded(Module, **AUTO, scheduled=True), loader())
        (optimizer,) = fit.optimizers
        assert optimizer.param_groups[0]["lr"] == 0.5**4
        made.append(rows_of(tmp_path / str(len(made))))
    rates = [float(row["alrao/lr"]) for row in made[0] if row["alrao/lr"]]  # after each step
    assert rates[-1] == pytest.approx(optimizer.param_groups[0]["d"] * 0.5**4, rel=1e-6)
    before = [float(row["lr-Auto"]) for row in made[0] if row["lr-Auto"]]
    assert len(before) == len(rates) == 12
    assert before[1:] == pytest.approx(rates[:-1], rel=1e-6)
    assert {float(row["lr-Auto"]) for row in made[1] if row["lr-Auto"]} == {0.5**k for k in range(4)}


# The callback.


def rows_of(folder):
    with next(Path(folder).rglob("metrics.csv")).open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_the_posterior_is_logged(tmp_path):
    module = seeded(Module, lr=(1e-3, 1.0))
    logger = pl.loggers.CSVLogger(tmp_path)
    trainer(2, logger=logger, log_every_n_steps=3, callbacks=[AlraoCallback()]).fit(module, loader())
    rows = rows_of(tmp_path)
    assert [int(row["step"]) for row in rows] == [2, 5]
    names = [f"alrao/posterior/{copy} at {rate}" for copy, rate in enumerate(["0.001", "0.01", "0.1", "1"])]
    posterior = torch.tensor([float(rows[-1][name]) for name in names], dtype=torch.float64)
    torch.testing.assert_close(posterior, module.model.posterior, rtol=1e-5, atol=1e-7)
    entropy = -(posterior * posterior.log()).sum().item()
    assert float(rows[-1]["alrao/copies"]) == pytest.approx(math.exp(entropy), rel=1e-4)
    mean = (posterior * torch.tensor([1e-3, 1e-2, 1e-1, 1.0]).log()).sum().exp().item()
    assert float(rows[-1]["alrao/rate"]) == pytest.approx(mean, rel=1e-4)


def test_the_names_stay_while_rates_move(tmp_path):
    class Zoomed(Module):
        def configure_optimizers(self):
            optimizer = alrao.SGD(self.model, lr=(1e-3, 1.0))
            return [optimizer], [{"scheduler": Zoom(optimizer, steps=4), "interval": "step"}]

    logger = pl.loggers.CSVLogger(tmp_path)
    trainer(3, logger=logger, log_every_n_steps=1, callbacks=[AlraoCallback()]).fit(Zoomed(), loader())
    names = [name for name in rows_of(tmp_path)[-1] if name.startswith("alrao/posterior/")]
    assert [name.rpartition("/")[2] for name in names] == ["0 at 0.001", "1 at 0.01", "2 at 0.1", "3 at 1"]


def test_nothing_is_logged_on_demand(tmp_path):
    logger = pl.loggers.CSVLogger(tmp_path)
    trainer(1, logger=logger, log_every_n_steps=1, callbacks=[AlraoCallback(log_posterior=False)]).fit(
        Module(), loader()
    )
    assert "loss" in rows_of(tmp_path)[-1]
    assert not any(name.startswith("alrao") for name in rows_of(tmp_path)[-1])


class Two(Module):
    """Two Alrao models, each with an optimizer of its own, moved by hand."""

    def __init__(self):
        super().__init__(lr=(1e-2, 1.0))
        self.other = alrao.Alrao(network(), 2)
        self.automatic_optimization = False

    def configure_optimizers(self):
        return alrao.SGD(self.model), alrao.SGD(self.other)

    def training_step(self, batch, index):
        for model, optimizer in zip((self.model, self.other), self.optimizers(), strict=True):
            optimizer.zero_grad()
            self.manual_backward(100 * F.cross_entropy(model(batch[0]), batch[1]))
            optimizer.step()


def test_several_models_moved_by_hand():
    fit = trainer(1, callbacks=[AlraoCallback(gradient_clip_val=0.01), watch := Watch()])
    fit.fit(seeded(Two), loader())
    names = set(fit.callback_metrics)
    assert {"model/alrao/copies", "other/alrao/copies", "other/alrao/posterior/1 at 10"} <= names
    body = torch.cat([watch.seen[name].flatten() for name in ("0.weight", "0.bias")])
    assert body.norm().item() == pytest.approx(0.01, rel=1e-3)


def test_each_copy_is_clipped_on_its_own():
    class Wild(Module):
        def on_fit_start(self):
            with torch.no_grad():
                self.model.head.weight[0] *= 50

    before, after = Watch(), Watch()
    module = seeded(Wild)
    trainer(1, callbacks=[before, AlraoCallback(gradient_clip_val=0.2), after], limit_train_batches=1).fit(
        module, loader(ROWS)
    )
    parts = [(["0.weight", "0.bias"], slice(None)), *((["2.weight", "2.bias"], copy) for copy in range(4))]
    for names, copy in parts:
        raw, clipped = (
            torch.cat([watch.seen[name][copy].flatten() for name in names]) for watch in (before, after)
        )
        factor = min(1.0, 0.2 / raw.norm().item())
        torch.testing.assert_close(clipped, raw * factor, rtol=1e-4, atol=1e-9)
    norms = before.seen["2.weight"].flatten(1).norm(dim=1)
    assert norms.max() > 0.2  # some were clipped


class OwnClipping(Module):
    def configure_gradient_clipping(self, optimizer, gradient_clip_val=None, gradient_clip_algorithm=None):
        self.model.clip_grad_norm_(gradient_clip_val)


def test_a_module_may_clip_in_its_own_way():
    own = seeded(OwnClipping)
    trainer(2, gradient_clip_val=0.1, callbacks=[AlraoCallback()]).fit(own, loader())
    ours = seeded(Module)
    trainer(2, callbacks=[AlraoCallback(gradient_clip_val=0.1)]).fit(ours, loader())
    check_same(own.model, ours.model)


# What is refused.


def test_clipping_by_the_trainer_is_refused():
    module = seeded(Module)
    before = module.model.head.weight.clone()
    fit = trainer(1, gradient_clip_val=0.5, callbacks=[AlraoCallback()])
    with pytest.raises(MisconfigurationException, match=r"AlraoCallback\(gradient_clip_val=0\.5\)"):
        fit.fit(module, loader())
    assert torch.equal(module.model.head.weight, before)


def test_a_module_without_alrao_is_refused():
    with pytest.raises(MisconfigurationException, match=r"Plain contains none: set self\.model = "):
        trainer(1, callbacks=[AlraoCallback()]).fit(Plain(), loader())


def test_an_optimizer_of_torch_is_refused():
    def plain(model, **options):
        return torch.optim.SGD(model.parameters(), lr=0.1)

    with pytest.raises(MisconfigurationException, match=r"got SGD: return alrao\.Auto\(self\.model\)"):
        trainer(1, callbacks=[AlraoCallback()]).fit(Module(optimizer=plain), loader())


@pytest.mark.parametrize("value", [0, -1.0, "1.0", True, math.nan])
def test_a_norm_that_is_none_is_refused(value):
    with pytest.raises(MisconfigurationException, match="gradient_clip_val must be a positive number"):
        AlraoCallback(gradient_clip_val=value)


def test_the_exception_is_lightnings_own():
    from lightning.pytorch.utilities import exceptions

    assert MisconfigurationException is exceptions.MisconfigurationException


def test_without_lightning_the_import_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    monkeypatch.delitem(sys.modules, "alrao.integrations.lightning")
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'alrao\[lightning\]'"):
        importlib.import_module("alrao.integrations.lightning")


def test_doctests():
    assert doctest.testmod(leaf).failed == 0


# The other package, and other processes.


def test_under_the_other_name_of_the_package():
    other = pytest.importorskip("pytorch_lightning")

    class Renamed(other.LightningModule):
        training_step, configure_optimizers = Module.training_step, Module.configure_optimizers

        def __init__(self):
            super().__init__()
            self.model = alrao.Alrao(network(), 4)
            self.kind, self.scheduled, self.options = alrao.SGD, False, {}

    fit = trainer(2, kind=other.Trainer, callbacks=[AlraoCallback(gradient_clip_val=1.0)])
    fit.fit(Renamed(), loader())
    assert "alrao/rate" in fit.callback_metrics


# Several processes.


@pytest.mark.slow
def test_two_processes_are_one(tmp_path):
    as_by_torchrun(lightning_ranks.ddp, 2, tmp_path)
    first, second = (torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(2))
    for name, value in first["model"].items():
        assert torch.equal(value, second["model"][name]), name
    for one, two in zip(first["rates"], second["rates"], strict=True):
        assert torch.equal(one, two)
    torch.manual_seed(7)
    alone = Module(lr=(1e-2, 1.0), momentum=0.5)
    torch.manual_seed(100)  # as the first rank
    trainer(3).fit(alone, loader(16))
    for name, value in alone.model.state_dict().items():
        torch.testing.assert_close(first["model"][name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_two_shards_are_one_process(tmp_path):
    as_by_torchrun(lightning_ranks.shards, 2, tmp_path)
    found = torch.load(tmp_path / "0.pt", weights_only=True)
    kinds = {"sgd": (alrao.SGD, {"lr": (1e-2, 1.0), "momentum": 0.5}), "auto": (alrao.Auto, {"steps": 9})}
    for name, (kind, options) in kinds.items():
        torch.manual_seed(7)
        alone = Module(optimizer=kind, **options)
        torch.manual_seed(9)
        trainer(3).fit(alone, loader(16))
        for key, value in alone.model.state_dict().items():
            torch.testing.assert_close(found[name][key], value, rtol=1e-5, atol=1e-6)
