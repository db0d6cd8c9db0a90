"""The plain networks of the workbench: ordinary modules with their output layer.

``small`` holds those for two cores, ``paper`` the paper's, and ``vision`` torchvision's classifiers.
"""

from .paper import RecurrentLM, googlenet, mobilenet_v2, vgg19
from .small import (
    Mixer,
    TransformerLM,
    VisionTransformer,
    autoencoder,
    digits_cnn,
    mlp,
    residual,
    scaled,
    separable,
    small_cnn,
)

__all__ = [
    "Mixer",
    "RecurrentLM",
    "TransformerLM",
    "VisionTransformer",
    "autoencoder",
    "digits_cnn",
    "googlenet",
    "mlp",
    "mobilenet_v2",
    "residual",
    "scaled",
    "separable",
    "small_cnn",
    "vgg19",
]
