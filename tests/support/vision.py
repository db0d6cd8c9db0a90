"""torchvision, also where its operators do not load; import this before Lightning or transformers."""

from importlib import import_module

import pytest
import torch

try:
    import_module("torchvision")
except ModuleNotFoundError:
    pytest.skip("needs torchvision", allow_module_level=True)
except RuntimeError:  # operator torchvision::nms does not exist
    _operators = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        _operators.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
torchvision = import_module("torchvision")
