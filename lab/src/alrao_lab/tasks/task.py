"""Tasks: data, plain networks, how they are trained, and how their outputs are scored.

Most have examples in parts ``train``, ``valid`` and ``test``; settings and budgets say how many are used.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import islice
from math import isfinite, nan
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import LabError
from ..learner import Learner
from ..seeds import generator, seed_of
from ..settings import Settings
from ..team import Team

Batch = tuple[Tensor, Tensor]
"""Inputs and targets."""
Measures = dict[str, float | None]
Learn = Callable[[nn.Module], Learner]
"""Makes a learner of a plain network."""


@dataclass(frozen=True)
class Budget:
    """How much a task trains; a size of ``None`` is the whole part."""

    epochs: int
    batch: int
    seeds: int
    train: int | None = None
    valid: int | None = None
    test: int | None = None


class Task(ABC):
    """A named kind of experiment; once loaded, the problem of one run.

    ``alrao list`` shows the first line of its docstring. The training loop decides when to evaluate, to save
    and to stop.
    """

    name: str
    models: ClassVar[tuple[str, ...]]
    """Names of its networks, the default first; a last ``"*"`` stands for every torchvision classifier."""
    mini: ClassVar[Budget]
    paper: ClassVar[Budget]
    interval: ClassVar[tuple[float, float]] = (1e-5, 10.0)
    """Alrao's default interval of rates."""
    adam_interval: ClassVar[tuple[float, float]] = (1e-6, 1.0)
    """The same of Alrao-Adam."""
    copies: ClassVar[int] = 10
    options: ClassVar[frozenset[str]] = frozenset()
    """Settings that only some tasks take, and this one does: of level, dropout, target, image_size, …"""
    defaults: ClassVar[Mapping[str, Any]] = {}
    """Their default values."""
    unit: ClassVar[str] = ""
    """Of ``train`` in the budgets, if it is not a number of examples."""
    likelihood: ClassVar[str]
    """The likelihood of Alrao's copies."""
    measures: tuple[str, ...]
    """Names of the figures of an evaluation; the first decides which epoch is best."""
    higher_is_better: ClassVar[bool] = False

    steps: int
    """Training steps in an epoch."""
    identity: str
    """A short digest of the data: other data is another run."""
    about: dict[str, Any]
    """A description of the data for ``config.json``: source, sizes of the parts, number of classes."""
    learner: Learner
    """The network in training, by some method."""

    @property
    def summary(self) -> str:
        return (self.__doc__ or "").partition("\n")[0].rstrip(".")

    @property
    def budgets(self) -> dict[str, Budget]:
        """How much it trains, by the name of the budget."""
        return {"mini": self.mini, "paper": self.paper}

    def batch(self, settings: Settings) -> int:
        return self.budgets[settings.budget].batch

    @abstractmethod
    def load(self, settings: Settings, device: torch.device) -> Self:
        """Read the data and prepare a run."""

    @abstractmethod
    def start(self, settings: Settings, team: Team, learn: Learn) -> None:
        """Prepare the training by the processes of a team, with a fresh network."""

    @abstractmethod
    def epoch(self, number: int, start: int) -> Iterator[tuple[int, float | None]]:
        """Train epoch ``number`` (from 1), of which ``start`` steps are done already.

        Yields:
            After each update, the number of steps made and the loss: None for steps without an update, and
            not finite for an update that was not made.
        """

    @abstractmethod
    def evaluate(self, model: nn.Module) -> tuple[Measures, Measures]:
        """Return the measures on the validation data and on the test data."""

    def calibration(self, epoch: int) -> Iterable[Tensor]:
        """Return training inputs, for BatchNorm statistics that belong to the weights evaluated."""
        return ()

    def end_epoch(self) -> Measures:
        """End an epoch: return the measures of its training, beside the loss."""
        return {}

    def status(self, loss: float | None) -> str:
        """Return a text for the progress bar, given the mean loss of the epoch so far."""
        return f"loss {nan if loss is None else loss:.4g}"

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return the state to resume from, except the learner's and torch's generators."""

    @abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state."""

    def preparation(self) -> dict[str, Any] | None:
        """Return what predictions need beside the weights, or None for tasks without users' data."""
        return None

    def conclude(self, best: dict[str, Tensor] | None) -> dict[str, Any]:
        """Return further entries of the result, given the best weights."""
        return {}


class Supervised(Task):
    """A task of batches of inputs and targets.

    The training batches depend only on the settings' seed, the epoch and the position in the epoch, so that a
    run can resume anywhere. Tensors are on the run's device.
    """

    settings: Settings
    device: torch.device
    carry: Any
    """What the model's next batch needs of the one before."""
    pass_steps: int
    """Steps of a pass over the training data; an epoch has another number where the settings say so."""

    @abstractmethod
    def network(self) -> nn.Module:
        """Build a plain network with its output layer, initialised from torch's global generator."""

    @abstractmethod
    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        """Return the training batches of an epoch (from 1), beginning with number ``start`` (from 0)."""

    @abstractmethod
    def evaluation(self, part: str) -> Iterator[Batch]:
        """Return the batches of ``"valid"`` or ``"test"``, in a fixed order, not augmented."""

    def restore(self, settings: Settings, recipe: Mapping[str, Any]) -> None:
        """Prepare ``network`` for the weights of a run, by its recipe in place of the data."""
        self.settings, self.about, self.steps = settings, dict(recipe["about"]), 1

    def forward(self, model: nn.Module, inputs: Tensor, carry: Any) -> tuple[Tensor, Any]:
        """Return the model's outputs, and the ``carry`` of the next batch."""
        return model(inputs), None

    @abstractmethod
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean negative log-likelihood in nats, for Alrao's outputs or plain ones."""

    @abstractmethod
    def score(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return the batch's sums of the measures, and ``"count"``: the number of terms in them."""

    def measure(self, sums: Mapping[str, float]) -> dict[str, float]:
        """Return the measures, given the sums over all batches: by default, their means."""
        return {name: sums[name] / sums["count"] for name in self.measures}

    def start(self, settings: Settings, team: Team, learn: Learn) -> None:
        torch.manual_seed(seed_of(settings.seed, "network"))
        self.team, self.clip, self.carry = team, settings.clip, None
        self.pass_steps, self.steps = self.steps, settings.every or self.steps
        self.learner = learn(team.prepare(self.network().to(team.device)))
        self.learner.follow(settings.schedule, (settings.epochs or 1) * self.steps)
        self.learner.train()
        self.model = team.wrap(self.learner.model)

    def epoch(self, number: int, start: int) -> Iterator[tuple[int, float | None]]:
        team = self.team
        for step, batch in enumerate(self._of_epoch(number, start), start):
            inputs, targets, factor = team.share(*batch)
            with team.own_random_numbers(self.settings.seed, number, step):
                outputs, self.carry = self.forward(self.model, inputs, self.carry)
            loss = self.loss(outputs, targets)
            if factor != 1:
                loss = loss * factor
            value = team.mean(loss.item())
            if isfinite(value):
                self.learner.step(loss, self.clip)
            yield 1, value

    def _of_epoch(self, number: int, start: int) -> Iterator[Batch]:
        """The batches of an epoch from one of its steps on: a pass, or parts of passes that follow."""
        if self.settings.every is None:
            yield from self.batches(number, start)
            return
        position, end = (number - 1) * self.steps + start, number * self.steps
        while position < end:
            passes, done = divmod(position, self.pass_steps)
            if not done:
                self.carry = None
            for batch in islice(self.batches(passes + 1, done), end - position):
                yield batch
                position += 1

    def evaluate(self, model: nn.Module) -> tuple[Measures, Measures]:
        return evaluate(self, model, "valid", self.team), evaluate(self, model, "test", self.team)

    def calibration(self, epoch: int) -> Iterable[Tensor]:
        return (self.team.share(*batch)[0] for batch in self.batches(epoch))

    def end_epoch(self) -> Measures:
        if self.settings.every is None:
            self.carry = None
        return {}

    def state_dict(self) -> dict[str, Any]:
        return {"carry": self.team.join_carry(self.carry)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.carry = self.team.split_carry(state["carry"])


@torch.no_grad()
def evaluate(problem: Supervised, model: nn.Module, part: str, team: Team) -> Measures:
    """Return the measures of a model on a part of the data."""
    sums: dict[str, float] = {}
    carry = None
    for batch in problem.evaluation(part):
        inputs, targets, factor = team.share(*batch)
        outputs, carry = problem.forward(model, inputs, carry)
        for name, value in problem.score(outputs, targets).items():
            sums[name] = sums.get(name, 0.0) + (float(value) if factor else 0.0)
    return {**problem.measure(team.add(sums))}


_trained: dict[tuple[str, str], nn.Module] = {}
"""The network after its first training, by the task and its data."""


def pretrained(
    problem: Supervised, build: Callable[[], nn.Module], batches: Callable[[], Iterable[Batch]]
) -> nn.Module:
    """Return a network after a first training, by Adam at 0.001: the same for every run on the data."""
    key = problem.name, problem.identity
    if key not in _trained:
        _trained.clear()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_of("pretraining", problem.name))
            net = _trained[key] = build()
            optimizer = torch.optim.Adam(net.parameters())
            for inputs, targets in batches():
                optimizer.zero_grad()
                F.cross_entropy(problem.forward(net, inputs, None)[0], targets).backward()
                optimizer.step()
    return deepcopy(_trained[key])


class Classification(Supervised):
    """Classification: loss in nats, accuracy from 0 to 1."""

    likelihood = "categorical"
    measures: tuple[str, ...] = ("loss", "accuracy")

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets)

    def score(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        return {
            "loss": F.cross_entropy(outputs.float(), targets, reduction="sum"),
            "accuracy": (outputs.argmax(-1) == targets).sum(),
            "count": torch.tensor(targets.numel()),
        }


Data = tuple[dict[str, Any], str, dict[str, Any]]
"""The parts of the data, a digest of all of it, and its description."""


def cut(size: int, batch: int) -> list[tuple[int, int]]:
    """Return the beginnings and ends of the batches of an epoch.

    The last one may be smaller; a single example left over joins the batch before it, since BatchNorm has
    no variance of one.
    """
    starts = list(range(0, size, batch))
    if len(starts) > 1 and size - starts[-1] == 1:
        starts.pop()
    return list(zip(starts, [*starts[1:], size], strict=True))


class Examples(Supervised):
    """Parts in a fixed random order; the first examples are used, as many as settings and budget allow.

    A part has a length, and ``take`` selects examples of it.
    """

    @abstractmethod
    def read(self, settings: Settings) -> Data:
        """Read the data and split it."""

    def load(self, settings: Settings, device: torch.device) -> Self:
        parts, self.identity, about = self.read(settings)
        budget, wanted = self.budgets[settings.budget], settings.train_size
        if wanted is not None and wanted > len(parts["train"]):
            raise LabError(f"--train-size {wanted}: there are {len(parts['train'])} training examples")
        limits = {
            "train": wanted or budget.train,
            "valid": settings.valid_size or budget.valid,
            "test": settings.test_size or budget.test,
        }
        self.parts = {name: part.take(slice(limits[name])) for name, part in parts.items()}
        self.settings, self.device = settings, device
        sizes = {name: len(part) for name, part in self.parts.items()}
        self.cuts = cut(sizes["train"], settings.batch or self.batch(settings))
        self.steps = len(self.cuts)
        self.about = {**about, **sizes}
        return self

    def order(self, epoch: int) -> Tensor:
        random = generator(self.settings.seed, "order", epoch)
        return torch.randperm(len(self.parts["train"]), generator=random)


@dataclass(frozen=True)
class Part:
    """Inputs and targets, a row for each example: tensors, or other arrays."""

    inputs: Any
    targets: Any

    def __len__(self) -> int:
        return len(self.targets)

    def take(self, which: Tensor | slice) -> Self:
        """Select examples by their indices, in that order."""
        return replace(self, inputs=self.inputs[which], targets=self.targets[which])

    def shuffled(self, *name: object) -> Self:
        """Bring the examples into a random order, the same for every run."""
        return self.take(torch.randperm(len(self), generator=generator(*name)))


def hold_out(train: Part, test: Part, count: int, name: str) -> dict[str, Any]:
    """Return the parts of data that has a test part: a number of training examples are for validation."""
    train = train.shuffled(name, "split")
    valid, rest = train.take(slice(count)), train.take(slice(count, None))
    return {"train": rest, "valid": valid, "test": test.shuffled(name, "split", "test")}


class InMemory(Examples):
    """Examples in the memory of the device."""

    parts: dict[str, Part]
    at_once: ClassVar[int] = 1024
    """Examples evaluated at once."""

    def load(self, settings: Settings, device: torch.device) -> Self:
        super().load(settings, device)
        self.parts = {
            name: Part(part.inputs.to(device), part.targets.to(device)) for name, part in self.parts.items()
        }
        return self

    def prepare(self, inputs: Tensor, *name: object) -> Tensor:
        """Return what the network sees of stored inputs; a name seeds the augmentation of training inputs."""
        return inputs

    def batches(self, epoch: int, start: int = 0) -> Iterator[Batch]:
        order = self.order(epoch).to(self.device)
        for number in range(start, len(self.cuts)):
            batch = self.parts["train"].take(order[slice(*self.cuts[number])])
            yield self.prepare(batch.inputs, "augment", epoch, number), batch.targets

    def evaluation(self, part: str) -> Iterator[Batch]:
        for start in range(0, len(self.parts[part]), self.at_once):
            batch = self.parts[part].take(slice(start, start + self.at_once))
            yield self.prepare(batch.inputs), batch.targets
