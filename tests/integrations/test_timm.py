"""timm's networks, parameter groups, schedulers and averages with Alrao models."""

import math

import pytest
import torch
import torch.nn.functional as F
from support.vision import torchvision  # noqa: F401  before timm imports it

import alrao

timm = pytest.importorskip("timm", reason="needs timm")

from timm.optim import param_groups_layer_decay, param_groups_weight_decay  # noqa: E402
from timm.scheduler import CosineLRScheduler  # noqa: E402
from timm.utils import ModelEmaV3  # noqa: E402


def vit():
    return timm.models.VisionTransformer(
        img_size=8, patch_size=4, embed_dim=16, depth=2, num_heads=2, num_classes=3, in_chans=1
    )


def grouped(groups, model):
    """The names in each group, with its other settings."""
    names = {p: name for name, p in model.named_parameters()}
    return [
        (group.get("lr_scale"), group["weight_decay"], [names[p] for p in group["params"]])
        for group in groups
    ]


def step(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()


@pytest.mark.parametrize("make", [param_groups_layer_decay, param_groups_weight_decay])
def test_groups_are_those_of_the_plain_network(make):
    plain, model = vit(), alrao.Alrao(vit(), 3)
    options = {"weight_decay": 0.05, "no_weight_decay_list": ["head.bias"]}  # a matrix, with copies
    assert grouped(make(model, **options), model) == grouped(make(plain, **options), plain)
    assert len(make(plain, **options)) >= 2


@pytest.mark.parametrize("kind", [alrao.SGD, alrao.AdamW, alrao.Auto])
def test_the_decay_over_layers_scales_the_rates(kind):
    model = alrao.Alrao(vit(), 3)
    groups = param_groups_layer_decay(model, weight_decay=0.05, layer_decay=0.5)
    scales = [group["lr_scale"] for group in groups]
    assert min(scales) < max(scales) == 1.0
    torch.manual_seed(3)
    plain = kind(model)
    torch.manual_seed(3)
    optimizer = kind(model, params=groups)
    for group, scale in zip(optimizer.param_groups, scales, strict=True):
        assert "lr_scale" not in group, "a scheduler would apply it again"
        assert group["lr"] == 1.0
        for p in group["params"]:
            torch.testing.assert_close(optimizer.rates(p), plain.rates(p) * scale)
    x, y = torch.randn(6, 1, 8, 8), torch.randint(3, (6,))
    for _ in range(60):
        step(model, optimizer, x, y)
    if kind is alrao.Auto:
        middles = [math.prod(optimizer.interval(i)) ** 0.5 / scale for i, scale in enumerate(scales)]
        assert max(middles) == pytest.approx(min(middles))


def test_a_scale_that_cannot_be_applied_is_refused():
    class Odd(alrao.RateDistribution):
        def quantile(self, u):
            return u

    model = alrao.Alrao(vit(), 3)
    with pytest.raises(ValueError, match=r"lr_scale=0\.5 cannot scale"):
        alrao.SGD(model, lr=Odd(), params=[{"params": model.parameters(), "lr_scale": 0.5}])


def test_a_scheduler_and_an_average_of_timm():
    model = alrao.Alrao(vit(), 3)
    optimizer = alrao.AdamW(model, lr=(1e-5, 1e-2), params=param_groups_layer_decay(model, layer_decay=0.7))
    scheduler = CosineLRScheduler(optimizer, t_initial=30, warmup_t=5, warmup_lr_init=1e-3, lr_min=1e-2)
    average = ModelEmaV3(model, decay=0.9)
    x, y = torch.randn(24, 1, 8, 8), torch.arange(24) % 3
    losses, factors = [], []
    for epoch in range(30):
        factors.append({group["lr"] for group in optimizer.param_groups})
        losses.append(step(model, optimizer, x, y))
        average.update(model)
        scheduler.step(epoch + 1)
    assert all(len(each) == 1 for each in factors)
    assert max(max(each) for each in factors) == pytest.approx(1, rel=0.1)
    assert losses[-1] < losses[0]
    assert average.module(x).isfinite().all()


def test_the_losses_of_timm_that_the_page_names():
    from timm import loss as losses

    x, y = torch.randn(8, 1, 8, 8), torch.arange(8) % 3
    soft = torch.rand(8, 3).softmax(1)

    def train(loss, target, likelihood=None):
        model = alrao.Alrao(vit(), 3, likelihood=likelihood)
        loss(model(x), target).backward()
        alrao.SGD(model).step()

    train(losses.SoftTargetCrossEntropy(), soft)
    train(losses.LabelSmoothingCrossEntropy(0.1), y)
    train(losses.BinaryCrossEntropy(), soft, "bernoulli")
    for loss, target in (
        (losses.AsymmetricLossMultiLabel(), soft.round()),
        (losses.AsymmetricLossSingleLabel(), y),
        (losses.JsdCrossEntropy(num_splits=2), y),
    ):
        with pytest.raises(RuntimeError, match="not a negative log-likelihood"):
            train(loss, target)


def test_a_task_made_from_the_model_saves_the_averaged_weights():
    """As timm's script does; the task keeps the model that it is made from."""
    task = pytest.importorskip("timm.task", reason="needs timm.task").ClassificationTask
    x, y = torch.randn(24, 1, 8, 8), torch.arange(24) % 3
    model = alrao.Alrao(vit(), 3)
    kept = task(model, torch.nn.CrossEntropyLoss(), verbose=False)
    optimizer = alrao.Auto(kept.get_trainable_module())
    for _ in range(60):
        kept.get_trainable_module().train()
        optimizer.zero_grad()
        kept(x, y)["loss"].backward()
        optimizer.step()
    training = {key: value.clone() for key, value in model.state_dict().items()}
    kept.get_eval_model().eval()
    saved = kept.get_checkpoint_state()["state_dict"]
    again = alrao.Alrao(vit(), 3)
    again.load_state_dict(saved)
    assert not torch.equal(saved["head.weight"], training["head.weight"])
    torch.testing.assert_close(again.eval().collapse()(x), model.collapse()(x))
