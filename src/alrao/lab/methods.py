"""Ways to train a plain network: Alrao, the baselines of the paper, and learning-rate-free peers.

A method turns a plain network into a :class:`Learner`. The training loop knows learners only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite
from typing import Any

from torch import nn

import alrao
from alrao.optim import AlraoOptimizer

from .errors import LabError, missing, unknown
from .learner import Averaged, Learner, Recalibrated, ScheduleFree
from .normalising import normalise
from .settings import Settings, spelled
from .tasks.task import Problem
from .zooming import Zooming

__all__ = ["GRID", "METHODS", "Method", "canonical", "expand", "learner", "parse_interval"]

GRID = ("1e-05", "0.0001", "0.001", "0.01", "0.1", "1", "10")
"""The rates of the paper's search for the best SGD."""


@dataclass(frozen=True)
class Method:
    """What ``alrao list`` says of a method, and how it is built from the network and its rate."""

    summary: str
    build: Callable[[nn.Module, str, Settings, Problem], Learner]
    rate: str = "optional"
    """Whether its name takes a rate, ``name@RATE``: ``"needed"``, ``"optional"`` or ``"never"``."""
    momentum: str = "optional"
    """Whether it takes a momentum: ``"optional"``, ``"positive"`` or ``"never"``."""
    evidence: str = "mean"
    """What a batch counts for in the posterior, unless another is asked for."""


def canonical(method: str, lr: str | None = None) -> tuple[str, str | None]:
    """A method's name as runs are named, and its ``lr``: ``("sgd", "0.10")`` is ``("sgd@0.1", None)``.

    Raises:
        LabError: the name is unknown, or its rate is missing or not a rate.
    """
    name, _, rate = method.partition("@")
    if name not in METHODS:
        raise unknown("method", name, METHODS)
    kind = METHODS[name].rate
    if kind == "never":
        if rate:
            raise LabError(
                f"{name} takes its rates with --lr, an interval such as --lr 1e-5:10; got {method!r}"
            )
        return name, None if lr is None else ":".join(spelled(end) for end in parse_interval(lr))
    if rate and lr is not None:
        raise LabError(f"the rate is given twice, by {method!r} and by --lr {lr}: leave one out")
    rate = rate or lr or ""
    if not rate:
        if kind == "needed":
            example = "0.1:0.5" if name == "frozen" else "0.1"
            also = ", or `alrao compare` for the grid of seven" if name == "sgd" else ""
            raise LabError(f"{name} needs a rate: {name}@{example}{also}")
        return name, None
    if name == "frozen":
        rate, _, fraction = rate.partition(":")
        p = _number(fraction, f"the fraction of trained features in {method!r}, as in frozen@0.1:0.5,")
        if p > 1:
            raise LabError(f"the fraction of trained features is at most 1, got {fraction}")
        return f"frozen@{spelled(_rate(rate))}:{spelled(p)}", None
    return f"{name}@{spelled(_rate(rate))}", None


def expand(method: str) -> list[str]:
    """The methods that a name stands for in a comparison: ``sgd`` alone is the grid of seven rates."""
    return [f"sgd@{rate}" for rate in GRID] if method == "sgd" else [canonical(method)[0]]


def parse_interval(text: str) -> tuple[float, float]:
    """``"1e-5:10"`` as two rates; ``"0.1"`` as an interval of one rate."""
    low, colon, high = text.partition(":")
    ends = _rate(low), _rate(high if colon else low)
    if ends[0] > ends[1]:
        raise LabError(f"an interval of rates goes from low to high, got {text}")
    return ends


def _number(text: str, what: str) -> float:
    try:
        number = float(text)
    except ValueError:
        raise LabError(f"{what} must be a number, got {text!r}") from None
    if not isfinite(number) or number < 0:
        raise LabError(f"{what} must be a finite number that is not negative, got {text}")
    return number


def _rate(text: str) -> float:
    rate = _number(text, "a learning rate")
    if rate == 0:
        raise LabError("a learning rate must be positive, got 0")
    return rate


def learner(net: nn.Module, settings: Settings, problem: Problem) -> Learner:
    """The learner of the settings' method on a network. The settings must be resolved."""
    name, _, rate = settings.method.partition("@")
    built = METHODS[name].build(net, rate, settings, problem)
    return Recalibrated(built.model, built.optimizer, built.zooming) if settings.average else built


# How each is built. ``rate`` is empty where the name had none.


def _alrao_model(net: nn.Module, copies: int, settings: Settings, problem: Problem) -> alrao.Alrao:
    averaging: alrao.Averaging
    evidence = settings.evidence or "mean"
    if settings.averaging == "bayes":
        averaging = alrao.BayesianAverage(copies, evidence=evidence)
    else:
        averaging = alrao.Switch(copies, settings.theta, evidence=evidence)
    return alrao.Alrao(net, copies, likelihood=problem.likelihood, averaging=averaging)


def _law(interval: str | None) -> alrao.Law:
    low, high = parse_interval(interval or "")
    return alrao.LogUniform(low, high) if low < high else alrao.Constant(low)


def _groups(model: alrao.Alrao, settings: Settings) -> list[dict[str, Any]] | None:
    """The body with an interval of its own, if it has one."""
    if settings.body_lr is None:
        return None
    copies = set(model.head.parameters())
    body = [p for p in model.parameters() if p not in copies]
    return [{"params": body, "lr": _law(settings.body_lr)}, {"params": list(model.head.parameters())}]


def _alrao_learner(model: alrao.Alrao, optimizer: AlraoOptimizer, settings: Settings) -> Learner:
    if settings.normalise is not None:
        normalise(optimizer, settings.normalise)
    zooming = None if settings.zoom is None else Zooming.parse(settings.zoom)
    return Learner(model, optimizer, zooming)


def _alrao(net: nn.Module, rate: str, settings: Settings, problem: Problem) -> Learner:
    model = _alrao_model(net, settings.copies or 1, settings, problem)
    optimizer = alrao.SGD(
        model,
        _law(settings.lr),
        momentum=settings.momentum or 0.0,
        weight_decay=settings.weight_decay,
        params=_groups(model, settings),
    )
    return _alrao_learner(model, optimizer, settings)


def _alrao_adam(net: nn.Module, rate: str, settings: Settings, problem: Problem) -> Learner:
    model = _alrao_model(net, settings.copies or 1, settings, problem)
    optimizer = alrao.Adam(
        model,
        _law(settings.lr),
        _betas(settings),
        weight_decay=settings.weight_decay,
        params=_groups(model, settings),
    )
    return _alrao_learner(model, optimizer, settings)


def _frozen(net: nn.Module, rate: str, settings: Settings, problem: Problem) -> Learner:
    lr, p = (float(part) for part in rate.split(":"))
    model = _alrao_model(net, 1, settings, problem)
    optimizer = alrao.SGD(
        model, alrao.Bernoulli(lr, p), momentum=settings.momentum or 0.0, weight_decay=settings.weight_decay
    )
    return Learner(model, optimizer)


def _betas(settings: Settings) -> tuple[float, float]:
    return (0.9 if settings.momentum is None else settings.momentum, 0.999)


def _plain(
    module: str, name: str, *, betas: bool = False, weight_decay: float = 0.0, kind: type[Learner] = Learner
) -> Any:
    """A method that is an optimizer from a package, at its published defaults."""

    def build(net: nn.Module, rate: str, settings: Settings, problem: Problem) -> Learner:
        options: dict[str, Any] = {"weight_decay": settings.weight_decay or weight_decay}
        if rate:
            options["lr"] = float(rate)
        if settings.momentum is not None:
            options |= {"betas": _betas(settings)} if betas else {"momentum": settings.momentum}
        return kind(net, _imported(module, name)(net.parameters(), **options))

    return build


def _imported(module: str, name: str) -> Any:
    from importlib import import_module

    try:
        return getattr(import_module(module), name)
    except ImportError:
        raise missing(PACKAGES.get(module, module), "peers", f"the method {name}") from None


PACKAGES = {"prodigyopt": "prodigyopt", "dadaptation": "dadaptation", "dog": "dog-optimizer"}

METHODS: dict[str, Method] = {
    "alrao": Method("Alrao, the paper's: SGD with a random rate for every feature", _alrao, "never"),
    "alrao-adam": Method("the same on Adam (appendix E)", _alrao_adam, "never"),
    "alrao-zoom": Method(
        "Alrao on Adam, its interval narrowing around the posterior", _alrao_adam, "never", evidence="sum"
    ),
    "sgd": Method(
        "SGD at a rate; in a comparison, the best of seven on validation",
        _plain("torch.optim", "SGD"),
        "needed",
    ),
    "adam": Method("Adam, at 0.001 or at a rate", _plain("torch.optim", "Adam", betas=True)),
    "adamw": Method(
        "AdamW, at 0.001 or at a rate; weight decay 0.01 unless another is given",
        _plain("torch.optim", "AdamW", betas=True, weight_decay=0.01),
    ),
    "frozen": Method(
        "SGD on a random fraction of the features, frozen@RATE:P (appendix G)", _frozen, "needed"
    ),
    "prodigy": Method("Prodigy", _plain("prodigyopt", "Prodigy", betas=True)),
    "dadapt-sgd": Method("D-Adaptation of SGD", _plain("dadaptation", "DAdaptSGD")),
    "dadapt-adam": Method("D-Adaptation of Adam", _plain("dadaptation", "DAdaptAdam", betas=True)),
    "dog": Method(
        "DoG, with its polynomial averaging", _plain("dog", "DoG", kind=Averaged), momentum="never"
    ),
    "schedulefree": Method(
        "Schedule-Free AdamW",
        _plain("schedulefree", "AdamWScheduleFree", betas=True, kind=ScheduleFree),
        momentum="positive",
    ),
}
