"""torchvision, also on machines where its compiled operators do not load, and its classifiers by name.

The workbench needs none of these operators, but importing torchvision registers two of them and fails if they
do not exist. Import this module before anything else imports torchvision, as Lightning and transformers do.
"""

from __future__ import annotations

from contextlib import nullcontext, suppress
from importlib import import_module

import torch
from torch import nn

from ..errors import LabError, optional
from .small import scaled

__all__ = ["classifier", "classifiers", "torchvision", "transforms"]

try:
    with suppress(ImportError):  # the next import reports it
        import_module("torchvision")
except RuntimeError:  # operator torchvision::nms does not exist
    _operators = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        _operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
torchvision = optional("torchvision", "", "reading images")
transforms = optional("torchvision.transforms.v2", "", "reading images", "torchvision")

RESNETS = frozenset({"resnet18", "resnet34", "resnet50", "resnet101", "resnet152"})
"""The models whose width can be changed."""


def classifiers() -> list[str]:
    """Return the names of torchvision's classifiers whose output layer can be copied.

    SqueezeNet's cannot: a ReLU and a mean follow its last convolution.
    """
    names = torchvision.models.list_models(module=torchvision.models)
    return sorted(name for name in names if not name.startswith("squeezenet"))


def classifier(name: str, classes: int, *, width: float = 1.0) -> nn.Module:
    """Build an untrained classifier of torchvision, without auxiliary outputs.

    ``width`` multiplies the channels of every layer; only the ResNets take another than 1.
    """
    if width != 1 and name not in RESNETS:
        raise LabError(f"of torchvision's models only the ResNets scale, got width={width:g} for {name!r}")
    auxiliary = name in ("googlenet", "inception_v3")
    options = {"aux_logits": False, "init_weights": True} if auxiliary else {}
    with nullcontext() if width == 1 else torch.device("meta"):
        net = torchvision.models.get_model(name, weights=None, num_classes=classes, **options)
    return net if width == 1 else _widened(net, width)


def _widened(pattern: nn.Module, width: float) -> nn.Module:
    """Replace the layers of a ResNet by ones with ``width`` times the channels, initialised as there.

    Images keep their 3 channels, and the output its classes.
    """
    for module in list(pattern.modules()):
        for name, layer in module.named_children():
            if isinstance(layer, nn.Conv2d):
                inputs = 3 if layer.in_channels == 3 else scaled(layer.in_channels, width)
                outputs, size = scaled(layer.out_channels, width), layer.kernel_size[0]
                wide = nn.Conv2d(inputs, outputs, size, layer.stride[0], size // 2, bias=False)
                nn.init.kaiming_normal_(wide.weight, mode="fan_out", nonlinearity="relu")
                setattr(module, name, wide)
            elif isinstance(layer, nn.BatchNorm2d):
                setattr(module, name, nn.BatchNorm2d(scaled(layer.num_features, width)))
            elif isinstance(layer, nn.Linear):
                setattr(module, name, nn.Linear(scaled(layer.in_features, width), layer.out_features))
    return pattern
