"""What the tests of the workbench share: pictures, and where they are kept once decoded."""

import pytest
from lab_support.pictures import as_binary, cifar, class_folder


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Where decoded images go; no data but what the test names."""
    monkeypatch.setenv("ALRAO_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("ALRAO_DATA", raising=False)
    return tmp_path / "cache"


@pytest.fixture
def binary(tmp_path):
    """The folder of the binary version."""
    return as_binary(cifar(), tmp_path / "cifar-10-batches-bin")


@pytest.fixture
def folder(tmp_path):
    """A folder like ImageNet's: 40 images to train on, 6 to test."""
    class_folder(tmp_path / "data" / "train", {"ant": 20, "bee": 20})
    class_folder(tmp_path / "data" / "val", {"ant": 3, "bee": 3}, seed=1)
    return tmp_path / "data"


@pytest.fixture
def flat(tmp_path):
    """A folder of classes alone."""
    return class_folder(tmp_path / "pets", {"cat": 40, "dog": 20, "eel": 10})
