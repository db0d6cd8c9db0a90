"""Runs an example as `python file.py arguments` does, where torchvision's operators cannot be loaded too.

Lightning and transformers import torchvision; see vision.py.
"""

import runpy
import sys

from vision import torchvision

if __name__ == "__main__":
    assert torchvision.__version__
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
