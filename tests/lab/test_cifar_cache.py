"""The cache of decoded images: used, damaged, interrupted, impossible."""

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from alrao.lab.data import arrays as arrays_module
from alrao.lab.data.cifar import load_cifar10

pytestmark = pytest.mark.usefixtures("cache")


def test_second_time_reads_the_cache(binary, cache, monkeypatch):
    first, _ = load_cifar10(binary)
    assert [path.suffix for path in cache.glob("cifar10-*")] == [".pt"]
    monkeypatch.setattr("alrao.lab.data.cifar._read", None)
    second, _ = load_cifar10(binary)
    assert torch.equal(first.train, second.train)
    assert torch.equal(first.test_labels, second.test_labels)
    assert (first.digest, first.classes) == (second.digest, second.classes)


def test_another_state_of_the_source_is_read_again(binary, cache):
    first, _ = load_cifar10(binary)
    path = binary / "data_batch_2.bin"
    content = bytearray(path.read_bytes())
    content[1] ^= 1
    path.write_bytes(content)
    os.utime(path, ns=(1, 1))
    assert load_cifar10(binary)[0].digest != first.digest
    assert len(list(cache.glob("cifar10-*"))) == 1


@pytest.mark.parametrize("damage", ["cut", "flip", "garbage", "empty", "other"])
def test_damaged_is_made_again(binary, cache, damage):
    first, _ = load_cifar10(binary)
    (path,) = cache.glob("cifar10-*")
    content = bytearray(path.read_bytes())
    match damage:
        case "cut":
            content = content[: len(content) // 2]
        case "flip":
            content[len(content) // 2] ^= 0xFF
        case "garbage":
            content = b"nothing that torch knows" * 100
        case "empty":
            content = b""
    path.write_bytes(content)
    if damage == "other":
        torch.save({"format": 1}, path)
    for _ in range(2):
        again, _ = load_cifar10(binary)
        assert torch.equal(first.train, again.train)
        assert torch.equal(first.train_labels, again.train_labels)


@pytest.mark.filterwarnings("default")
def test_not_to_be_written_is_a_warning(binary, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("ALRAO_CACHE", str(tmp_path / "file" / "below"))
    with pytest.warns(UserWarning, match="no cache.*file.*ALRAO_CACHE") as caught:
        arrays, _ = load_cifar10(binary)
    assert len(caught) == 1
    assert len(arrays.train) == 100


def test_full_disk_is_a_warning(binary, cache, monkeypatch):
    def save(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(arrays_module.torch, "save", save)
    with pytest.warns(UserWarning, match="No space left on device"):
        load_cifar10(binary)
    assert not [path for path in cache.iterdir() if not path.name.endswith(".lock")]


def test_killed_while_writing(binary, cache):
    script = (
        "import os, signal, sys\n"
        "os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "from alrao.lab.data.cifar import load_cifar10\n"
        "load_cifar10(sys.argv[1])\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(binary)], check=False, timeout=100)
    assert ended.returncode == -signal.SIGKILL
    assert list(cache.iterdir())
    assert not list(cache.glob("cifar10-*"))
    assert len(load_cifar10(binary)[0].train) == 100
    assert len(list(cache.glob("cifar10-*"))) == 1


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"ALRAO_CACHE": "a", "XDG_CACHE_HOME": "b"}, "a"),
        ({"XDG_CACHE_HOME": "b"}, "b/alrao"),
        ({}, "home/.cache/alrao"),
    ],
)
def test_place(variables, expected, monkeypatch):
    from alrao.lab.data.places import cache_folder

    monkeypatch.delenv("ALRAO_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "home")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == Path(expected)
