"""torchvision's classifiers, by name.

This is also where torchvision itself comes from, ``from alrao.lab.zoo.vision import torchvision``: on some
machines its compiled operators cannot be loaded. The classifiers need none of them, but the import of the
package registers shapes for two, and fails if they do not exist. Import it here before anything else imports
torchvision, as transformers does.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..errors import LabError, missing, unknown
from .blocks import scaled

__all__ = ["classifier", "classifiers", "torchvision"]  # noqa: F822

RESNETS = frozenset({"resnet18", "resnet34", "resnet50", "resnet101", "resnet152"})
"""The models that can be made wider."""


def __getattr__(name: str) -> Any:
    if name == "torchvision":
        return _torchvision()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def classifiers() -> list[str]:
    """Names of torchvision's classifiers whose output layer can be copied.

    SqueezeNet is not among them: what its last convolution returns goes through a ReLU and a mean.
    """
    vision = _torchvision()
    names = vision.models.list_models(module=vision.models)
    return sorted(name for name in names if not name.startswith("squeezenet"))


def classifier(name: str, classes: int, *, width: float = 1.0) -> nn.Module:
    """An untrained classifier of torchvision, without auxiliary outputs.

    Args:
        name: one of :func:`classifiers`.
        classes: how many classes it tells apart.
        width: multiplies the channels of every layer; other than 1 for the ResNets alone.

    Raises:
        LabError: there is no such model, it cannot be made wider, or torchvision is not installed.
    """
    known = classifiers()
    if name not in known:
        raise unknown("model", name, known)
    if width == 1:
        return _build(name, classes)
    if name not in RESNETS:
        raise LabError(f"of torchvision's models only the ResNets scale, got width={width:g} for {name!r}")
    with torch.device("meta"):
        pattern = _build(name, classes)
    return _widened(pattern, width)


def _build(name: str, classes: int) -> nn.Module:
    auxiliary = name in ("googlenet", "inception_v3")
    options = {"aux_logits": False, "init_weights": True} if auxiliary else {}
    return _torchvision().models.get_model(name, weights=None, num_classes=classes, **options)


def _widened(pattern: nn.Module, width: float) -> nn.Module:
    """A ResNet with fresh layers of ``width`` times the channels, initialised as torchvision does.

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


def _torchvision() -> Any:
    if find_spec("torchvision") is None:
        raise missing("torchvision", "lab", "a model of torchvision")
    _define_operators()
    return import_module("torchvision")


@cache
def _define_operators() -> torch.library.Library | None:
    """Declare what the import asks for, where it cannot be loaded; the cache keeps it alive."""
    if _operators_load():
        return None
    definitions = torch.library.Library("torchvision", "DEF")
    definitions.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    definitions.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return definitions


def _operators_load() -> bool:
    spec = find_spec("torchvision")
    if spec is None or spec.origin is None:
        return False
    folder = Path(spec.origin).parent
    try:
        for library in [*folder.glob("_C*.so"), *folder.glob("_C*.pyd"), *folder.glob("_C*.dylib")]:
            torch.ops.load_library(str(library))  # the import does the same again, which is harmless
            return True
    except OSError:
        pass
    return False
