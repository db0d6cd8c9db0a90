"""digits and cifar10: splits, order, augmentation, normalisation."""

import time
from itertools import islice

import hypothesis.strategies as st
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from lab_support.data import equal
from lab_support.pictures import as_binary, as_python, cifar, trusted
from support.needs import needs_cifar10

from alrao_lab.errors import LabError
from alrao_lab.resolve import resolve
from alrao_lab.settings import Settings
from alrao_lab.tasks import get_task
from alrao_lab.tasks.task import cut

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _places(tmp_path, monkeypatch):
    monkeypatch.setenv("ALRAO_CACHE", str(tmp_path / "cache"))


@pytest.fixture(scope="module")
def decoded(tmp_path_factory):
    return tmp_path_factory.mktemp("decoded")


@pytest.fixture
def real(decoded, monkeypatch):
    """The real images, decoded once for all tests."""
    monkeypatch.setenv("ALRAO_CACHE", str(decoded))


@pytest.fixture
def folder(tmp_path):
    """CIFAR-10 with 100 images to train on and 20 to test."""
    return str(as_binary(cifar(), tmp_path / "cifar-10-batches-bin"))


def digits(**settings):
    return get_task("digits").load(Settings(task="digits", **settings), CPU)


def cifar10(folder, **settings):
    return get_task("cifar10").load(Settings(task="cifar10", data=folder, **settings), CPU)


def rows(images):
    """Images as hashable values."""
    return [tuple(image.flatten().tolist()) for image in images]


@given(st.integers(1, 300), st.integers(1, 64))
def test_cut(size, batch):
    cuts = cut(size, batch)
    assert [index for low, high in cuts for index in range(low, high)] == list(range(size))
    lengths = [high - low for low, high in cuts]
    assert all(length == batch for length in lengths[:-2])
    assert all(length <= batch + 1 for length in lengths)
    assert batch == 1 or size == 1 or min(lengths) > 1


def test_digits_parts():
    problem = digits()
    assert {name: len(part) for name, part in problem.parts.items()} == {
        "train": 1000,
        "valid": 397,
        "test": 400,
    }
    assert problem.steps == len(list(problem.batches(1))) == 32
    assert problem.about["classes"] == 10
    assert (problem.about["train"], problem.about["valid"], problem.about["test"]) == (1000, 397, 400)
    counts = torch.cat([part.targets for part in problem.parts.values()]).bincount()
    assert counts.tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def test_digits_normalised_by_the_training_part():
    problem = digits(train_size=300)
    images = torch.cat([x for x, _ in problem.batches(1)])
    assert images.shape == (300, 1, 8, 8)
    assert images.dtype == torch.float32
    assert images.mean().item() == pytest.approx(0, abs=1e-5)
    assert images.std(correction=0).item() == pytest.approx(1, abs=1e-5)
    other = torch.cat([x for x, _ in problem.evaluation("test")])
    raw = problem.parts["test"].inputs.double()
    train = problem.parts["train"].inputs.double()
    torch.testing.assert_close(
        other.double(), (raw - train.mean()) / train.std(correction=0), rtol=1e-5, atol=1e-5
    )


def test_cifar10_normalised_by_channel(folder):
    problem = cifar10(folder, train_size=50)
    problem.augmented = False
    images = torch.cat([x for x, _ in problem.batches(1)])
    torch.testing.assert_close(images.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(images.std((0, 2, 3), correction=0), torch.ones(3), atol=1e-5, rtol=0)
    assert len(set(problem.about["mean"])) == 3


def test_cifar10_parts_are_fixed_and_apart(folder):
    problem = cifar10(folder, seed=1)
    other = cifar10(folder, seed=2, model="mlp", budget="paper", batch=7)
    sizes = {name: len(part) for name, part in problem.parts.items()}
    assert sizes == {"train": 80, "valid": 20, "test": 20}
    for name, part in problem.parts.items():
        assert torch.equal(part.inputs, other.parts[name].inputs)
        assert torch.equal(part.targets, other.parts[name].targets)
    everything = [row for part in problem.parts.values() for row in rows(part.inputs)]
    assert len(set(everything)) == 120
    batches = cifar()
    of_test = {tuple(row.tolist()) for row in batches["test_batch"][0]}
    assert set(rows(problem.parts["test"].inputs)) == of_test
    labels = {
        tuple(row.tolist()): int(y)
        for pixels, ys in batches.values()
        for row, y in zip(pixels, ys, strict=True)
    }
    for part in problem.parts.values():
        assert [labels[row] for row in rows(part.inputs)] == part.targets.tolist()


@pytest.mark.parametrize("load", [digits, cifar10])
def test_an_epoch_has_every_image_once(load, folder):
    problem = load(folder, batch=9) if load is cifar10 else load(batch=9)
    problem.augmented = False
    plain = problem.prepare(problem.parts["train"].inputs)
    seen = [(row, y) for x, ys in problem.batches(3) for row, y in zip(rows(x), ys.tolist(), strict=True)]
    assert sorted(seen) == sorted(zip(rows(plain), problem.parts["train"].targets.tolist(), strict=True))


@pytest.mark.parametrize("start", [0, 1, 5, 8, 9])
def test_an_epoch_resumes_anywhere(folder, start):
    problem = cifar10(folder, batch=9)
    assert problem.steps == 9
    assert equal(problem.batches(2, start), islice(problem.batches(2), start, None))
    assert equal(cifar10(folder, batch=9).batches(2, start), problem.batches(2, start))


def test_order_and_augmentation_follow_the_seed_and_the_epoch(folder):
    problem = cifar10(folder)
    assert not equal(problem.batches(1), problem.batches(2))
    assert not equal(problem.batches(1), cifar10(folder, seed=1).batches(1))
    problem.augmented = False
    assert not equal(problem.batches(1), problem.batches(2))
    assert not equal(problem.batches(1), cifar10(folder).batches(1))


def test_neither_draws_from_the_global_generator(folder):
    problem = cifar10(folder)
    before = torch.get_rng_state()
    list(problem.batches(1))
    list(problem.evaluation("valid"))
    assert torch.equal(before, torch.get_rng_state())


def test_black_is_black_before_normalisation(folder):
    problem = cifar10(folder)
    black = problem.prepare(torch.zeros(1, 3, 1, 1, dtype=torch.uint8)).flatten()
    corners = torch.cat([x for x, _ in problem.batches(1)])[:, :, 0, 0]
    is_black = (corners == black).all(1)
    assert 0.85 < is_black.float().mean() < 1  # about 1 - (1/5)² of 80


def test_evaluation_is_plain(folder):
    problem = cifar10(folder)
    assert equal(problem.evaluation("valid"), cifar10(folder, seed=5).evaluation("valid"))
    images = torch.cat([x for x, _ in problem.evaluation("valid")])
    assert torch.equal(images, problem.prepare(problem.parts["valid"].inputs))


def test_budgets(folder):
    task = get_task("cifar10")
    mini, paper = task.budgets["mini"], task.budgets["paper"]
    assert (mini.train, mini.valid, mini.test) == (20_000, 5_000, 10_000)
    assert (paper.train, paper.batch, paper.seeds) == (None, 32, 10)
    assert task.interval == (1e-5, 10.0)
    assert task.copies == 10
    problem = cifar10(folder, train_size=33, batch=8)
    assert [len(y) for _, y in problem.batches(1)] == [8, 8, 8, 9]
    whole = cifar10(folder)
    assert torch.equal(problem.parts["train"].inputs, whole.parts["train"].inputs[:33])
    assert problem.identity == whole.identity


def test_too_large_a_part(folder):
    with pytest.raises(LabError, match="--train-size 81: there are 80"):
        cifar10(folder, train_size=81)


def test_identity_follows_the_content(folder, tmp_path, monkeypatch):
    python = trusted(as_python(cifar(), tmp_path / "cifar-10-batches-py"), monkeypatch)
    other = as_binary(cifar(seed=1), tmp_path / "other")
    assert cifar10(folder).identity == cifar10(str(python)).identity != cifar10(str(other)).identity
    assert digits().identity == digits(seed=1).identity != cifar10(folder).identity


@pytest.mark.parametrize("model", ["mlp", "cnn"])
@pytest.mark.parametrize("width", [1.0, 0.5])
def test_digits_networks(model, width):
    problem = digits(model=model, width=width)
    x, y = next(problem.batches(1))
    outputs = problem.network()(x)
    assert outputs.shape == (32, 10)
    assert problem.loss(outputs, y).isfinite()


def test_digits_mlp_is_the_readme_s():
    shapes = [tuple(p.shape) for p in digits().network().parameters() if p.dim() == 2]
    assert shapes == [(128, 64), (128, 128), (10, 128)]


@pytest.mark.parametrize("model", ["small", "vgg19", "googlenet", "mobilenet"])
def test_cifar10_networks(model, folder):
    problem = cifar10(folder, model=model, width=0.25, batch=4)
    x, y = next(problem.batches(1))
    outputs = problem.network()(x)
    assert outputs.shape == (4, 10)
    problem.loss(outputs, y).backward()


@pytest.mark.parametrize("task", ["digits", "cifar10"])
def test_unknown_network(task):
    with pytest.raises(LabError, match="unknown model 'nonet'"):
        resolve(Settings(task=task, model="nonet"))


def test_without_data(monkeypatch):
    monkeypatch.delenv("ALRAO_DATA", raising=False)
    with pytest.raises(LabError, match=r"--data.*ALRAO_DATA.*cifar-10-python\.tar\.gz"):
        cifar10(None)


def test_learns_digits():
    problem = digits(train_size=500)
    net = problem.network()
    optimizer = torch.optim.SGD(net.parameters(), 0.3)
    for epoch in range(1, 6):
        for x, y in problem.batches(epoch):
            optimizer.zero_grad()
            problem.loss(net(x), y).backward()
            optimizer.step()
    right = sum(problem.score(net(x), y)["accuracy"].item() for x, y in problem.evaluation("test"))
    assert right / 400 > 0.8


@pytest.mark.slow
@needs_cifar10
@pytest.mark.usefixtures("real")
def test_an_epoch_is_spent_in_the_network():
    """Of the time of a training step, what it takes to gather, augment and normalise its batch."""
    problem = cifar10(None, train_size=6_400)
    net = problem.network()
    optimizer = torch.optim.SGD(net.parameters(), 0.01)
    ours = theirs = 0.0
    batches = iter(problem.batches(1))
    while True:
        start = time.perf_counter()
        batch = next(batches, None)
        ours += time.perf_counter() - start
        if batch is None:
            break
        start = time.perf_counter()
        optimizer.zero_grad()
        F.cross_entropy(net(batch[0]), batch[1]).backward()
        optimizer.step()
        theirs += time.perf_counter() - start
    assert ours / (ours + theirs) < 0.1


@pytest.mark.slow
@needs_cifar10
@pytest.mark.usefixtures("real")
def test_real_cifar10():
    problem = cifar10(None, budget="paper")
    assert {name: len(part) for name, part in problem.parts.items()} == {
        "train": 40_000,
        "valid": 10_000,
        "test": 10_000,
    }
    assert problem.steps == 1250
    for part in problem.parts.values():
        share = part.targets.bincount(minlength=10) / len(part)
        assert share.tolist() == pytest.approx([0.1] * 10, abs=0.01)
    mini = cifar10(None)
    assert {name: len(part) for name, part in mini.parts.items()} == {
        "train": 20_000,
        "valid": 5_000,
        "test": 10_000,
    }
