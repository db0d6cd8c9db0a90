"""CIFAR-10 in every form, damaged in every way, and its cache: used, damaged, interrupted, impossible."""

import errno
import os
import pickle
import shutil
import signal
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from lab_support.data import check_refusal
from lab_support.pictures import BATCHES, CLASSES, as_binary, as_images, as_python, cifar, packed, trusted
from PIL import Image
from support.needs import DATA, needs_cifar10

from alrao_lab.tasks import cifar as cifar_module
from alrao_lab.tasks.cifar import load_cifar10

pytestmark = pytest.mark.usefixtures("cache")


def check_refused(where, *words):
    """The error's message, which has the words, in one line."""
    message = check_refusal(load_cifar10, where)
    for word in words:
        assert word in message
    return message


def write_form(form, folder, monkeypatch):
    batches = cifar()
    match form:
        case "python" | "python.tar.gz":
            made = trusted(as_python(batches, folder / "cifar-10-batches-py"), monkeypatch)
        case "binary" | "binary.tar.gz":
            made = as_binary(batches, folder / "cifar-10-batches-bin")
        case _:
            made = as_images(batches, folder / "cifar10-images")
    if "tar" in form:
        name = f"cifar-10-{form}" if "images" not in form else form.replace("images", "cifar10-png")
        made = packed(made, folder / name, made.name if "images" not in form else "")
    return made


FORMS = ["python", "python.tar.gz", "binary", "binary.tar.gz"]
FORMS += ["images", "images.tar", "images.tar.gz", "images.tar.xz", "images.tar.bz2"]


@pytest.mark.parametrize(
    ("form", "by"),
    [(form, "folder") for form in FORMS]
    + [(form, by) for form in ("python.tar.gz", "images") for by in ("name", "environment")],
)
def test_every_form_gives_the_same(form, by, tmp_path, monkeypatch):
    place = tmp_path / "data"
    place.mkdir()
    made = write_form(form, place, monkeypatch)
    if by == "environment":
        monkeypatch.setenv("ALRAO_DATA", str(place))
    arrays, source = load_cifar10({"folder": place, "name": made, "environment": None}[by])
    batches = cifar()
    pixels = np.concatenate([batches[name][0] for name in BATCHES]).reshape(-1, 3, 32, 32)
    labels = np.concatenate([batches[name][1] for name in BATCHES])
    if "tar" in form:
        assert source.is_file()
    assert arrays.train.dtype == torch.uint8
    assert arrays.train_labels.dtype == torch.int64
    assert np.array_equal(arrays.train.numpy(), pixels)
    assert np.array_equal(arrays.train_labels.numpy(), labels)
    assert np.array_equal(arrays.test.flatten(1).numpy(), batches["test_batch"][0])
    assert np.array_equal(arrays.test_labels.numpy(), batches["test_batch"][1])
    assert arrays.classes == CLASSES
    assert arrays.digest == load_cifar10(as_binary(batches, tmp_path / "other"))[0].digest


def test_archive_below_a_folder_and_dots_in_names(tmp_path):
    made = as_images(cifar(), tmp_path / "made")
    (made / "train" / "cat" / "._0000.png").write_bytes(b"a file that some systems leave behind")
    assert len(load_cifar10(made)[0].train) == 100
    archive = packed(made, tmp_path / "cifar10.tar.gz", "./some/folder")
    assert len(load_cifar10(archive)[0].train) == 100


def test_finds_it_among_others(tmp_path):
    as_images(cifar(seed=1), tmp_path)  # folders train and test, of something else
    (tmp_path / "cifar-100-python.tar.gz").write_bytes(b"another set")
    (tmp_path / "cifar100").mkdir()
    made = as_binary(cifar(), tmp_path / "cifar-10-batches-bin")
    assert load_cifar10(tmp_path)[1] == made
    shutil.rmtree(made)
    assert load_cifar10(tmp_path)[1] == tmp_path


def test_other_data_has_another_digest(tmp_path):
    first = load_cifar10(as_binary(cifar(), tmp_path / "first"))[0]
    batches = cifar()
    batches["test_batch"][0][3, 100] ^= 1
    assert load_cifar10(as_binary(batches, tmp_path / "second"))[0].digest != first.digest


class TestRefusals:
    def test_no_place(self):
        message = check_refused(None, "--data", "ALRAO_DATA", "cifar-10-python.tar.gz")
        assert "https://www.cs.toronto.edu/~kriz/cifar.html" in message

    def test_place_does_not_exist(self, tmp_path, monkeypatch):
        check_refused(
            tmp_path / "nowhere", str(tmp_path / "nowhere"), "--data names", "cifar-10-python.tar.gz"
        )
        monkeypatch.setenv("ALRAO_DATA", str(tmp_path / "void"))
        check_refused(None, str(tmp_path / "void"), "ALRAO_DATA names")

    def test_nothing_there(self, tmp_path):
        (tmp_path / "letter.txt").write_text("nothing")
        check_refused(tmp_path, f"no CIFAR-10 in {tmp_path}", "cifar-10-batches-bin", "download")
        check_refused(tmp_path / "letter.txt", "letter.txt", "damaged")

    @pytest.mark.parametrize("kept", [0.3, 0.9, 0.999])
    @pytest.mark.parametrize("form", ["python.tar.gz", "images.tar.gz", "images.tar.xz", "images.tar.bz2"])
    def test_archive_cut_off(self, form, kept, tmp_path, monkeypatch):
        archive = write_form(form, tmp_path, monkeypatch)
        content = archive.read_bytes()
        archive.write_bytes(content[: int(kept * len(content))])
        check_refused(archive, str(archive), "damaged or cut off")

    def test_tar_cut_off_between_members(self, tmp_path, monkeypatch):
        archive = write_form("images.tar", tmp_path, monkeypatch)
        content = archive.read_bytes().rstrip(b"\0")
        archive.write_bytes(content + b"\0" * (-len(content) % 512))
        check_refused(archive, str(archive), "its end is missing")

    def test_archive_with_a_wrong_byte(self, tmp_path, monkeypatch):
        archive = write_form("images.tar.gz", tmp_path, monkeypatch)
        content = bytearray(archive.read_bytes())
        content[len(content) // 2] ^= 0xFF
        archive.write_bytes(content)
        check_refused(archive, str(archive))

    def test_no_archive_at_all(self, tmp_path):
        (tmp_path / "cifar10.tar.gz").write_bytes(b"<html>not found</html>" * 1000)
        check_refused(tmp_path, "cifar10.tar.gz", "damaged")

    def test_batch_missing(self, binary):
        (binary / "data_batch_3.bin").unlink()
        check_refused(binary, "lacks data_batch_3")

    def test_binary_of_a_wrong_length(self, binary):
        path = binary / "data_batch_3.bin"
        path.write_bytes(path.read_bytes()[:-1])
        check_refused(binary, str(path), "3073")

    def test_label_out_of_range(self, binary):
        path = binary / "test_batch.bin"
        path.write_bytes(b"\x0a" + path.read_bytes()[1:])
        check_refused(binary, str(path), "labels are from 0 to 9, got 10")

    def test_python_version_of_something_else(self, tmp_path, monkeypatch):
        folder = trusted(as_python(cifar(), tmp_path / "py"), monkeypatch)
        assert len(load_cifar10(folder)[0].train) == 100
        path = folder / "data_batch_5"
        path.write_bytes(path.read_bytes()[:5000])
        check_refused(folder, str(path), "damaged", "MD5")
        path.unlink()
        check_refused(folder, "lacks data_batch_5")

    def test_pickle_that_would_run_a_program(self, tmp_path, monkeypatch):
        class Evil:
            def __reduce__(self):
                return os.system, (f"touch {tmp_path / 'harm'}",)

        folder = trusted(as_python(cifar(), tmp_path / "py"), monkeypatch)
        (folder / "batches.meta").write_bytes(pickle.dumps(Evil()))
        assert len(load_cifar10(folder)[0].train) == 100  # without this file
        (folder / "data_batch_1").write_bytes(pickle.dumps(Evil()))
        check_refused(folder, str(folder / "data_batch_1"), "MD5")
        assert not (tmp_path / "harm").exists()

    def test_corrupt_image(self, tmp_path):
        folder = as_images(cifar(), tmp_path / "images")
        path = folder / "train" / "cat" / "0030.png"
        path.write_bytes(path.read_bytes()[:60])
        check_refused(folder, str(path))
        path.write_bytes(b"no image")
        archive = packed(folder, tmp_path / "images.tar.xz")
        check_refused(archive, f"{archive}/train/cat/0030.png is not an image")

    def test_corrupt_jpeg(self, tmp_path):
        folder = as_images(cifar(), tmp_path / "images")
        path = folder / "test" / "cat" / "9999.jpg"
        Image.effect_noise((32, 32), 50).save(path)
        path.write_bytes(path.read_bytes()[:-300])
        check_refused(folder, str(path), "damaged")

    def test_image_of_another_size(self, tmp_path):
        folder = as_images(cifar(), tmp_path / "images")
        Image.new("RGB", (31, 33)).save(folder / "test" / "dog" / "big.png")
        check_refused(folder, "big.png", "31×33")

    def test_empty_folders(self, tmp_path):
        for part in ("train", "test"):
            (tmp_path / part).mkdir()
        check_refused(tmp_path, str(tmp_path), "train", "at least two classes; there is none")

    def test_other_classes(self, tmp_path):
        folder = as_images(cifar(), tmp_path / "images")
        (folder / "test" / "dog").rename(folder / "test" / "cow")
        check_refused(folder, "cow, dog")
        (folder / "test" / "cow").rename(tmp_path / "cow")
        check_refused(folder, "not in both", "dog")
        (folder / "train" / "dog").rename(tmp_path / "dog")
        check_refused(folder, "9 classes, CIFAR-10 has 10")


def test_progress_only_on_a_terminal(tmp_path, monkeypatch, capsys):
    from alrao_lab.tasks.files import open_file, track

    def read():
        assert list(track(range(3), "reading data")) == [0, 1, 2]
        with open_file(tmp_path / "some", "unpacking") as file:
            assert file.read() == b"some"
        return capsys.readouterr()

    (tmp_path / "some").write_bytes(b"some")
    assert read() == ("", "")
    monkeypatch.setenv("FORCE_COLOR", "1")
    out, err = read()
    assert out == ""
    assert "reading data" in err
    assert "unpacking" in err


@needs_cifar10
@pytest.mark.slow
def test_real_images():
    arrays, _ = load_cifar10(DATA)
    assert arrays.train.shape == (50_000, 3, 32, 32)
    assert arrays.test.shape == (10_000, 3, 32, 32)
    assert arrays.train_labels.bincount().tolist() == [5_000] * 10
    assert arrays.test_labels.bincount().tolist() == [1_000] * 10
    assert arrays.classes == CLASSES
    pixels = arrays.train.transpose(0, 1).flatten(1) / 255
    assert pixels.mean(1).tolist() == pytest.approx([0.491, 0.482, 0.447], abs=1e-3)
    assert pixels.std(1).tolist() == pytest.approx([0.245, 0.243, 0.261], abs=2e-3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        again, _ = load_cifar10(DATA)
    assert torch.equal(arrays.train, again.train)


# The cache.


def test_second_time_reads_the_cache(binary, cache, monkeypatch):
    first, _ = load_cifar10(binary)
    assert [path.suffix for path in cache.glob("cifar10-*")] == [".pt"]
    monkeypatch.setattr("alrao_lab.tasks.cifar._read", None)
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

    monkeypatch.setattr(cifar_module.torch, "save", save)
    with pytest.warns(UserWarning, match="No space left on device"):
        load_cifar10(binary)
    assert not [path for path in cache.iterdir() if not path.name.endswith(".lock")]


def test_killed_while_writing(binary, cache):
    script = (
        "import os, signal, sys\n"
        "os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "from alrao_lab.tasks.cifar import load_cifar10\n"
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
    from alrao_lab.tasks.files import cache_folder

    monkeypatch.delenv("ALRAO_CACHE")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", "home")
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert cache_folder() == Path(expected)
