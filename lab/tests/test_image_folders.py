"""imagenet and imagefolder: listing, splits, refusals, worker processes, and archives."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import tarfile
from itertools import islice

import numpy as np
import pytest
import torch
from lab_support.data import check_refused, equal, load, paths, sizes
from lab_support.pictures import add_file, class_folder, packed
from PIL import Image
from support.needs import DATA, needs_file

import alrao
from alrao_lab.errors import LabError
from alrao_lab.resolve import resolve
from alrao_lab.settings import Settings
from alrao_lab.tasks import get_task
from alrao_lab.tasks.folders import in_proportion, scan
from alrao_lab.zoo.vision import torchvision

pytestmark = pytest.mark.usefixtures("cache")


class TestListing:
    def test_as_torchvision_lists(self, flat):
        (flat / "cat" / "deeper").mkdir()
        shutil.copy(flat / "cat" / "0.jpg", flat / "cat" / "deeper" / "NAME.JPEG")
        (flat / "cat" / "notes.txt").write_text("no image")
        theirs = torchvision.datasets.ImageFolder(flat)
        ours = scan(flat)
        assert list(ours.classes) == theirs.classes
        listed = zip(paths(ours), ours.targets.tolist(), strict=True)
        assert sorted((str(path), label) for path, label in listed) == sorted(theirs.samples)

    def test_hidden_files_do_not_count(self, flat):
        (flat / ".cache").mkdir()
        (flat / "cat" / "._0.jpg").write_bytes(b"left behind by some systems")
        assert scan(flat).classes == ("cat", "dog", "eel")
        assert len(scan(flat)) == 70

    def test_names_beyond_ascii(self, flat):
        (flat / "dog").rename(flat / "chien à poil")
        listing = scan(flat)
        assert listing.classes == ("cat", "chien à poil", "eel")
        assert all(path.is_file() for path in paths(listing))

    def test_in_proportion(self, flat):
        listing = scan(flat)
        parts = in_proportion(listing, (0.8, 0.1, 0.1), torch.Generator().manual_seed(0))
        assert [np.bincount(part.targets).tolist() for part in parts] == [[32, 16, 8], [4, 2, 1], [4, 2, 1]]
        assert sorted(path for part in parts for path in paths(part)) == sorted(paths(listing))
        assert np.any(np.diff(parts[0].targets) < 0)  # in random order

    @pytest.mark.parametrize("count", range(1, 12))
    def test_in_proportion_of_few(self, count, tmp_path):
        listing = scan(class_folder(tmp_path / "few", {"a": count, "b": 1}))
        train, *others = in_proportion(listing, (0.8, 0.1, 0.1), torch.Generator().manual_seed(0))
        assert set(train.targets) == {0, 1}
        assert len(train) + sum(map(len, others)) == count + 1


class TestImageNet:
    def test_parts(self, folder):
        problem = load("imagenet", folder)
        assert sizes(problem) == {"train": 38, "valid": 2, "test": 6}
        of_train = paths(problem.parts["train"]) + paths(problem.parts["valid"])
        assert sorted(of_train) == sorted((folder / "train").glob("*/*"))
        assert sorted(paths(problem.parts["test"])) == sorted((folder / "val").glob("*/*"))
        again = load("imagenet", folder, seed=3)
        assert paths(again.parts["train"]) == paths(problem.parts["train"])
        assert problem.about["classes"] == 2
        assert problem.about["source"] == "data"

    def test_sixty_thousand_of_the_real_one(self, monkeypatch, folder):
        from alrao_lab.tasks import folders
        from alrao_lab.tasks.folders import Listing

        n = 1_281_167
        real = Listing(np.zeros(n, "S1"), np.zeros(n, int), folder, ("a", "b"), np.zeros(n, int))
        monkeypatch.setattr(folders, "scan", lambda _: real)
        parts = get_task("imagenet").read(Settings(data=str(folder)))[0]
        assert len(parts["valid"]) == 60_000
        assert len(parts["train"]) == n - 60_000

    @pytest.mark.parametrize("name", ["valid", "test"])
    def test_other_names_for_val(self, folder, name):
        (folder / "val").rename(folder / name)
        assert sizes(load("imagenet", folder))["test"] == 6

    @pytest.mark.parametrize("name", ["imagenet", "ILSVRC2012"])
    def test_below_the_data_folder(self, folder, monkeypatch, name):
        (folder.parent / "all").mkdir()
        folder.rename(folder.parent / "all" / name)
        monkeypatch.setenv("ALRAO_DATA", str(folder.parent / "all"))
        assert load("imagenet", None).about["source"] == name

    def test_batch(self):
        task = get_task("imagenet")
        assert task.batch(Settings(budget="paper")) == 256
        assert task.batch(Settings(budget="paper", model="densenet121")) == 128
        assert task.batch(Settings(budget="mini", model="densenet121")) == 32
        assert task.models == ("alexnet", "resnet50", "densenet121", "*")

    @pytest.mark.parametrize("model", ["alexnet", "resnet50", "densenet121"])
    def test_networks_take_the_mini_size(self, folder, model):
        problem = load("imagenet", folder, model=model, image_size=None)
        assert problem.about["image"] == [3, 64, 64]

    def test_wider(self, folder):
        problem = load("imagenet", folder, model="resnet18", width=0.5)
        assert problem.network().conv1.out_channels == 32


class TestImageFolder:
    def test_split(self, flat):
        problem = load("imagefolder", flat)
        assert sizes(problem) == {"train": 56, "valid": 7, "test": 7}
        assert problem.identity == load("imagefolder", flat, seed=1, model="resnet18").identity
        assert get_task("imagefolder").models[0] == "resnet18"

    def test_train_and_one_other(self, folder):
        assert sizes(load("imagefolder", folder)) == {"train": 36, "valid": 4, "test": 6}
        (folder / "val").rename(folder / "test")
        assert sizes(load("imagefolder", folder)) == {"train": 36, "valid": 4, "test": 6}

    @pytest.mark.parametrize("name", ["val", "valid"])
    def test_train_and_both_others(self, folder, name):
        (folder / "val").rename(folder / name)
        class_folder(folder / "test", {"ant": 1, "bee": 4})
        problem = load("imagefolder", folder)
        assert sizes(problem) == {"train": 40, "valid": 6, "test": 5}
        assert all(path.parent.parent.name == "test" for path in paths(problem.parts["test"]))

    def test_identity(self, flat, tmp_path):
        before = load("imagefolder", flat).identity
        shutil.copytree(flat, tmp_path / "copy")
        assert load("imagefolder", tmp_path / "copy").identity == before
        (flat / "cat" / "0.jpg").rename(flat / "cat" / "zero.jpg")
        assert load("imagefolder", flat).identity != before

    def test_archive(self, flat, cache, monkeypatch):
        expected = load("imagefolder", flat)
        archive = packed(flat, flat.parent / "pets.tar.xz", "some/pets")
        for _ in range(2):
            problem = load("imagefolder", archive)
            assert problem.identity == expected.identity
            assert problem.about == {**expected.about, "source": "pets.tar.xz"}
            monkeypatch.setattr("alrao_lab.tasks.files.unpack", None)  # once is enough
        assert len(list(cache.glob("pets-*"))) == 1

    def test_train_size_and_last_batch(self, flat):
        problem = load("imagefolder", flat, train_size=17)
        assert [len(y) for _, y in problem.batches(1)] == [8, 9]
        with pytest.raises(LabError, match="--train-size 57: there are 56"):
            load("imagefolder", flat, train_size=57)


class TestRefusals:
    @pytest.mark.parametrize("task", ["imagenet", "imagefolder"])
    def test_no_place(self, task, tmp_path):
        check_refused(task, None, "--data", "ALRAO_DATA", "<class>/")
        check_refused(task, tmp_path / "nowhere", str(tmp_path / "nowhere"), "does not exist")

    def test_nothing_there(self, tmp_path):
        (tmp_path / "empty").mkdir()
        check_refused("imagenet", tmp_path / "empty", "no ImageNet in", "image-net.org")
        check_refused("imagefolder", tmp_path / "empty", "at least two classes", "none")
        (tmp_path / "letter.txt").write_text("text")
        check_refused("imagefolder", tmp_path / "letter.txt", "neither a folder nor a tar archive")

    def test_no_val(self, folder):
        shutil.rmtree(folder / "val")
        check_refused("imagenet", folder, "needs folders train and val")
        check_refused("imagefolder", folder, "none of val, valid and test")

    @pytest.mark.parametrize("task", ["imagenet", "imagefolder"])
    def test_empty_class(self, task, folder):
        (folder / "train" / "cow").mkdir()
        (folder / "train" / "cow" / "readme.txt").write_text("images follow")
        check_refused(task, folder, str(folder / "train" / "cow"), "no image")

    @pytest.mark.parametrize("task", ["imagenet", "imagefolder"])
    def test_other_classes(self, task, folder):
        (folder / "val" / "bee").rename(folder / "val" / "wasp")
        check_refused(task, folder, "bee, wasp", "not in both")

    def test_one_class(self, tmp_path):
        check_refused("imagefolder", class_folder(tmp_path / "one", {"cat": 5}), "only cat/")

    def test_too_few_to_split(self, tmp_path):
        check_refused(
            "imagefolder", class_folder(tmp_path / "few", {"cat": 2, "dog": 2}), "4 images are too few"
        )

    def test_network_and_size(self, flat):
        check_refused(
            "imagefolder", flat, "alexnet cannot take images of 32×32", "--image-size", model="alexnet"
        )
        check_refused(
            "imagefolder", flat, "vit_b_16 cannot take images of 64×64", model="vit_b_16", image_size=64
        )
        check_refused(
            "imagefolder", flat, "only the ResNets scale", model="alexnet", image_size=64, width=2.0
        )


class TestReading:
    def test_as_torchvision_transforms(self, folder):
        """Training images by the usual recipe, with the generator in the same state."""
        from alrao_lab.seeds import generator, seed_of

        problem = load("imagenet", folder, image_size=48, seed=5)
        transforms, train = torchvision.transforms, problem.parts["train"]
        end = [transforms.ToTensor(), transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))]
        usual = transforms.Compose(
            [transforms.RandomResizedCrop(48), transforms.RandomHorizontalFlip(), *end]
        )
        x, y = next(problem.batches(2))
        order = torch.randperm(len(train), generator=generator(5, "order", 2))[:8].tolist()
        for image, label, number in zip(x, y, order, strict=True):
            torch.manual_seed(seed_of(5, "augment", 2, number))
            with Image.open(train.path(number)) as file:
                torch.testing.assert_close(image, usual(file), atol=1e-5, rtol=1e-5)
            assert label == train.targets[number]
        usual = transforms.Compose([transforms.Resize(55), transforms.CenterCrop(48), *end])
        x, y = next(problem.evaluation("test"))
        for number, image in enumerate(x):
            with Image.open(problem.parts["test"].path(number)) as file:
                torch.testing.assert_close(image, usual(file), atol=1e-5, rtol=1e-5)
        assert y.tolist() == problem.parts["test"].targets.tolist()

    def test_workers_change_nothing(self, folder):
        alone, two, three = (load("imagenet", folder, workers=number) for number in (0, 2, 3))
        assert equal(alone.batches(1), two.batches(1))
        assert equal(alone.batches(2), three.batches(2))
        assert equal(alone.evaluation("test"), two.evaluation("test"))

    @pytest.mark.parametrize("start", [0, 1, 4, 5])
    @pytest.mark.parametrize("workers", [0, 2])
    def test_an_epoch_resumes_anywhere(self, folder, start, workers):
        problem = load("imagenet", folder, workers=workers)
        assert problem.steps == 5
        assert equal(problem.batches(2, start), islice(problem.batches(2), start, None))

    def test_epochs_and_seeds_differ(self, folder):
        problem = load("imagenet", folder)
        assert not equal(problem.batches(1), problem.batches(2))
        assert not equal(problem.batches(1), load("imagenet", folder, seed=1).batches(1))
        labels = torch.cat([y for _, y in problem.batches(1)])
        assert labels.bincount().tolist() == np.bincount(problem.parts["train"].targets).tolist()

    @pytest.mark.parametrize("workers", [0, 2])
    def test_the_global_generator_is_left_alone(self, folder, workers):
        problem = load("imagenet", folder, workers=workers)
        before = torch.get_rng_state()
        for _ in islice(problem.batches(1), 2):
            assert torch.equal(before, torch.get_rng_state())
        list(problem.evaluation("test"))
        assert torch.equal(before, torch.get_rng_state())

    @pytest.mark.parametrize("mode", ["L", "P", "RGBA", "CMYK", "1", "LA"])
    def test_other_kinds_of_images(self, folder, mode):
        ending = "jpg" if mode == "CMYK" else "png"
        Image.new("RGB", (50, 20), (255, 0, 0)).convert(mode).save(folder / "val" / "ant" / f"x.{ending}")
        assert sum(len(y) for _, y in load("imagenet", folder).evaluation("test")) == 7

    @pytest.mark.parametrize("workers", [0, 2])
    @pytest.mark.parametrize("damage", ["cut", "text", "empty", "gone"])
    def test_corrupt_image(self, folder, workers, damage):
        path = folder / "train" / "bee" / "7.jpg"
        problem = load("imagenet", folder, workers=workers, train_size=38)
        content = path.read_bytes()
        match damage:
            case "cut":
                path.write_bytes(content[: len(content) // 2])
            case "text":
                path.write_text("an error page")
            case "empty":
                path.write_bytes(b"")
            case "gone":
                path.unlink()
        if path not in paths(problem.parts["train"]):
            pytest.fail("the damaged image is one of those held out: choose another")
        with pytest.raises(LabError, match=r"7\.jpg") as caught:
            list(problem.batches(1))
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)

    def test_killed_worker(self, folder, monkeypatch):
        problem = load("imagenet", folder, workers=1)
        monkeypatch.setattr(problem, "for_training", lambda _: os.kill(os.getpid(), signal.SIGKILL))
        with pytest.raises(LabError, match="a process that reads images died: try fewer --workers"):
            list(problem.batches(1))

    def test_default_number_of_workers(self, folder, monkeypatch):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(3), raising=False)
        assert load("imagenet", folder, workers=None).workers == 3
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(64), raising=False)
        assert load("imagenet", folder, workers=None).workers == 8
        with pytest.raises(LabError, match="--workers must be at least 0, got -1"):
            resolve(Settings(task="imagenet", workers=-1))

    def test_takes_a_step(self, flat):
        problem = load("imagefolder", flat, model="resnet18")
        net = problem.network()
        x, y = next(problem.batches(1))
        problem.loss(net(x), y).backward()
        assert all(parameter.grad.isfinite().all() for parameter in net.parameters())


class TestUnpacking:
    @pytest.mark.parametrize("kept", [0.4, 0.999])
    def test_cut_off(self, flat, cache, kept):
        archive = packed(flat, flat.parent / "pets.tar.gz")
        content = archive.read_bytes()
        archive.write_bytes(content[: int(kept * len(content))])
        check_refused("imagefolder", archive, str(archive), "damaged or cut off")
        assert not list(cache.glob("pets*"))
        assert not list(cache.glob(".pets*-*/"))

    @pytest.mark.parametrize("name", ["../../harm.jpg", "/tmp/alrao-harm/harm.jpg"])
    def test_leading_out(self, tmp_path, name):
        with tarfile.open(tmp_path / "evil.tar", "w") as tar:
            add_file(tar, "cat/1.jpg", b"")
            add_file(tar, name, b"harm")
        if name.startswith("/"):
            check_refused("imagefolder", tmp_path / "evil.tar")
            assert not os.path.exists(name)
        else:
            check_refused("imagefolder", tmp_path / "evil.tar", "harm.jpg leads out of it")
        assert not list(tmp_path.glob("harm.jpg"))

    def test_links_and_programs_stay_inside(self, flat, tmp_path, cache):
        (flat / "cat" / "program.sh").write_text("exit 1")
        (flat / "cat" / "link.jpg").symlink_to("/etc/passwd")
        problem = load("imagefolder", packed(flat, tmp_path / "pets.tar"))
        assert sum(sizes(problem).values()) == 70
        assert not list(cache.rglob("program.sh"))

    def test_cache_not_to_be_written(self, flat, tmp_path, monkeypatch):
        archive = packed(flat, tmp_path / "pets.tar")
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("ALRAO_CACHE", str(tmp_path / "file" / "below"))
        check_refused("imagefolder", archive, str(archive), str(tmp_path / "file"), "ALRAO_CACHE")

    def test_full_disk(self, flat, tmp_path, cache, monkeypatch):
        archive = packed(flat, tmp_path / "pets.tar")

        def full(*_, **__):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(tarfile.TarFile, "makefile", full)
        check_refused("imagefolder", archive, str(archive), str(cache), "No space left on device")
        assert not list(cache.glob(".pets*-*/"))

    def test_killed_while_unpacking(self, flat, tmp_path, cache):
        archive = packed(flat, tmp_path / "pets.tar")
        script = (
            "import os, pathlib, signal, sys\n"
            "from alrao_lab.tasks.files import unpacked\n"
            "pathlib.Path.rename = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
            "unpacked(pathlib.Path(sys.argv[1]), lambda name: True)\n"
        )
        ended = subprocess.run([sys.executable, "-c", script, str(archive)], check=False, timeout=100)
        assert ended.returncode == -signal.SIGKILL
        assert len(list(cache.glob(".pets-*/"))) == 1
        assert sum(sizes(load("imagefolder", archive)).values()) == 70
        assert not list(cache.glob(".pets-*/"))

    def test_another_archive_under_the_same_name(self, flat, tmp_path):
        archive = packed(flat, tmp_path / "pets.tar")
        first = load("imagefolder", archive)
        packed(class_folder(tmp_path / "new", {"cat": 10, "dog": 10}, seed=2), archive)
        second = load("imagefolder", archive)
        assert first.identity != second.identity
        assert sum(sizes(second).values()) == 20


@pytest.mark.slow
@needs_file("cifar10-jpeg.tar.xz")
@pytest.mark.timeout(600)
def test_real_images():
    """Every network of the paper takes real steps on a real folder."""
    for name in ("alexnet", "resnet50", "densenet121"):
        problem = load(
            "imagenet",
            DATA / "cifar10-jpeg.tar.xz",
            model=name,
            image_size=None,
            train_size=48,
            batch=16,
            workers=2,
        )
        assert problem.about["classes"] == 10
        model = alrao.Alrao(problem.network())
        optimizer = alrao.SGD(model)
        before = model.head.weight.detach().clone()
        for x, y in problem.batches(1):
            optimizer.zero_grad()
            loss = problem.loss(model(x), y)
            assert loss.isfinite()
            loss.backward()
            optimizer.step()
        assert not torch.equal(before, model.head.weight)
