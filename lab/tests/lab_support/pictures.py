"""Small sets of images in the forms that data sets are distributed in."""

import hashlib
import io
import pickle
import shutil
import struct
import tarfile

import numpy as np
from PIL import Image

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
BATCHES = [f"data_batch_{number}" for number in range(1, 6)]


def cifar(per_batch=20, seed=0):
    """Pixels and labels of each batch, sorted by class over all training batches, as a folder lists them."""
    random = np.random.default_rng(seed)

    def part(size):
        pixels = random.integers(0, 256, (size, 3072), dtype=np.uint8)
        return pixels, np.sort(np.arange(size) % 10)

    pixels, labels = part(5 * per_batch)
    batches = zip(np.split(pixels, 5), np.split(labels, 5), strict=True)
    return dict(zip(BATCHES, batches, strict=True)) | {"test_batch": part(per_batch)}


def as_python(batches, folder):
    """The files of cifar-10-python.tar.gz; ``trusted`` makes torchvision accept their digests."""
    folder.mkdir(parents=True)
    for name, (pixels, labels) in batches.items():
        (folder / name).write_bytes(python2_pickle({b"data": pixels, b"labels": labels.tolist()}))
    (folder / "batches.meta").write_bytes(pickle.dumps({"label_names": list(CLASSES)}, 2))
    return folder


def trusted(folder, monkeypatch):
    """Take the digests of the files in a folder for those of CIFAR-10's."""
    from alrao_lab.zoo.vision import torchvision

    def listed(names):
        return [[name, hashlib.md5((folder / name).read_bytes()).hexdigest()] for name in names]

    kind = torchvision.datasets.CIFAR10
    monkeypatch.setattr(kind, "train_list", listed(BATCHES))
    monkeypatch.setattr(kind, "test_list", listed(["test_batch"]))
    monkeypatch.setattr(kind, "meta", {**kind.meta, "md5": listed(["batches.meta"])[0][1]})
    return folder


def as_binary(batches, folder):
    """The files of cifar-10-binary.tar.gz."""
    folder.mkdir(parents=True)
    for name, (pixels, labels) in batches.items():
        records = np.concatenate([labels.astype(np.uint8)[:, None], pixels], axis=1)
        (folder / f"{name}.bin").write_bytes(records.tobytes())
    (folder / "batches.meta.txt").write_text("\n".join(CLASSES) + "\n\n")
    return folder


def as_images(batches, folder):
    """train/<class>/NNNN.png and test/<class>/NNNN.png."""
    train = [np.concatenate(each) for each in zip(*(batches[name] for name in BATCHES), strict=True)]
    for part, (pixels, labels) in {"train": train, "test": batches["test_batch"]}.items():
        for number, (image, label) in enumerate(zip(pixels, labels, strict=True)):
            path = folder / part / CLASSES[label] / f"{number:04}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image.reshape(3, 32, 32).transpose(1, 2, 0)).save(path)
    return folder


def packed(folder, archive, name=""):
    """A tar archive in place of a folder, compressed as its ending says."""
    with tarfile.open(archive, f"w:{archive.suffix[1:].replace('tar', '')}") as tar:
        tar.add(folder, arcname=name)
    shutil.rmtree(folder)
    return archive


def add_file(tar, name, content):
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def class_folder(folder, counts, size=(40, 32), seed=0):
    """Random JPEG images: as many for each class as said."""
    random = np.random.default_rng(seed)
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = random.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.jpg")
    return folder


def python2_pickle(batch):
    """A batch as Python 2 and an old numpy wrote it: strings are bytes, and a dtype has numbers for flags."""

    def string(value):
        return b"T" + struct.pack("<I", len(value)) + value

    def integer(value):
        return b"J" + struct.pack("<i", value)

    pixels = batch[b"data"]
    shape = integer(pixels.shape[0]) + integer(pixels.shape[1]) + b"\x86"
    dtype = b"cnumpy\ndtype\n" + string(b"u1") + b"K\x00K\x01\x87R"
    dtype += b"(K\x03" + string(b"|") + b"NNN" + integer(-1) + integer(-1) + b"K\x00tb"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + string(b"b") + b"\x87R"
    array += b"(K\x01" + shape + dtype + b"\x89" + string(pixels.tobytes()) + b"tb"
    labels = b"](" + b"".join(integer(int(label)) for label in batch[b"labels"]) + b"e"
    entries = (
        string(b"data") + array + string(b"labels") + labels + string(b"batch_label") + string(b"1 of 5")
    )
    return b"\x80\x02}(" + entries + b"u."
