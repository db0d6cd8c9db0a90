"""torchvision, also on machines where its compiled operators do not load.

The workbench needs none of these operators, but importing torchvision registers two of them and fails if they
do not exist. Import this module before anything else imports torchvision, as Lightning and transformers do.
"""

from __future__ import annotations

import torch

from .errors import missing

__all__ = ["torchvision", "transforms"]

try:
    import torchvision  # type: ignore[import-untyped]
except ModuleNotFoundError:
    raise missing("torchvision", "lab", "reading images") from None
except RuntimeError:  # operator torchvision::nms does not exist
    _operators = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        _operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    import torchvision

from torchvision.transforms import v2 as transforms  # type: ignore[import-untyped]
