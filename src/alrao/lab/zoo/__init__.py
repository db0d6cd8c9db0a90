"""The plain networks of the workbench: ordinary modules, each with its output layer.

``small``, ``residual``, ``attention`` and ``recurrent`` are for two cores; ``vgg``, ``googlenet`` and
``mobilenet`` are the paper's, for images of 32×32 pixels; ``vision`` offers torchvision's
classifiers, and is the only one that needs it.
"""

from .attention import TransformerLM, VisionTransformer
from .googlenet import googlenet
from .mobilenet import mobilenet_v2
from .recurrent import RecurrentLM
from .residual import residual_groupnorm
from .small import autoencoder, digits_cnn, mlp, small_cnn
from .vgg import vgg19

__all__ = [
    "RecurrentLM",
    "TransformerLM",
    "VisionTransformer",
    "autoencoder",
    "digits_cnn",
    "googlenet",
    "mlp",
    "mobilenet_v2",
    "residual_groupnorm",
    "small_cnn",
    "vgg19",
]
