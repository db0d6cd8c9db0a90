"""Ways to train a plain network: Alrao, the baselines of the paper, and learning-rate-free peers.

A method turns a plain network into a :class:`Learner`. The training loop knows learners only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn

import alrao
from alrao.optim import AlraoOptimizer

from .errors import LabError, optional, unknown
from .learner import Learner, Mechanic, Polyak, ScheduleFree, warm_up_steps
from .peers import ScheduleFreePlus
from .settings import Interval, MethodSpec, Settings
from .tasks.task import Task

GRID = (1e-05, 0.0001, 0.001, 0.01, 0.1, 1.0, 10.0)
"""The rates of the paper's search for the best SGD."""


@dataclass(frozen=True)
class Method:
    """What ``alrao list`` shows of a method, and how it is built from the network."""

    title: str
    """Its name in tables and figures."""
    summary: str
    build: Callable[[nn.Module, Settings, Task], Learner]
    rate: str = "optional"
    """Whether its name takes a rate, ``name@RATE``: ``"needed"``, ``"optional"``, ``"never"`` for Alrao's
    methods, which take an interval, or ``"none"`` for methods that choose rates themselves."""
    momentum: str = "optional"
    """Whether it takes a momentum: ``"optional"``, ``"positive"`` or ``"never"``."""
    ours: bool = False
    """Whether it is one of this library's."""
    default_rate: float | None = None
    """The rate of its optimizer where the name has none, of methods that are compared rate by rate."""


def known_method(spec: MethodSpec) -> Method:
    """Return the method that a spelling names."""
    if spec.name not in METHODS:
        raise unknown("method", spec.name, METHODS)
    return METHODS[spec.name]


def settle(spec: MethodSpec, lr: Interval | None = None) -> tuple[MethodSpec, Interval | None]:
    """Return the method with its rate, and its interval: ``sgd`` and 0.1 are ``sgd@0.1`` and None."""
    kind = known_method(spec).rate
    if kind == "never":
        if spec.rates:
            raise LabError(
                f"{spec.name} takes its rates with --lr, an interval such as --lr 1e-5:10; got {str(spec)!r}"
            )
        return spec, lr
    if kind == "none" and (spec.rates or lr is not None):
        raise LabError(f"{spec.name} takes no rate, got {spec.rates or lr}: leave it out")
    if lr is not None:
        if spec.lr is not None:
            raise LabError(f"the rate is given twice, by {str(spec)!r} and by --lr {lr}: leave one out")
        if lr.low != lr.high:
            raise LabError(f"{spec.name} takes one rate, got the interval --lr {lr}")
        spec = replace(spec, lr=lr.low)
    frozen = spec.name == "frozen"
    if spec.lr is None and kind == "needed":
        also = ", or `alrao compare` for the grid of seven" if spec.name == "sgd" else ""
        raise LabError(f"{spec.name} needs a rate: {spec.name}@{'0.1:0.5' if frozen else '0.1'}{also}")
    if frozen and spec.fraction is None:
        raise LabError(f"frozen needs the fraction of trained features, as in frozen@0.1:0.5; got {spec}")
    if spec.fraction is not None and not frozen:
        raise LabError(f"a learning rate must be a number, got {spec.rates!r}: only frozen takes a fraction")
    return spec, None


def expand(text: str) -> list[MethodSpec]:
    """Return the methods that a name selects in a comparison: ``sgd`` without a rate is the grid of seven."""
    if text == "sgd":
        return [MethodSpec("sgd", rate) for rate in GRID]
    return [settle(MethodSpec.parse(text))[0]]


def usual_methods() -> list[str]:
    """Return what is compared where nothing else is asked for: the peers as far as they are installed."""
    peers = {"prodigy": "prodigyopt", "schedulefree": "schedulefree"}
    return ["auto", "sgd", "adam", *(name for name, module in peers.items() if find_spec(module))]


def learner(net: nn.Module, settings: Settings, problem: Task) -> Learner:
    """Return the learner of the settings' method on a network. The settings must be resolved."""
    built = METHODS[settings.method.name].build(net, settings, problem)
    return built.average(recalibrates=True) if settings.average else built


# How each is built.


def _rates(settings: Settings) -> alrao.RateDistribution:
    spec, interval = settings.method, settings.lr
    if spec.lr is not None and spec.fraction is not None:
        return alrao.paper.Bernoulli(spec.lr, spec.fraction)
    assert interval is not None  # once the settings are resolved
    if interval.low == interval.high:
        return alrao.Constant(interval.low)
    return alrao.LogUniform(interval.low, interval.high)


def _alrao(net: nn.Module, settings: Settings, problem: Task, *, adam: bool = False) -> Learner:
    copies = settings.copies or 1
    bayes = settings.averaging == "bayes"
    averaging = alrao.paper.BayesianAverage(copies) if bayes else alrao.Switch(copies, settings.theta)
    model = alrao.Alrao(net, likelihood=problem.likelihood, averaging=averaging)
    options: dict[str, Any] = {"weight_decay": settings.weight_decay, "evidence": settings.evidence or "mean"}
    rates = _rates(settings)
    optimizer: AlraoOptimizer
    if adam:
        optimizer = alrao.Adam(model, rates, _betas(settings), **options)
    else:
        optimizer = alrao.SGD(model, rates, momentum=settings.momentum or 0.0, **options)
    return Learner(model, optimizer)


def _auto(net: nn.Module, settings: Settings, problem: Task, *, copies: bool = True) -> Learner:
    model = alrao.Alrao(net, likelihood=problem.likelihood) if copies else net
    decay: dict[str, Any] = {"weight_decay": settings.weight_decay} if settings.weight_decay else {}
    return Learner(model, alrao.Auto(model, **decay))


def _betas(settings: Settings) -> tuple[float, float]:
    return (0.9 if settings.momentum is None else settings.momentum, 0.999)


def _plain(
    module: str,
    name: str,
    *,
    betas: bool = False,
    weight_decay: float = 0.0,
    kind: type[Learner] = Learner,
    **defaults: Any,
) -> Any:
    """Return the builder of an optimizer from a package, at its published defaults or at others."""

    def build(net: nn.Module, settings: Settings, problem: Task) -> Learner:
        options: dict[str, Any] = {**defaults, "weight_decay": settings.weight_decay or weight_decay}
        if settings.method.lr is not None:
            options["lr"] = settings.method.lr
        if settings.momentum is not None:
            options |= {"betas": _betas(settings)} if betas else {"momentum": settings.momentum}
        return kind(net, _imported(module, name)(net.parameters(), **options))

    return build


def _dog(net: nn.Module, settings: Settings, problem: Task) -> Learner:
    return _plain("dog", "DoG")(net, settings, problem).average()


def _dog_suggested(net: nn.Module, settings: Settings, problem: Task) -> Learner:
    """DoG with the first step that its package suggests: larger where a network has BatchNorm."""
    normed = any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in net.modules())
    return _plain("dog", "DoG", reps_rel=1e-4 if normed else 1e-6)(net, settings, problem).average()


def _ademamix_warm(net: nn.Module, settings: Settings, problem: Task) -> Learner:
    """AdEMAMix whose slow average comes in over the whole training, as its authors train."""
    steps = (settings.epochs or 1) * problem.steps
    build = _plain("pytorch_optimizer", "AdEMAMix", weight_decouple=True, t_alpha_beta3=steps)
    return build(net, settings, problem)


def _mechanic(net: nn.Module, settings: Settings, problem: Task) -> Learner:
    adam = _imported("mechanic_pytorch", "mechanize")(torch.optim.Adam)
    lr, weight_decay = settings.method.lr or 1.0, settings.weight_decay
    return Mechanic(net, adam(net.parameters(), lr=lr, weight_decay=weight_decay))


def _muon(net: nn.Module, settings: Settings, problem: Task) -> Learner:
    """Muon for hidden matrices and kernels; AdamW for embeddings, the first and last layer, and vectors.

    Without a rate, its published defaults. At a rate, that of AdamW is the same, and the steps of matrices
    are as large as AdamW's are.
    """
    matrices = [p for p in net.parameters() if p.ndim >= 2]
    tables = [m.weight for m in net.modules() if isinstance(m, nn.Embedding)]
    apart = set(map(id, [*tables, matrices[0], matrices[-1]]))
    hidden = [p for p in matrices if id(p) not in apart]
    inside = set(map(id, hidden))
    groups = [
        {"params": hidden, "use_muon": True},
        {"params": [p for p in net.parameters() if id(p) not in inside], "use_muon": False},
    ]
    options: dict[str, Any] = {}
    if settings.method.lr is not None:
        lr, decay = settings.method.lr, settings.weight_decay or 0.01
        options = {"lr": lr, "adamw_lr": lr, "weight_decay": decay, "adamw_wd": decay, "adamw_eps": 1e-8}
        options |= {"adamw_betas": (0.9, 0.999), "use_adjusted_lr": True}
    return Learner(net, _imported("pytorch_optimizer", "Muon")(groups, **options))


def _schedule_free_plus(net: nn.Module, settings: Settings, problem: Task) -> Learner:
    steps = warm_up_steps((settings.epochs or 1) * problem.steps)
    return Polyak(net, ScheduleFreePlus(net.parameters(), last_warm_up=steps))


def _nadamw_calibrated(net: nn.Module, settings: Settings, problem: Task) -> Learner:
    """NAdamW at the values of Kasimbeg et al., arXiv 2505.24005; the schedule ``warmup-2%`` is theirs too."""
    from .zoo import vision  # noqa: F401, timm imports torchvision, whose operators may be missing

    values = {"lr": 0.00175, "betas": (0.9327, 0.9955), "weight_decay": 0.0812}
    return Learner(net, _imported("timm.optim", "NAdamW")(net.parameters(), **values))


def _schedule_free_calibrated(net: nn.Module, settings: Settings, problem: Task) -> Learner:
    """Schedule-Free AdamW at the values of Kasimbeg et al., arXiv 2505.24005, with their warm-up."""
    steps = warm_up_steps((settings.epochs or 1) * problem.steps, 0.015)
    values = {"lr": 0.0025, "betas": (0.9, 0.9955), "weight_decay": 0.0812, "r": 0.75, "warmup_steps": steps}
    return ScheduleFree(net, _imported("schedulefree", "AdamWScheduleFree")(net.parameters(), **values))


def _imported(module: str, name: str) -> Any:
    return getattr(optional(module, "peers", f"the method {name}", PACKAGES.get(module)), name)


PACKAGES = {
    "timm.optim": "timm",
    "dog": "dog-optimizer",
    "mechanic_pytorch": "mechanic-pytorch",
    "prodigyplus": "prodigy-plus-schedule-free",
}
"""The names of packages that differ from those of their modules."""

# In the order of tables and legends.
METHODS: dict[str, Method] = {
    "auto": Method(
        "Auto", "Auto: no rate, no schedule, no number of steps", _auto, "none", "never", ours=True
    ),
    "auto-plain": Method(
        "Auto (plain)", "Auto on the network without copies", partial(_auto, copies=False),
        "none", "never", ours=True,
    ),
    "alrao": Method(
        "Alrao", "the paper's method: SGD with a random rate for every feature", _alrao, "never", ours=True
    ),
    "sgd": Method(
        "SGD", "SGD at a rate; in a comparison, the best of seven on validation",
        _plain("torch.optim", "SGD"), "needed",
    ),
    "adam": Method(
        "Adam", "Adam, at 0.001 or at a rate", _plain("torch.optim", "Adam", betas=True), default_rate=0.001
    ),
    "alrao-adam": Method(
        "Alrao-Adam", "Alrao on Adam (appendix E)", partial(_alrao, adam=True), "never", ours=True
    ),
    "adamw": Method(
        "AdamW", "AdamW, at 0.001 or at a rate; weight decay 0.01 unless another is given",
        _plain("torch.optim", "AdamW", betas=True, weight_decay=0.01), default_rate=0.001,
    ),
    "frozen": Method(
        "Frozen", "SGD on a random fraction of the features, frozen@RATE:P (appendix G)", _alrao, "needed"
    ),
    "prodigy": Method("Prodigy", "Prodigy", _plain("prodigyopt", "Prodigy", betas=True)),
    "dadapt-adam": Method(
        "D-Adapt Adam", "D-Adaptation of Adam", _plain("dadaptation", "DAdaptAdam", betas=True)
    ),
    "dadapt-sgd": Method("D-Adapt SGD", "D-Adaptation of SGD", _plain("dadaptation", "DAdaptSGD")),
    "dog": Method(
        "DoG", "DoG, with its polynomial averaging", _dog, momentum="never"
    ),
    "dog-suggested": Method(
        "DoG (suggested)", "DoG, from a first step that depends on BatchNorm, as its package suggests",
        _dog_suggested, "none", momentum="never",
    ),
    "schedulefree": Method(
        "Schedule-Free", "Schedule-Free AdamW",
        _plain("schedulefree", "AdamWScheduleFree", betas=True, kind=ScheduleFree), momentum="positive",
    ),
    "prodigy-plus": Method(
        "Prodigy+SF", "Prodigy with Schedule-Free's averaging",
        _plain("prodigyplus", "ProdigyPlusScheduleFree", betas=True, kind=ScheduleFree), momentum="positive",
    ),
    "mechanic": Method("Mechanic", "Mechanic on Adam", _mechanic, momentum="never"),
    "muon": Method(
        "Muon", "Muon for hidden matrices, AdamW for the rest, at its defaults or both at a rate", _muon,
        momentum="never",
    ),
    "schedulefree+": Method(
        "ScheduleFree+", "Schedule-Free AdamW with Polyak's rate, after its paper", _schedule_free_plus,
        "none", momentum="never",
    ),
    "ademamix": Method(
        "AdEMAMix", "AdEMAMix, at 0.001 or at a rate",
        _plain("pytorch_optimizer", "AdEMAMix", weight_decouple=True), momentum="never", default_rate=0.001,
    ),
    "ademamix-warm": Method(
        "AdEMAMix (warm-up)", "AdEMAMix, at 0.001 or at a rate, with the warm-up of its slow average",
        _ademamix_warm, momentum="never", default_rate=0.001,
    ),
    "soap": Method(
        "SOAP", "SOAP, at 0.003 or at a rate", _plain("pytorch_optimizer", "SOAP", weight_decay=0.01),
        momentum="never", default_rate=0.003,
    ),
    "nadamw-calibrated": Method(
        "NAdamW (calibrated)", "NAdamW at the values of Kasimbeg et al.", _nadamw_calibrated,
        "none", momentum="never",
    ),
    "schedulefree-calibrated": Method(
        "Schedule-Free (calibrated)", "Schedule-Free AdamW at the values of Kasimbeg et al.",
        _schedule_free_calibrated, "none", momentum="never",
    ),
}  # fmt: skip
