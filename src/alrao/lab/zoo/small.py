"""Networks that train in minutes on two cores."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import nn

from .blocks import scaled

__all__ = ["autoencoder", "digits_cnn", "mlp", "small_cnn"]


def mlp(
    inputs: int,
    classes: int,
    hidden: Sequence[int] = (128, 128),
    activation: Callable[[], nn.Module] = nn.ReLU,
) -> nn.Module:
    """Fully connected layers; an example of any shape is flattened to ``inputs`` numbers."""
    layers: list[nn.Module] = [nn.Flatten()]
    for units in hidden:
        layers += [nn.Linear(inputs, units), activation()]
        inputs = units
    return nn.Sequential(*layers, nn.Linear(inputs, classes))


def autoencoder(inputs: int, width: float = 1.0) -> nn.Module:
    """From ``inputs`` numbers down to 12, and back to all of them."""
    return mlp(inputs, inputs, hidden=(scaled(128, width), 12, scaled(128, width)), activation=nn.Tanh)


def small_cnn(channels: int, classes: int, width: float = 1.0, batch_norm: bool = True) -> nn.Module:
    """Four 3×3 convolutions of 16, 32, 64 and 64 channels, for images from 8×8 pixels on."""
    return _cnn(channels, classes, (16, 32, 64, 64), width, batch_norm)


def digits_cnn(classes: int = 10, width: float = 1.0) -> nn.Module:
    """Three 3×3 convolutions of 16, 32 and 64 channels, for images of 1×8×8."""
    return _cnn(1, classes, (16, 32, 64), width, batch_norm=True)


def _cnn(channels: int, classes: int, sizes: Sequence[int], width: float, batch_norm: bool) -> nn.Module:
    """Convolutions with the image halved between them, the mean over what is left of it, a Linear layer."""
    layers: list[nn.Module] = []
    for size in (scaled(size, width) for size in sizes):
        layers += [nn.MaxPool2d(2)] if layers else []
        layers.append(nn.Conv2d(channels, size, 3, padding=1))
        layers += [nn.BatchNorm2d(size)] if batch_norm else []
        layers.append(nn.ReLU())
        channels = size
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, classes))
