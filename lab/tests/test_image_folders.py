"""imagenet and imagefolder: listing, splits, and refusals."""

import shutil

import numpy as np
import pytest
import torch
from lab_support.data import check_refused, load, paths, sizes
from lab_support.pictures import class_folder, packed

from alrao_lab.errors import LabError
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
