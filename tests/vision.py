"""torchvision, made importable where its compiled operators cannot be loaded.

Import this before torchvision, and before transformers, which imports it too:
``from vision import torchvision``. The classifiers need none of those operators, but the import of the
package registers shapes for two of them, and fails if they do not exist.
"""

import importlib.util
from pathlib import Path

import torch


def _operators_load() -> bool:
    spec = importlib.util.find_spec("torchvision")
    folder = Path(spec.origin).parent
    try:
        for library in [*folder.glob("_C*.so"), *folder.glob("_C*.pyd"), *folder.glob("_C*.dylib")]:
            torch.ops.load_library(str(library))  # the import does the same again, which is harmless
            return True
    except OSError:
        pass
    return False


if not _operators_load():
    _definitions = torch.library.Library("torchvision", "DEF")  # lives as long as this module
    _definitions.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _definitions.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

import torchvision  # noqa: E402

__all__ = ["torchvision"]
