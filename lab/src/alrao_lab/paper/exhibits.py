"""The tables and figures of the paper: the runs each needs, and the figures of the report it shows."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ..methods import GRID
from ..report.figure import Figure
from ..runset import Comparison, RunSet, Triangle
from ..settings import Interval, MethodSpec, Settings
from ..table import Experiment
from .checks import Verdict, check_adam, check_frozen, check_posterior, check_table, check_triangle


@dataclass(frozen=True)
class Plan:
    """Runs of some methods with some seeds, or, where it has rates, a triangle."""

    task: str
    methods: str = "alrao,sgd,adam"
    seeds: int = 3
    rates: tuple[float, ...] = ()
    settings: Mapping[str, Any] = field(default_factory=dict)

    def runs(self, common: Settings, roots: list[Path]) -> RunSet:
        """Return the runs, finished ones included."""
        settings = replace(common, task=self.task, **self.settings)
        if self.rates:
            return Triangle(replace(settings, method=MethodSpec("alrao")), self.rates, roots=roots)
        return Comparison(settings, self.methods.split(","), seeds=self.seeds, grid_seeds=1, roots=roots)


@dataclass(frozen=True)
class Exhibit:
    """A table or figure of the paper."""

    name: str
    title: str
    where: str
    """In the paper."""
    found: str
    """What the paper found."""
    mini: tuple[Plan, ...] = ()
    paper: tuple[Plan, ...] = ()
    """The runs of each budget."""
    figures: tuple[str, ...] = ()
    """Of the report, by name."""
    check: Callable[[Experiment, dict[str, Figure]], Verdict] | None = None
    """Whether our runs agree, for exhibits that rest on runs."""


def _networks(methods: str = "alrao,sgd,adam", seeds: int = 3, **settings: Any) -> tuple[Plan, ...]:
    models = ("googlenet", "vgg19", "mobilenet")
    return tuple(Plan("cifar10", methods, seeds, settings={"model": model, **settings}) for model in models)


CIFAR = Plan("cifar10", settings={"model": "small"})
MOBILENET = Plan("cifar10", "alrao-adam", 10)
PTB = Plan("ptb")
GAMES = (Plan("pendulum"), Plan("lunarlander"))
SMALL = {"model": "cnn", "epochs": 10}
"""For figures of many runs: the convolutional network on digits, a few seconds each."""
ADAM_RATES = ",".join(f"adam@{rate}" for rate in ("1e-05", "0.0001", "0.01", "0.1"))
FRACTIONS = ("0", "0.05", "0.1", "0.2", "0.35", "0.5", "0.75", "1")
FROZEN = ",".join(f"frozen@0.1:{fraction}" for fraction in FRACTIONS)

EXHIBITS: dict[str, Exhibit] = {
    exhibit.name: exhibit
    for exhibit in (
        Exhibit(
            "table1", "Optimal SGD, Adam and Alrao", "Table 1",
            "Alrao comes close to SGD at its best rate, usually a little behind it, and never fails; Adam at "
            "its defaults is mostly as good or better, and fails in a few cases.",
            (CIFAR, PTB),
            (*_networks(seeds=10), *_networks("alrao,adam", 10, width=3.0), replace(PTB, seeds=5)),
            check=check_table,
        ),
        Exhibit(
            "params", "Numbers of parameters", "the table of appendix F",
            "Copies of the output layer add less than 5 % on CIFAR-10, 15 % for characters of Penn Treebank, "
            "and three times the network for its words.",
        ),
        Exhibit(
            "curves", "Learning curves", "Figure 2, and the further ones of appendix D",
            "The curve of Alrao shadows that of SGD at its best rate, although most of SGD's rates learn "
            "little or nothing.",
            (CIFAR,),
            _networks(),
            ("curves", "valley"), check_table,
        ),
        Exhibit(
            "triangle", "Every interval of rates", "Figure 3",
            "Alrao works as soon as the interval contains at least one suitable rate.",
            (Plan("digits", rates=GRID, settings=SMALL),),
            (Plan("cifar10", rates=(*GRID, 100.0), settings={"model": "googlenet", "epochs": 30}),),
            ("triangle",), check_triangle,
        ),
        Exhibit(
            "posterior", "The posterior over the copies", "Figure 4, appendix C",
            "The fastest copies drop out within a few steps; a fast one leads for a short time; in the end "
            "one slower copy has a weight close to 1.",
            (replace(CIFAR, methods="alrao"),),
            (Plan("cifar10", "alrao", 3, settings={"model": "googlenet"}),),
            ("posterior", "features"), check_posterior,
        ),
        Exhibit(
            "adam", "Alrao on Adam", "Figure 7, appendix E",
            "Alrao-Adam trains as well as Adam at a good rate, but its test loss is worse and may diverge.",
            (replace(CIFAR, methods=f"alrao-adam,adam,{ADAM_RATES}", seeds=1),),
            (
                *_networks(f"alrao-adam,adam,{ADAM_RATES}", 10),
                replace(MOBILENET, settings={"model": "mobilenet", "lr": Interval(1e-6, 1e-2)}),
                replace(MOBILENET, settings={"model": "mobilenet", "lr": Interval(1e-6, 1e-1)}),
            ),
            ("adam",), check_adam,
        ),
        Exhibit(
            "frozen", "Training a fraction of the features", "Figure 8, appendix G",
            "With a good part of the features left untrained, the loss is close to that of full training.",
            (Plan("digits", FROZEN, settings=SMALL),),
            (Plan("cifar10", FROZEN, 1, settings={"model": "googlenet"}),),
            ("frozen",), check_frozen,
        ),
        Exhibit(
            "rl", "Deep Q-learning", "the last rows of Table 1, and Figure 6",
            "Alrao reaches the return of SGD at its best rate, while only two or three of SGD's seven rates "
            "learn.",
            GAMES,
            tuple(replace(game, seeds=10) for game in GAMES),
            ("curves", "valley"), check_table,
        ),
        Exhibit(
            "theorem", "One good rate is enough", "the theorem of appendix B",
            "With a convex loss, fixed features, the gradient of all data and Bayesian averaging, the loss "
            "of the mixture tends to the optimum if one rate is below 1/λ, whatever the other copies do.",
        ),
    )
}  # fmt: skip
